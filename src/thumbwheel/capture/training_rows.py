"""Rows of training data as records: what is learned from a chat, and what the marks beside it and
on its messages say.

Such a file says that its answers are good, unless its rows carry marks: then only a mark says so, a
row without one says nothing, and a mark that cannot be read refuses its row. Lives here: which keys
are marks, the turns of a chat, their weights. Not here: what a mark means (`marks.py`), what the
keys of a format are (`sources/`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from thumbwheel.capture.fields import content_text
from thumbwheel.capture.lines import OnPosition, ignore_position
from thumbwheel.capture.marks import MarkColumn, Reading, Scales, kind_of_name, reading_of
from thumbwheel.capture.messages import (
    Messages,
    answer_fields,
    converted,
    with_media,
    without_old_thoughts,
)
from thumbwheel.capture.rowfile import FileRow, read_rows
from thumbwheel.capture.source import Item, JsonLines
from thumbwheel.capture.types import AnyRecord, FeedbackRecord, TraceRecord, Unreadable
from thumbwheel.core.errors import InputError

Row = Mapping[str, Any]
GOOD: dict[str, Any] = {"kind": "label", "name": "good", "value": True}
"""What a file of training data says of an answer without a mark."""
ABOUT = ("metadata", "meta", "extra", "info")
"""Keys of objects about a row, in which marks may stand."""
WEIGHTS = ("weight", "loss", "train")
"""Keys of a message that say whether it is learned from: OpenAI's, ms-swift's, Axolotl's."""

KINDS = ("thumb", "rating", "score")
"""Kinds of marks that a person can name."""
IGNORED = "metadata"
"""How a person says that a key is no mark."""


class MarkAt(NamedTuple):
    """A mark of a row: the key as a person finds it, its kind, its value."""

    key: str
    kind: str
    value: Any


def marks_at(
    row: Row, skip: Collection[str] = (), named: Mapping[str, str] | None = None
) -> Iterator[MarkAt]:
    """The marks of a row, or of a message. `named`: key -> kind of marks that a person named."""
    for key, value in row.items():
        if named and key in named:
            yield MarkAt(key, named[key], value)
            continue
        if key in ABOUT and isinstance(value, dict):
            for name, part in value.items():
                kind = kind_of_name(str(name))
                if kind is not None:
                    yield MarkAt(f"{key}.{name}", kind, part)
            continue
        kind = kind_of_name(key, in_training_data=True)
        if kind is not None and key not in skip:
            yield MarkAt(key, kind, value)


def _all_marks(
    row: Row, skip: Collection[str], named: Mapping[str, str] | None
) -> Iterator[MarkAt]:
    """The marks of a row and of its messages."""
    yield from marks_at(row, skip, named)
    for key in ("messages", "conversations", "completion"):
        messages = row.get(key)
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict):
                yield from marks_at(message, skip, named)


@dataclass(frozen=True)
class RowMarks:
    """How the marks of a file are read, by all of its rows."""

    readings: Mapping[str, Reading] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    """Keys of the format that are no marks."""
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def are_there(self) -> bool:
        """Whether somebody judged answers of the file."""
        return bool(self.readings)

    def signals(self, row: Row) -> list[dict[str, Any]]:
        """What the marks of a row, or of a message, say; raises Unreadable."""
        signals = []
        for mark in marks_at(row, self.skip, self.named):
            reading = self.readings.get(mark.key) or reading_of(mark.key, mark.kind, None)
            signal = reading.signal(mark.value)
            if signal is not None and signal not in signals:
                signals.append(signal)
        return signals


def marks_of_rows(
    rows: Iterable[Row],
    skip: Collection[str] = (),
    scales: Scales | None = None,
    named: Mapping[str, str] | None = None,
) -> RowMarks:
    """The marks of these rows."""
    columns: dict[str, MarkColumn] = {}
    kinds: dict[str, str] = {}
    for row in rows:
        for mark in _all_marks(row, skip, named):
            kinds[mark.key] = mark.kind
            columns.setdefault(mark.key, MarkColumn()).add(mark.value)
    readings = {key: reading_of(key, kinds[key], column, scales) for key, column in columns.items()}
    return RowMarks(readings, frozenset(skip), named or {})


def answered(
    prompt: Messages,
    answer: Row,
    signals: Iterable[Row],
    metadata: Row | None,
    name: str | None = None,
) -> list[AnyRecord]:
    """A trace, whose answer is this message, and its feedback."""
    fields = {"id": name, "input": prompt, "metadata": dict(metadata) if metadata else None}
    trace = TraceRecord.model_validate(fields | answer_fields(answer))
    targets = [trace.as_target()]
    feedback = [FeedbackRecord.model_validate({"targets": targets, **signal}) for signal in signals]
    return [trace, *feedback]


