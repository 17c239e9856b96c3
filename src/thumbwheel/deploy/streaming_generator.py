"""A base with several models over it, each of them an adapter or the base itself, that speaks token
by token.

The parts are those that trained and evaluated: the prompt builder, the decoder, the draw of tokens,
the ending; so what is served is what was judged. One answer at a time is computed. Does not live
here: HTTP (embedded.py), processes (processes.py).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import Conflict, DataError, ModelError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.engine import decode
from thumbwheel.engine.load import Dtype, load_base, quiet_transformers
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.rollout import Sampling, StopCondition
from thumbwheel.engine.sample_token import TokenSampler

BROKEN = "\ufffd"
"""Stands at the end of a text whose last character has not all of its bytes yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer; `text` is what it adds to what can be shown, `top` the most likely
    tokens with their log-probabilities."""

    id: int
    logp: float
    top: tuple[tuple[int, float], ...]
    text: str
    finish: str | None = None


class StreamingGenerator:
    """The base in folder `base` and the models over it."""

    def __init__(self, base: str, dtype: Dtype = "auto", device: str = "cpu") -> None:
        model, self.tokenizer = load_base(base, dtype, local_only=True)
        self._model: Any = model.to(device)
        self.builder = PromptBuilder(self.tokenizer)
        self.vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self.room = decode.context_of(self._model)
        self._longest = max((len(token) for token in self.tokenizer.get_vocab()), default=1)
        self._start, _ = decode.choose(self._model)
        self._adapters: dict[str, str | None] = {}
        self._loaded = 0
        self._busy = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Of the models."""
        return list(self._adapters)

    def load(self, name: str, adapter: Path | None) -> None:
        """Let `name` be the base with `adapter`, or the base; raises ModelError for one that does
        not fit."""
        with self._busy:
            inner = None if adapter is None else self._attach(adapter)
            self._drop(self._adapters.get(name))
            self._adapters[name] = inner

    def unload(self, name: str) -> None:
        """Forget `name`; nothing to do where it is not known."""
        with self._busy:
            self._drop(self._adapters.pop(name, None))

    def check(self, name: str) -> None:
        """Raise NotFound for a model that is not here."""
        if name not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise NotFound(
                f"model {name!r}",
                "it is not served here",
                f"Known: {known}.{nearest(name, self._adapters)}",
            )

    def check_length(self, *texts: Any) -> None:
        """Raise DataError for texts (any JSON) that cannot fit into the context, before a tokenizer
        spends time and memory on them."""
        most = self.room * self._longest
        length = 0
        waiting: list[Any] = list(texts)
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting += [*value, *value.values()]
            elif isinstance(value, list):
                waiting += value
            length += len(value) if isinstance(value, str) else 1
            if length > most:
                why = (
                    f"it has more than {most} characters, which are more than the model's context "
                    f"of {self.room} tokens"
                )
                raise DataError("the prompt", why, "Shorten it")

    def speak(self, name: str, prompt: Sequence[int], sampling: Sampling, tops: int = 0) -> Speech:
        """The tokens of one answer as they come. It goes on being computed while nobody reads, and
        ends when the reader leaves."""
        self.check(name)
        if not prompt or len(prompt) >= self.room:
            why = f"it has {len(prompt)} tokens and the model's context {self.room}"
            raise DataError("the prompt", why, "Shorten it" if prompt else "Give it a message")
        sampling = replace(
            sampling, max_new_tokens=min(sampling.max_new_tokens, self.room - len(prompt))
        )
        pieces: queue.SimpleQueue[Piece | Exception | None] = queue.SimpleQueue()
        left = threading.Event()
        worker = threading.Thread(
            target=self._work, args=(name, tuple(prompt), sampling, tops, pieces, left), daemon=True
        )
        worker.start()
        return Speech(pieces, left)

    def _work(
        self,
        name: str,
        prompt: tuple[int, ...],
        sampling: Sampling,
        tops: int,
        pieces: Any,
        left: threading.Event,
    ) -> None:
        try:
            with self._busy:
                if left.is_set():
                    return
                for piece in self._pieces(name, prompt, sampling, tops):
                    if left.is_set():
                        break
                    pieces.put(piece)
        except Exception as error:  # noqa: BLE001 - the reader hears it
            pieces.put(error)
        pieces.put(None)

    def _pieces(
        self, name: str, prompt: tuple[int, ...], sampling: Sampling, tops: int
    ) -> Iterator[Piece]:
        import torch

        with torch.inference_mode(), self._as(name):
            state = self._start(self._model, [prompt])
            draw, ending, shown = (
                TokenSampler.of(sampling, [(prompt, 0)], state.logits.device),
                StopCondition(sampling, self.tokenizer),
                _Shown(sampling),
            )
            ids: list[int] = []
            while True:
                tokens, _ = draw.tokens(state.logits, len(ids))
                logps = state.logits[0].float().log_softmax(-1)
                ids.append(int(tokens[0]))
                ended = ending.reached(ids)
                finish = (
                    "stop" if ended else "length" if len(ids) == sampling.max_new_tokens else None
                )
                best = (
                    zip(
                        *(one.tolist() for one in reversed(logps.topk(min(tops, len(logps))))),
                        strict=True,
                    )
                    if tops
                    else ()
                )
                yield Piece(
                    ids[-1],
                    float(logps[ids[-1]]),
                    tuple(best),
                    shown.new(ending.text(ids, ended), finish is not None),
                    finish,
                )
                if finish:
                    return
                state.advance(tokens)

    def _as(self, name: str) -> Any:
        inner = self._adapters[name]
        if inner is not None:
            self._model.set_adapter(inner)
            return nullcontext()
        return (
            self._model.disable_adapter() if hasattr(self._model, "peft_config") else nullcontext()
        )

    def _attach(self, adapter: Path) -> str:
        from peft import PeftModel

        self._loaded += 1
        inner = f"a{self._loaded}"  # a name of ours: PEFT takes none with a dot
        try:
            with quiet_transformers():
                if hasattr(self._model, "peft_config"):
                    self._model.load_adapter(str(adapter), adapter_name=inner, is_trainable=False)
                else:
                    self._model = PeftModel.from_pretrained(
                        self._model, str(adapter), adapter_name=inner
                    )
        except (ValueError, RuntimeError, KeyError, TypeError, OSError) as error:
            self._drop(inner)
            why = " ".join(str(error).split())[:300]
            raise ModelError(
                f"adapter {str(adapter)!r}", why, "Serve it over the base that it was trained on"
            ) from None
        self._model.eval()
        return inner

    def _drop(self, inner: str | None) -> None:
        if inner is not None:
            with suppress(ValueError, AttributeError):
                self._model.delete_adapter(inner)
                # PEFT goes on naming the last one as active, and then finds nothing under that name
                if not self._model.peft_config:
                    self._model = self._model.unload()


