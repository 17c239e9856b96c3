"""Generates answers token by token with the models over one base; each is an adapter or the base
itself.

Prompt builder, decoder, sampling and end of an answer are those of training and evaluation, so what
is served is what was evaluated. One answer at a time is computed. HTTP is in embedded.py.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, DataError, ModelError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.deploy.constraint import Constraint, GrammarCompiler
from thumbwheel.engine import decode, decode_trial
from thumbwheel.engine.adapted_template import stored_template
from thumbwheel.engine.load import Dtype, load_base, load_tokenizer, quiet_transformers
from thumbwheel.engine.prompt import PromptBuilder, trained_builder
from thumbwheel.engine.rollout import Sampling, StopCondition
from thumbwheel.engine.sample_token import TokenSampler
from thumbwheel.models.template_settings import TemplateSettings

REPLACEMENT = "\ufffd"
"""The decoded end of a text whose last character does not have all of its bytes yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer. `text` is what it adds to the text that can be shown, `top` the most
    likely tokens with their log-probabilities."""

    id: int
    logp: float
    top: tuple[tuple[int, float], ...]
    text: str
    finish: str | None = None
    stop_text: str | None = None
    """The stop text at which the answer ended."""


class StreamingGenerator:
    """The base in folder `base` and the models over it."""

    def __init__(self, base: str, dtype: Dtype = "auto", device: str = "cpu") -> None:
        model, self.tokenizer = load_base(base, dtype, local_only=True)
        self._model: Any = model.to(device)
        self.builder = PromptBuilder(self.tokenizer)
        self.vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self.context = decode.context_of(self._model)
        self._longest_token = max((len(token) for token in self.tokenizer.get_vocab()), default=1)
        self._start, _ = decode_trial.choose(self._model)
        self._base = base
        self.grammars = GrammarCompiler(self.tokenizer, self.vocabulary, self.builder.stop_ids)
        self._adapters: dict[str, str | None] = {}
        self._builders: dict[str, PromptBuilder] = {}
        self._loaded = 0
        self._busy = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._adapters)

    def load(
        self, name: str, adapter: Path | None, template: TemplateSettings | None = None
    ) -> None:
        """Serve the base with `adapter`, or the base itself, as `name`. Raises ModelError for an
        adapter that does not fit. `template` says how the chat template is used if none was saved
        with the adapter."""
        builder = self.builder
        if template is not None or (adapter is not None and stored_template(adapter) is not None):
            builder = trained_builder(load_tokenizer(self._base), adapter, template)
        for note in builder.notes:
            log.say(f"note: {name}: {note}")
        with self._busy:
            adapter_id = None if adapter is None else self._attach(adapter)
            self._drop(self._adapters.get(name))
            self._adapters[name] = adapter_id
            self._builders[name] = builder

    def builder_of(self, name: str) -> PromptBuilder:
        """Return the builder of a model's prompts, the same as in its training."""
        return self._builders.get(name, self.builder)

    def unload(self, name: str) -> None:
        """Remove the model `name`, if it is there."""
        with self._busy:
            self._drop(self._adapters.pop(name, None))
            self._builders.pop(name, None)

    def check(self, name: str) -> None:
        """Raise NotFound for a model that is not here."""
        if name not in self._adapters:
            names = ", ".join(self._adapters) or "none"
            raise NotFound(
                f"model {name!r}",
                "it is not served here",
                f"Known: {names}.{nearest(name, self._adapters)}",
            )

    def check_length(self, *texts: Any) -> None:
        """Raise DataError for texts (any JSON) that cannot fit into the context, before a tokenizer
        spends time and memory on them."""
        max_length = self.context * self._longest_token
        length = 0
        pending: list[Any] = list(texts)
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                pending += [*value, *value.values()]
            elif isinstance(value, list):
                pending += value
            length += len(value) if isinstance(value, str) else 1
            if length > max_length:
                why = (
                    f"it has more than {max_length} characters, which are more than the model's "
                    f"context of {self.context} tokens"
                )
                raise DataError("the prompt", why, "Shorten it")

    def generate(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: Sampling,
        top_count: int = 0,
        *,
        number: int = 0,
        constraint: Constraint | None = None,
    ) -> TokenStream:
        """Return the tokens of one answer as a stream. The computation goes on while nobody reads,
        and stops when the reader closes the stream. `number` counts the answers to one prompt,
        which differ by their random numbers. Raises DataError for an empty prompt and one that does
        not fit the context."""
        self.check(name)
        if not prompt or len(prompt) >= self.context:
            why = f"it has {len(prompt)} tokens and the model's context {self.context}"
            raise DataError("the prompt", why, "Shorten it" if prompt else "Give it a message")
        sampling = replace(
            sampling, max_new_tokens=min(sampling.max_new_tokens, self.context - len(prompt))
        )
        pieces: queue.SimpleQueue[Piece | Exception | None] = queue.SimpleQueue()
        cancelled = threading.Event()
        worker = threading.Thread(
            target=self._work,
            args=(
                (name, tuple(prompt), sampling, top_count, number, constraint),
                pieces,
                cancelled,
            ),
            daemon=True,
        )
        worker.start()
        return TokenStream(pieces, cancelled)

    def _work(self, arguments: tuple[Any, ...], pieces: Any, cancelled: threading.Event) -> None:
        """Put the pieces of an answer into the queue `pieces`; `arguments` are passed to
        `_pieces`."""
        try:
            with self._busy:
                if cancelled.is_set():
                    return
                for piece in self._pieces(*arguments):
                    if cancelled.is_set():
                        break
                    pieces.put(piece)
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            pieces.put(error)
        pieces.put(None)

    def _pieces(
        self,
        name: str,
        prompt: tuple[int, ...],
        sampling: Sampling,
        top_count: int,
        number: int,
        constraint: Constraint | None,
    ) -> Iterator[Piece]:
        import torch

        with torch.inference_mode(), self._activated(name):
            state = self._start(self._model, [prompt])
            draw = TokenSampler.of(sampling, [(prompt, number)], state.logits.device)
            ending = StopCondition(sampling, self.tokenizer)
            visible = _VisibleText(sampling)
            ids: list[int] = []
            while True:
                logits = state.logits if constraint is None else constraint.allow(state.logits)
                tokens, _ = draw.tokens(logits, len(ids))
                logps = state.logits[0].float().log_softmax(-1)
                ids.append(int(tokens[0]))
                is_complete = constraint is not None and constraint.add(ids[-1])
                ended = is_complete or ending.reached(ids)
                finish = None
                if ended:
                    finish = "stop"
                elif len(ids) == sampling.max_new_tokens:
                    finish = "length"
                top: tuple[tuple[int, float], ...] = ()
                if top_count:
                    top_logps, top_ids = logps.topk(min(top_count, len(logps)))
                    top = tuple(zip(top_ids.tolist(), top_logps.tolist(), strict=True))
                text = visible.new(ending.text(ids, ended), finish is not None)
                stop_text = ending.stop_text(ids) if ended else None
                yield Piece(ids[-1], float(logps[ids[-1]]), top, text, finish, stop_text)
                if finish:
                    return
                state.advance(tokens)

    def embed(self, name: str, ids: Sequence[int]) -> list[float]:
        """Return the mean of the last hidden states of a text, of length 1. Raises DataError for a
        text that is empty or does not fit into the context."""
        import torch

        self.check(name)
        if not ids or len(ids) > self.context:
            why = f"it has {len(ids)} tokens and the model's context {self.context}"
            raise DataError("the input", why, "Shorten it" if ids else "Give it a text")
        with self._busy, torch.inference_mode(), self._activated(name):
            tokens = torch.tensor([list(ids)], device=self._model.device)
            states = self._model(input_ids=tokens, output_hidden_states=True).hidden_states[-1]
            mean = states[0].double().mean(0)
            vector: list[float] = (mean / mean.norm().clamp_min(1e-12)).tolist()
            return vector

    def _activated(self, name: str) -> Any:
        """Return the context in which the model computes as `name`."""
        adapter_id = self._adapters[name]
        if adapter_id is not None:
            self._model.set_adapter(adapter_id)
            return nullcontext()
        return (
            self._model.disable_adapter() if hasattr(self._model, "peft_config") else nullcontext()
        )

    def _attach(self, adapter: Path) -> str:
        from peft import PeftModel

        self._loaded += 1
        adapter_id = f"a{self._loaded}"  # a name of ours: PEFT takes none with a dot
        try:
            with quiet_transformers():
                if hasattr(self._model, "peft_config"):
                    self._model.load_adapter(
                        str(adapter), adapter_name=adapter_id, is_trainable=False
                    )
                else:
                    self._model = PeftModel.from_pretrained(
                        self._model, str(adapter), adapter_name=adapter_id
                    )
        except (ValueError, RuntimeError, KeyError, TypeError, OSError) as error:
            self._drop(adapter_id)
            why = " ".join(str(error).split())[:300]
            raise ModelError(
                f"adapter {str(adapter)!r}", why, "Serve it over the base that it was trained on"
            ) from None
        self._model.eval()
        return adapter_id

    def _drop(self, adapter_id: str | None) -> None:
        if adapter_id is not None:
            with suppress(ValueError, AttributeError):
                self._model.delete_adapter(adapter_id)
                # PEFT goes on naming the last one as active, and then finds nothing under that name
                if not self._model.peft_config:
                    self._model = self._model.unload()


