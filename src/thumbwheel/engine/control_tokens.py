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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from thumbwheel.core.errors import DataError, ModelError

OF_ANSWERS = re.compile("think|thought|reason|(?:tool|function).?calls?", re.IGNORECASE)
"""Added tokens that a model writes in its answer: around its thoughts and its calls of tools."""
PRIVATE_PLANE = 0xF0000
"""First code point of a plane without characters; no template and no normalizer changes them."""


def _private_text() -> str:
    """Return three random private characters, which no client can guess."""
    return "".join(chr(PRIVATE_PLANE + secrets.randbelow(0xFFFD)) for _ in range(3))


ESCAPE = _private_text()
"""Stands after the first character of a control token that is text."""
OPEN, CLOSE = _private_text(), _private_text()
"""Around the number of a control token in the text for the guarded tokenizer."""
SEPARATORS = ("\u200b", "\u2060", " ")
"""Characters that can stand inside a control token so that it is none, the least visible first. A
tokenizer may leave some of them out."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise ModelError where the library of tokenizers panics, as it does when a pattern of a
    tokenizer reaches the limit of its matcher. The panic itself is no Exception, and would end a
    server."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            "the base's tokenizer",
            f"it breaks off on this text ({reason})",
            "Shorten the text, or use a base with another tokenizer",
        ) from None


def unescape(text: str) -> str:
    """Remove the escapes from `text`."""
    return text.replace(ESCAPE, "")


def _may_be_mark(token: str) -> bool:
    """Return whether an added token may be a mark around messages: no word, not one of an answer.

    >>> _may_be_mark("<|im_end|>"), _may_be_mark("</think>")
    (True, False)
    """
    return not (token.isalnum() or OF_ANSWERS.search(token))


def _rename_pieces(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename the pieces of a vocabulary that are control tokens, so that no text is cut into one,
    and leave out the merges that make one."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # of Unigram, with scores
        for piece in vocabulary:
            piece[0] = names.get(piece[0], piece[0])
    elif isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): id for piece, id in vocabulary.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        merges = []
        for merge in model["merges"]:
            first, second = merge.split(" ") if isinstance(merge, str) else merge
            if not names.keys() & {first, second, first + second.removeprefix(prefix)}:
                merges.append(merge)
        model["merges"] = merges


def _never(mark: str) -> bool:
    return False


class ControlTokens:
    """The control tokens of one tokenizer: those that it marks as special, and other added tokens
    that the chat template writes around messages, as `is_around_messages` says. Many tokenizers
    have the marks of a turn without the flag."""

    def __init__(self, tokenizer: Any, is_around_messages: Callable[[str], bool] = _never) -> None:
        self._tokenizer = tokenizer
        self._is_around_messages = is_around_messages

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text -> id. A token of one character is no control token but punctuation."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        ids = {}
        for token_id, token in added.items():
            if len(token.content.strip()) < 2:
                continue
            may_be_mark = not token.special and _may_be_mark(token.content)
            if token.special or (may_be_mark and self._is_around_messages(token.content)):
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

    @cached_property
    def separator(self) -> str:
        """A character that stands behind the first one of a control token in texts for programs
        that read control tokens in every text. The tokens of such a text are not those of
        `encode`, but none of them is a control token."""
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        control = set(self.ids.values()) - {unknown}
        for separator in SEPARATORS:
            split = [token[0] + separator + token[1:] for token in self.ids]
            encoded = self._tokenizer(split, add_special_tokens=False)["input_ids"] if split else []
            if not any(control.intersection(token_ids) for token_ids in encoded):
                return separator
        return SEPARATORS[-1]

    def encode(self, text: str) -> list[int]:
        """Return the ids of an escaped text, without BOS. Raises DataError if the tokenizer cannot
        write a control token as characters, ModelError if it breaks off on the text."""
        if ESCAPE not in text:
            with panics_as_errors():
                return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        tokenizer, original = self._guarded
        with panics_as_errors():
            encoding = tokenizer.encode(self._numbered(text), add_special_tokens=False)
        ids = [original.get(token, token) for token in encoding.ids]
        self._check(ids, len(self._pattern.findall(text)))
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int | None]]:
        """Return (ids of two escaped texts as the tokenizer joins them, for each id the number of
        its text, or None)."""
        if ESCAPE not in first + second:
            with panics_as_errors():
                encoded = self._tokenizer(first, second)
            return list(encoded["input_ids"]), list(encoded.sequence_ids(0))
        tokenizer, original = self._guarded
        with panics_as_errors():
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
        _rename_pieces(definition["model"], self._names)
        guarded = Tokenizer.from_str(json.dumps(definition))
        guarded.no_truncation()
        guarded.no_padding()
        original: dict[int, int] = {}
        for token in definition["added_tokens"]:
            guarded_id = guarded.token_to_id(token["content"])
            if guarded_id is not None:
                original[guarded_id] = token["id"]
        return guarded, original
