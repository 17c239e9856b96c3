"""The prompt builder: from chat messages to token ids, in one way for training and for serving.

The chat template of the tokenizer with its generation prompt, exactly one BOS where the tokenizer
has one; the completion after the fixed prompt ids, closed by the turn-end token of the template.
Captured token ids win over text. Everything that decides which tokens a model sees and learns is
here; messages.py normalizes messages and holds the fallback templates, training masks losses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.messages import FALLBACKS, Message, normalize, turns
from thumbwheel.engine.render import render_chat, template_of

MARK = "Qx7answerx7Q"
"""An answer to render where the template is asked what follows one; it survives trimming."""
CUT = frozenset({"length", "content_filter"})
"""Finish reasons of answers that the model did not end itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """An answer to learn from: its text, why it ended, and its token ids where they were captured,
    which are used if they decode to the text."""

    text: str
    finish_reason: str | None = None
    captured_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """`boundary_mismatch`: tokenising prompt and completion as one text would have cut the prompt
    differently."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    boundary_mismatch: bool = False
    dropped_turns: int = 0

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of one example over one common prompt, or none and `refused` says why."""

    rows: tuple[TokenRow, ...]
    dropped_turns: int = 0
    refused: str = ""


class PromptBuilder:
    """Builds prompts and rows for one tokenizer.

    A tokenizer without a chat template is given the fallback `fallback_template`
    (messages.FALLBACKS), so that saving the tokenizer saves it; `template_name` says so. `options`
    are passed to the template (`enable_thinking=False`) and are part of `template_hash`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        fallback_template: str = "plain-v1",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if fallback_template not in FALLBACKS:
            raise ModelError(
                f"fallback template {fallback_template!r}",
                "there is none of that name",
                f"Known: {', '.join(FALLBACKS)}",
            )
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self.template_name = "tokenizer"
        if not tokenizer.chat_template:
            tokenizer.chat_template = FALLBACKS[fallback_template]
        for name, text in FALLBACKS.items():
            if tokenizer.chat_template == text:
                self.template_name = name

    @cached_property
    def template_hash(self) -> str:
        """sha256 of the template, its options and the special tokens that it may use."""
        parts = [
            self.tokenizer.get_chat_template(),
            self.options,
            self.tokenizer.bos_token,
            self.tokenizer.eos_token,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def turn_end_ids(self) -> tuple[int, ...]:
        """What the template puts after an answer, up to its first special token; the EOS token
        where it has none."""
        # what follows the answer in a rendered conversation
        conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
        text = self._apply(conversation, None, generation=False)
        after = self._encode(text.rpartition(MARK)[2]) if MARK in text else []
        for index, token in enumerate(after):
            if token in self._special_ids:
                return tuple(after[: index + 1])
        if self.tokenizer.eos_token_id is not None:
            return (int(self.tokenizer.eos_token_id),)
        raise ModelError(
            "the tokenizer",
            "neither its template nor the tokenizer has a token that ends an answer",
            "Set its eos_token",
        )

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens at which generation stops: the end of a turn and EOS."""
        ids = [self.turn_end_ids[-1]]
        eos = self.tokenizer.eos_token_id
        if eos is not None:
            ids.append(int(eos))
        return tuple(dict.fromkeys(ids))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special = {token_id for token_id, token in added.items() if token.special}
        return frozenset(self.tokenizer.all_special_ids) | special

    @cached_property
    def _bos(self) -> int | None:
        """The BOS id, where the tokenizer puts one before a text by itself."""
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None and self.tokenizer("a")["input_ids"][:1] == [bos] else None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The text up to where the model answers, for servers that take text; DataError where the
        template refuses."""
        return self._apply(normalize(messages), tools, generation=True)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The token ids up to where the model answers."""
        return self._with_bos(self._encode(self.render(messages, tools)))

    def row(
        self,
        messages: Sequence[Message],
        completion: str,
        *,
        finish_reason: str | None = None,
        captured_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> TokenRow:
        """Prompt and completion ids; the completion ends with the turn-end token unless it was cut
        (`finish_reason`)."""
        captured = None if captured_ids is None else tuple(captured_ids)
        target = Target(completion, finish_reason, captured)
        return self._rows(messages, [target], tools)[0]

    def fit(
        self,
        messages: Sequence[Message],
        targets: Sequence[Target],
        max_length: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Fitted:
        """Rows of `targets` after one common prompt, the oldest turns dropped until the longest
        fits `max_length`.

        Leading instructions and the last turn are kept and no completion is ever cut; what then
        does not fit, what the template refuses and what has no tokens is refused with the reason,
        never raised.
        """
        try:
            rows = self._rows(messages, targets, tools)
            instructions, groups = turns(messages)
            dropped = 0
            while max(row.length for row in rows) > max_length and len(groups) > 1:
                groups, dropped = groups[1:], dropped + 1
                rows = self._rows([*instructions, *chain.from_iterable(groups)], targets, tools)
        except DataError as error:
            return Fitted((), 0, f"{error.what}: {error.why}")
        if max(row.length for row in rows) > max_length:
            longest = max(rows, key=lambda row: row.length)
            refused = (
                f"a prompt of {len(longest.prompt_ids)} and an answer of "
                f"{len(longest.completion_ids)} tokens exceed {max_length} with every older turn "
                "dropped"
            )
            return Fitted((), 0, refused)
        return Fitted(tuple(replace(row, dropped_turns=dropped) for row in rows), dropped)

    def _rows(
        self,
        messages: Sequence[Message],
        targets: Sequence[Target],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[TokenRow]:
        text = self.render(messages, tools)
        prompt = tuple(self._with_bos(self._encode(text)))
        if not prompt:
            raise DataError("the prompt", "it has no tokens", "Give it a message")
        return [self._target_row(text, prompt, target) for target in targets]

    def _target_row(self, text: str, prompt: tuple[int, ...], target: Target) -> TokenRow:
        if target.captured_ids is not None and self._decode_to(target.captured_ids, target.text):
            ids, mismatch = list(target.captured_ids), False
        else:
            ids, mismatch = self._completion(text, prompt, target.text)
        if target.finish_reason not in CUT and (not ids or ids[-1] not in self.stop_ids):
            ids += self.turn_end_ids
        if not ids:
            raise DataError("the completion", "it has no tokens", "Leave it out")
        return TokenRow(prompt, tuple(ids), mismatch)

    def _decode_to(self, captured: Sequence[int], text: str) -> bool:
        """Whether these ids are that text in this tokenizer; those that another model's tokenizer
        made are not."""
        if not all(0 <= token < len(self.tokenizer) for token in captured):
            return False
        decoded = self.tokenizer.decode(
            list(captured), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return bool(decoded.strip() == text.strip())

    def _completion(
        self, text: str, prompt: tuple[int, ...], completion: str
    ) -> tuple[list[int], bool]:
        """The ids that continue the fixed prompt ids; where one tokenisation would move the border,
        those of the text alone."""
        joint = self._with_bos(self._encode(text + completion))
        if tuple(joint[: len(prompt)]) == prompt:
            return joint[len(prompt) :], False
        return self._encode(completion), True

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]

    def _apply(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool,
    ) -> str:
        variables = {**self.tokenizer.special_tokens_map, **self.options}
        return render_chat(
            template_of(self.tokenizer, tools),
            messages,
            tools,
            generation=generation,
            variables=variables,
        )
