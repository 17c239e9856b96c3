"""Keeps control tokens out of texts that people and models write.

A chat template separates turns by control tokens (`<|im_end|>`, `</s>`). The same characters inside
a message are text: read as a control token they would end the turn and begin another one. So every
occurrence in a message is escaped before the template sees it, and encoded as its characters.
Texts without one are encoded as the tokenizer does it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from thumbwheel.core.errors import DataError

PRIVATE_PLANE = 0xF0000
"""First code point of a plane without characters; no template and no normalizer changes them."""


def _private_text() -> str:
    """Return three random private characters, which no client can guess."""
    return "".join(chr(PRIVATE_PLANE + secrets.randbelow(0xFFFD)) for _ in range(3))


ESCAPE = _private_text()
"""Stands after the first character of a control token that is text."""
OPEN, CLOSE = _private_text(), _private_text()
"""Around the number of a control token in the text for the guarded tokenizer."""


def unescape(text: str) -> str:
    """Remove the escapes from `text`."""
    return text.replace(ESCAPE, "")


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text -> id. A token of one character is no control token but punctuation."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        ids = {}
        for token_id, token in added.items():
            if token.special and len(token.content.strip()) > 1:
                ids[token.content] = int(token_id)
        return ids

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches the longest token first, as tokenizers do; without tokens it matches nothing."""
        longest_first = sorted(self.ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def occur_in(self, value: Any) -> bool:
        """Return whether a string inside `value` (JSON) contains a control token."""
        return bool(self.escape(value) != value)

    def escape(self, value: Any) -> Any:
        """Return a copy of `value` (JSON) with every control token in its strings escaped."""
        if isinstance(value, str):
            # removing one match can complete another: tokens "ab" and "bc" in "abc"
            while self._pattern.search(value):
                value = self._pattern.sub(lambda match: match[0][0] + ESCAPE + match[0][1:], value)
            return value
        if isinstance(value, Mapping):
            return {self.escape(key): self.escape(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(part) for part in value]
        return value

    def encode(self, text: str) -> list[int]:
        """Return the ids of an escaped text, without BOS. Raises DataError if the tokenizer cannot
        write a control token as characters."""
        if ESCAPE not in text:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        tokenizer, original = self._guarded
        encoding = tokenizer.encode(self._numbered(text), add_special_tokens=False)
        ids = [original.get(token, token) for token in encoding.ids]
        self._check(ids, len(self._pattern.findall(text)))
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int | None]]:
        """Return (ids of two escaped texts as the tokenizer joins them, for each id the number of
        its text, or None)."""
        if ESCAPE not in first + second:
            encoded = self._tokenizer(first, second)
            return list(encoded["input_ids"]), list(encoded.sequence_ids(0))
        tokenizer, original = self._guarded
        encoding = tokenizer.encode(self._numbered(first), self._numbered(second))
        ids = [original.get(token, token) for token in encoding.ids]
        sides = list(encoding.sequence_ids)
        of_texts = [token for token, side in zip(ids, sides, strict=True) if side is not None]
        self._check(of_texts, len(self._pattern.findall(first + second)))
        return ids, sides

    def _check(self, ids: list[int], expected: int) -> None:
        """Raise DataError for more control tokens than the template wrote. A vocabulary may have
        the characters of one as an ordinary piece, with the same id."""
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        control = set(self.ids.values()) - {unknown}
        if sum(token in control for token in ids) > expected:
            raise DataError(
                "a text with control tokens",
                "this tokenizer cannot write them as text",
                "Remove them from the text",
            )

    def _numbered(self, text: str) -> str:
        """Replace the control tokens of the template by their numbers, then remove the escapes."""
        names = self._names
        return unescape(self._pattern.sub(lambda match: names[match[0]], text))

    @cached_property
    def _names(self) -> dict[str, str]:
        """Text of a control token -> its name in the guarded tokenizer."""
        return {text: f"{OPEN}{number}{CLOSE}" for number, text in enumerate(self.ids)}

    @cached_property
    def _guarded(self) -> tuple[Any, dict[int, int]]:
        """A copy of the tokenizer in which control tokens have names that no text contains, and
        (its id -> the tokenizer's) for added tokens."""
        from tokenizers import Tokenizer

        if not getattr(self._tokenizer, "is_fast", False):
            raise DataError(
                "a text with control tokens",
                "this tokenizer cannot write them as text",
                "Choose a model with a tokenizer.json, or remove them from the text",
            )
        definition = json.loads(self._tokenizer.backend_tokenizer.to_str())
        for token in definition["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        guarded = Tokenizer.from_str(json.dumps(definition))
        guarded.no_truncation()
        guarded.no_padding()
        original: dict[int, int] = {}
        for token in definition["added_tokens"]:
            guarded_id = guarded.token_to_id(token["content"])
            if guarded_id is not None:
                original[guarded_id] = token["id"]
        return guarded, original
