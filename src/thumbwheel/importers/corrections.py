"""Better answers beside an answer: what somebody wrote in its place (`edited_response`), and what
was expected of it (`expected_output`).

An answer that somebody corrected is no good one, and one that differs from the expected answer is
not known to be one. Not here: marks (`marks.py`), cases of an evaluation (`sources/`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
EXPECTED = frozenset(
    {
        "expected",
        "expected-answer",
        "expected-output",
        "gold-answer",
        "gold-response",
        "golden-answer",
        "ideal",
        "reference-answer",
        "reference-output",
        "reference-response",
    }
)
"""Names of what an answer should have been."""


@lru_cache(maxsize=1024)
def is_correction_name(name: str) -> bool:
    """Return whether a text of this name is a better answer than the one beside it.

    >>> is_correction_name("humanEditedResponse"), is_correction_name("better_answer")
    (True, True)
    >>> is_correction_name("edited_at"), is_correction_name("ideal"), is_correction_name("answer")
    (False, False, False)
    """
    if plain(name) in EXPECTED:
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
    opened = unpacked(value)
    messages = [opened] if isinstance(opened, dict) else opened
    if is_chat(messages):
        value = _last_content(messages)
    if not isinstance(value, str) or not value.strip():
        return None
    is_word = len(value) <= LONGEST_WORD and read_mark(value) is not None
    return None if is_word else value


def _last_content(messages: list[dict[str, Any]]) -> str | None:
    """Return the text of the last message."""
    try:
        return content_text(messages[-1].get("content", messages[-1].get("value")))
    except Unreadable:
        return None


def differs_from_expected(row: Mapping[str, Any], answer: Any) -> bool:
    """Return whether a row says what its answer should have been, and the answer does not hold
    it."""
    if not isinstance(answer, str):
        return False
    for name, value in row.items():
        if plain(str(name)) not in EXPECTED or not isinstance(value, str) or not value.strip():
            continue
        if _folded(value) not in _folded(answer):
            return True
    return False


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