class _Shown:
    """What of a growing text has been shown: never half a character, never what may be the
    beginning of a stop text."""

    def __init__(self, sampling: Sampling) -> None:
        self._held = max((len(text) for text in sampling.stop), default=1) - 1
        self._done = 0

    def new(self, text: str, last: bool) -> str:
        """What may be shown besides; of the `last` text all of it."""
        whole = text if last else text.rstrip(BROKEN)[: max(0, len(text) - self._held)]
        part, self._done = whole[self._done :], max(self._done, len(whole))
        return part


class Speech(Iterator[Piece]):
    """The pieces of an answer while it is computed; `close`, from any thread, ends the computing."""

    def __init__(
        self, pieces: queue.SimpleQueue[Piece | Exception | None], left: threading.Event
    ) -> None:
        self._pieces, self._left = pieces, left

    def __next__(self) -> Piece:
        piece = self._pieces.get()
        if piece is None:
            self._pieces.put(None)  # whoever asks again hears the same
            raise StopIteration
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        """The reader is gone."""
        self._left.set()

    def __del__(self) -> None:
        self.close()


def finite(sampling: dict[str, Any]) -> Sampling:
    """The settings of a request as the engine has them; raises Conflict for impossible ones."""
    try:
        return Sampling(**sampling)
    except (ValueError, TypeError) as error:
        raise Conflict("the request", str(error), "Change its sampling settings") from None