class _VisibleText:
    """How much of a growing text may be shown: never half a character, never what may be the
    beginning of a stop text."""

    def __init__(self, sampling: Sampling) -> None:
        self._held = max((len(text) for text in sampling.stop), default=1) - 1
        self._done = 0

    def new(self, text: str, last: bool) -> str:
        """Return the part that may be shown now and was not before; the rest if `last`."""
        whole = text if last else text.rstrip(REPLACEMENT)[: max(0, len(text) - self._held)]
        part, self._done = whole[self._done :], max(self._done, len(whole))
        return part


class TokenStream(Iterator[Piece]):
    """The pieces of an answer while it is computed; `close`, from any thread, stops the
    computation."""

    def __init__(
        self, pieces: queue.SimpleQueue[Piece | Exception | None], cancelled: threading.Event
    ) -> None:
        self._pieces, self._cancelled = pieces, cancelled

    def __next__(self) -> Piece:
        piece = self._pieces.get()
        if piece is None:
            self._pieces.put(None)  # whoever asks again hears the same
            raise StopIteration
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        """Stop the computation."""
        self._cancelled.set()

    def __del__(self) -> None:
        self.close()


def sampling_of(sampling: dict[str, Any]) -> Sampling:
    """Return the engine's settings for a request's sampling settings. Raises Conflict for
    impossible ones."""
    try:
        return Sampling(**sampling)
    except (ValueError, TypeError) as error:
        raise Conflict("the request", str(error), "Change its sampling settings") from None
