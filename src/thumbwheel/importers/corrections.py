"""Better answers beside an answer: what somebody wrote in its place (`edited_response`), what was
expected of it (`expected_output`), and texts that may be either (`human_answer`).

An answer that somebody corrected is no good one, and one that differs from the expected answer is
not known to be one. Not here: marks (`marks.py`), cases of an evaluation (`sources/`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.marks import LONGEST_WORD, plain, read_mark
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.types import Unreadable

EDITED = frozenset(
    {
        "amended",
        "corrected",
        "correction",
        "edited",
        "fixed",
        "improved",
        "revised",
        "rewrite",
        "rewritten",
    }
)
"""Words for an answer that somebody changed."""
BETTER = frozenset(
    {"better", "edit", "expected", "fix", "ideal", "suggested", "suggestion", *EDITED}
)
"""The same words, and those that say so only beside a word for an answer."""
ANSWER = frozenset(
    {"answer", "completion", "content", "generation", "message", "output", "reply", "response"}
)
"""Words for an answer."""
WRITERS = frozenset(
    {"agent", "annotator", "assistant", "bot", "expert", "final", "human", "manual", "model"}
)
"""Words beside them that say whose it is."""
RIGHT = frozenset(
    {"correct", "expected", "gold", "golden", "ideal", "reference", "right", "target", "true"}
)
"""Words for what an answer should have been, beside a word for an answer."""
EXPECTED = frozenset(
    {
        "expected",
        "gold",
        "golden",
        "ground-truth",
        "human-reference",
        "ideal",
        "reference",
        "target",
    }
)
"""Names of what an answer should have been, without such a word."""
REPLIES = frozenset({"answer", "completion", "reply", "response"})
"""Words that can only mean what a model or a person answers."""
NOT_INSTEAD = frozenset(
    {"api", "client", "customer", "earlier", "example", "last", "previous", "prior", "tool", "user"}
)
"""Words that say that an answer is none to the question of its row."""
VERSION = re.compile(r"v?\d{1,2}|[a-z]|old|new|text")
"""Words after that for an answer, of which there are then several."""


@lru_cache(maxsize=1024)
def is_correction_name(name: str) -> bool:
    """Return whether a text of this name is a better answer than the one beside it.

    >>> is_correction_name("humanEditedResponse"), is_correction_name("better_answer")
    (True, True)
    >>> is_correction_name("edited_at"), is_correction_name("ideal"), is_correction_name("answer")
    (False, False, False)
    """
    if is_expected_name(name):
        return False
    words = set(plain(name).split("-"))
    rest = words - BETTER - WRITERS - {"text"}
    if rest - ANSWER:
        return False
    return bool(words & EDITED) or (bool(words & BETTER) and bool(rest or words & {"human"}))


def correction_in(name: str, value: Any) -> str | None:
    """Return the better answer under a key: a text, or one message of the assistant; None if it is
    none. A word of an opinion is none."""
    if not is_correction_name(name):
        return None
    text = text_in(value)
    if text is None:
        return None
    is_word = len(text) <= LONGEST_WORD and read_mark(text) is not None
    return None if is_word else text


def _last_content(messages: list[dict[str, Any]]) -> str | None:
    """Return the text of the last message."""
    try:
        return content_text(messages[-1].get("content", messages[-1].get("value")))
    except Unreadable:
        return None


@lru_cache(maxsize=1024)
def is_expected_name(name: str) -> bool:
    """Return whether a text of this name is what the answer beside it should have been.

    >>> is_expected_name("goldAnswer"), is_expected_name("ground_truth"), is_expected_name("target")
    (True, True, True)
    >>> is_expected_name("expected_response"), is_expected_name("correct")
    (False, False)
    """
    word = plain(name)
    if word in EXPECTED:
        return True
    words = set(word.split("-"))
    if words == {"expected", "response"}:
        return False  # a person's edit, in the tables of raters
    return bool(words & RIGHT and words & ANSWER) and words <= RIGHT | ANSWER


def differs_from_expected(
    row: Mapping[str, Any],
    answer: Any,
    skip: Collection[str] = (),
    named: Collection[str] = (),
) -> str | None:
    """Return the key under which a row says what its answer should have been, if the answer does
    not hold it; else None. `skip` are keys that say nothing of the answer, `named` further keys of
    the right answer."""
    if not isinstance(answer, str):
        return None
    for name, value in row.items():
        if name in skip or not (name in named or is_expected_name(str(name))):
            continue
        expected = text_in(value)
        if expected and _folded(expected) not in _folded(answer):
            return str(name)
    return None


def other_answer(row: Mapping[str, Any], answer: Any, skip: Collection[str] = ()) -> str | None:
    """Return the key of a text that may be another answer to the same question, which nobody says
    to be better or worse; None if there is none."""
    if not isinstance(answer, str):
        return None
    for name, value in row.items():
        if name in skip or not may_be_other_answer(str(name)):
            continue
        text = text_in(value)
        if not text or not is_sentence(text):
            continue
        if _folded(answer) not in _folded(text) and _folded(text) not in _folded(answer):
            return str(name)
    return None


@lru_cache(maxsize=1024)
def may_be_other_answer(name: str) -> bool:
    """Return whether a text of this name may be another answer than the one beside it.

    >>> may_be_other_answer("human_answer"), may_be_other_answer("response_v2")
    (True, True)
    >>> may_be_other_answer("response_format"), may_be_other_answer("previous_answer")
    (False, False)
    """
    if is_expected_name(name) or is_correction_name(name):
        return False
    words = plain(name).split("-")
    while len(words) > 1 and VERSION.fullmatch(words[-1]):
        words.pop()
    return words[-1] in REPLIES and not NOT_INSTEAD.intersection(words)


def is_sentence(text: str) -> bool:
    """Return whether somebody wrote more than a word or two."""
    return len(text) > 20 or text.strip().count(" ") > 1


def text_in(value: Any) -> str | None:
    """Return a text, or that of the last message of a chat; None for anything else, and for a text
    without words."""
    opened = unpacked(value)
    messages = [opened] if isinstance(opened, dict) else opened
    if is_chat(messages):
        value = _last_content(messages)
    return value if isinstance(value, str) and value.strip() else None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
