"""Rows for an encoder that judges: the rendered prompt and the answer as its tokenizer encodes a
pair of texts.

Everything else is the prompt builder's (prompt.py): rendering, dropping the oldest turns, refusing.
An answer ends with the separator of the pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine.messages import Message
from thumbwheel.engine.prompt import Fitted, PromptBuilder, TargetText, TokenRow
from thumbwheel.models.template_settings import TemplateSettings


class PairBuilder(PromptBuilder):
    """`longest` is the most tokens that the encoder has positions for."""

    def __init__(
        self, tokenizer: Any, longest: int, settings: TemplateSettings | None = None
    ) -> None:
        super().__init__(tokenizer, settings=settings)
        self._longest = longest
        if not tokenizer.is_fast:
            raise ModelError(
                "the tokenizer",
                "it cannot tell from which text of a pair a token is",
                "Choose a model with a tokenizer.json",
            )

    def fit(
        self,
        messages: Sequence[Message],
        targets: Sequence[TargetText],
        max_length: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Fitted:
        return super().fit(messages, targets, min(max_length, self._longest), tools)

    def _rows(
        self,
        messages: Sequence[Message],
        targets: Sequence[TargetText],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[TokenRow]:
        text = self._escaped(messages, tools)
        return [self._pair(text, target.text) for target in targets]

    def _pair(self, prompt: str, answer: str) -> TokenRow:
        encoded, sides = self.control_tokens.encode_pair(prompt, self.control_tokens.escape(answer))
        ids = tuple(encoded)
        if 1 not in sides or 0 not in sides:
            empty = "the prompt" if 1 in sides else "the completion"
            raise DataError(empty, "it has no tokens", "Leave it out")
        start = sides.index(1)
        return TokenRow(ids[:start], ids[start:])