def messages_of_chat(row: Row, raw_messages: Iterable[Row]) -> list[tuple[dict[str, Any], Row]]:
    """(message, what it was made of) of a chat, with the row's system text and files."""
    pairs: list[tuple[dict[str, Any], Row]] = []
    for raw in raw_messages:
        pairs += [(message, raw) for message in converted(raw)]
    system = content_text(row.get("system") or row.get("system_prompt"))
    if system and pairs and pairs[0][0]["role"] not in ("system", "developer"):
        pairs.insert(0, ({"role": "system", "content": system}, {}))
    messages = with_media([message for message, _ in pairs], row)
    return list(zip(messages, (raw for _, raw in pairs), strict=True))


def chat_records(
    row: Row,
    raw_messages: Iterable[Row],
    marks: RowMarks,
    metadata: Row | None,
    name: str | None = None,
) -> list[AnyRecord]:
    """A trace for every answer that a trainer would learn from, and for the last one. Marks of the
    row are about the last answer, marks of a message about that message. Raises Unreadable."""
    pairs = messages_of_chat(row, raw_messages)
    messages = [message for message, _ in pairs]
    turns = []
    for index, message in enumerate(messages):
        is_asked = any(before["role"] in ("user", "tool") for before in messages[:index])
        if message["role"] == "assistant" and is_asked:
            turns.append(index)
    if not turns:
        raise Unreadable("its messages hold no answer of the assistant to a question")
    said_of_row = marks.signals(row)
    records: list[AnyRecord] = []
    for index in turns:
        message, raw = pairs[index]
        is_last = index == turns[-1]
        signals: list[Any] = marks.signals(raw)
        if is_last:
            signals += [signal for signal in said_of_row if signal not in signals]
        is_learned = _weight(raw) != 0 and not marks.are_there
        if not is_last and not signals and not is_learned:
            continue
        if not is_last and not _is_plain(message):
            continue
        if not signals and is_learned:
            signals = [GOOD]
        if signals and not message.get("tool_calls") and not message["content"]:
            raise Unreadable("its last answer is empty")
        trace_name = name if is_last or name is None else f"{name}/{index}"
        prompt = without_old_thoughts(messages[:index])
        records += answered(prompt, message, signals, metadata, trace_name)
    return records


def _weight(message: Row) -> float:
    """1 where a message is learned from, 0 where it is not."""
    for key in WEIGHTS:
        weight = message.get(key)
        if isinstance(weight, bool | int | float):
            return float(weight)
        if weight is not None:
            raise Unreadable(f"{key} {weight!r} of a message is no number")
    return 1.0


def _is_plain(message: Row) -> bool:
    """Whether a message in the middle of a chat is a text, which can be an answer of its own."""
    return (
        isinstance(message["content"], str)
        and bool(message["content"])
        and (not message.get("tool_calls"))
    )


class MarkedParse(Protocol):
    """The records of a row, with the marks of its file; raises Unreadable or ValidationError."""

    def __call__(self, row: dict[str, Any], marks: RowMarks) -> list[AnyRecord]: ...


@dataclass(frozen=True)
class TrainingRows(JsonLines):
    """A source of training data. `skip` are keys of the format that are called like marks; a person
    may name others (`--column thumb=KEY`, `--column metadata=KEY` for what is no mark)."""

    skip: frozenset[str] = frozenset()
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)
    parse_marked: MarkedParse | None = None

    @classmethod
    def of(
        cls,
        parse: MarkedParse,
        claims: Callable[[Row], bool],
        example: str,
        about: str = "",
        skip: Collection[str] = (),
    ) -> TrainingRows:
        """The source of these rows; a row that is read alone has its own marks only."""

        def parse_alone(row: dict[str, Any]) -> list[AnyRecord]:
            return parse(row, marks_of_rows([row], skip))

        return cls(
            parse_alone, claims, example, about=about, skip=frozenset(skip), parse_marked=parse
        )

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> TrainingRows:
        """The same, with what a person says about its marks."""
        unknown = columns.keys() - {*KINDS, IGNORED}
        if unknown:
            meaning = sorted(unknown)[0]
            raise InputError(
                f"--column {meaning}={columns[meaning]}",
                "the rows of this source have their own keys; only their marks can be named",
                f"Known: {', '.join(KINDS)}, {IGNORED}; or read it as a table: thumbwheel import "
                "csv FILE",
            )
        return replace(self, columns=columns, scales=scales)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read the marks of all rows first."""
        rows = (row.row for row in read_rows(path, ignore_position) if row.row is not None)
        yield from self.marked_items(read_rows(path, on_position), rows)

    def marked_items(self, rows: Iterator[FileRow], all_rows: Iterable[Row]) -> Iterator[Item]:
        """The items of `rows`, whose marks are read by `all_rows`."""
        assert self.parse_marked is not None  # noqa: S101 - set by `of`
        named = {key: kind for kind, key in self.columns.items() if kind in KINDS}
        ignored = [key for meaning, key in self.columns.items() if meaning == IGNORED]
        marks = marks_of_rows(all_rows, {*self.skip, *ignored}, self.scales, named)
        yield from self.items(rows, partial(self.parse_marked, marks=marks))
