"""What to say to somebody whose table has names that nobody knows: options that name its columns,
by what stands in them.

Not here: what a column is (`mapping.py`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.importers.corrections import is_expected_name
from thumbwheel.importers.marks import kind_of_name, plain, read_mark
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.pairs import NOT_ASKED

ASKED = frozenset({"input", "messages", "prompt", "query", "question", "request", "user"})
ANSWERED = frozenset({"answer", "bot", "completion", "generation", "output", "reply", "response"})
"""Words of names that somebody could name as the prompt, and as the answer."""
NO_TEXT = re.compile(
    r"\d{4}-\d\d-\d\d([T ].*)?|https?://\S*|[0-9a-f]{8}-[0-9a-f-]{20,}|[0-9a-f]{16,}",
    re.IGNORECASE,
)
"""Times, addresses and ids."""
DEEPEST = 4
"""Objects inside of each other in which a text is looked for that somebody could name."""


def column_option(meaning: str, column: str) -> str:
    """Return the option that names a column, as a shell takes it.

    >>> column_option("thumb", "Was it helpful?")
    "--column 'thumb=Was it helpful?'"
    """
    return f"--column {shlex.quote(f'{meaning}={column}')}"


def proposed_options(row: Mapping[str, Any]) -> str:
    """Return the options that name the columns which look like a prompt, an answer and a mark in
    the first row of a table."""
    proposed = proposed_columns(row)
    if "response" not in proposed:
        return "--column prompt=COLUMN --column response=COLUMN --column rating=COLUMN"
    return " ".join(column_option(meaning, name) for meaning, name in proposed.items())


def proposed_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Return meaning -> column, or path into one, for the values that look like a prompt, an answer
    and a mark: by their names, then by their order; sentences before other texts."""
    candidates = _Candidates.of(row)
    texts = candidates.sentences if len(candidates.sentences) > 1 else candidates.texts
    asked = next((name for name in texts if ASKED & _words_of(name)), None)
    answered = [name for name in texts if _is_answered(name)]
    rest = [name for name in texts if name not in (asked, *answered)]
    if asked is None and rest:
        asked = rest.pop(0)
    proposed: dict[str, str] = {}
    if asked is not None:
        proposed["prompt"] = asked
    if answered or rest:
        proposed["response"] = [*answered, *rest][0]
    marks = [name for name in candidates.marks if name not in proposed.values()]
    marks.sort(key=lambda name: kind_of_name(_last(name), in_training_data=True) is None)
    if marks:
        proposed["rating"] = marks[0]
    return proposed


@dataclass
class _Candidates:
    """The paths of a row by what stands there."""

    texts: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Candidates:
        candidates = cls()
        for name, value in _leaves(row):
            is_id = NOT_ASKED.fullmatch(plain(_last(name))) is not None
            if not is_id and not (isinstance(value, str) and NO_TEXT.fullmatch(value.strip())):
                candidates._add(name, value)
        return candidates

    def _add(self, name: str, value: Any) -> None:
        if is_chat(value):
            self.texts.append(name)
            self.sentences.append(name)
            return
        mark = read_mark(value)
        if mark is not None and not mark.says_nothing:
            self.marks.append(name)
        if isinstance(value, str) and (mark is None or mark.thumb is not None):
            self.texts.append(name)
            if mark is None and " " in value.strip():
                self.sentences.append(name)


def _is_answered(name: str) -> bool:
    words = _words_of(name)
    is_of_answer = bool(words & ANSWERED) and not words & ASKED
    return is_of_answer and not is_expected_name(_last(name))


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _words_of(path: str) -> set[str]:
    """Return the words of all keys of a path."""
    return {word for key in path.split(".") for word in plain(key).split("-")}


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every value in objects, and in the first part of lists; a chat is one
    value."""
    inner: Iterable[tuple[Any, Any]] = ()
    if is_chat(value):
        yield path, value
        return
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value[:1])
    else:
        yield path, value
    if depth < DEEPEST:
        for key, part in inner:
            yield from _leaves(part, f"{path}.{key}" if path else str(key), depth + 1)
