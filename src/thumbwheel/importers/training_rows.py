"""Rows of training data as records: what is learned from a chat, and what the marks beside it and
on its messages say.

Such a file says that its answers are good, unless its rows carry marks: then only a mark says so, a
row without one says nothing, and a mark that cannot be read refuses its row. Lives here: which keys
are marks, the turns of a chat. Not here: what a mark means (`marks.py`), whether a trainer learns
from a message (`loss_marks.py`), what the keys of a format are (`sources/`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from thumbwheel.core.errors import InputError
from thumbwheel.importers.corrections import (
    correction_in,
    differs_from_expected,
    is_expected_name,
    is_sentence,
    may_be_other_answer,
    other_answer,
    text_in,
)
from thumbwheel.importers.fields import content_text
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.loss_marks import (
    failure_in,
    is_message_learned,
    is_row_learned,
    loss_marks,
)
from thumbwheel.importers.marks import (
    SEVERAL,
    MarkColumn,
    Reading,
    Scales,
    is_opinion_word,
    is_unpressed,
    kind_of_name,
    may_be_of_answer,
    may_sort_answers,
    number_of_scale,
    plain,
    reading_of,
)
from thumbwheel.importers.messages import (
    Messages,
    answer_fields,
    broken_call,
    converted,
    is_chat,
    role_of,
    unfolded,
    with_media,
    without_old_thoughts,
)
from thumbwheel.importers.rowfile import FileRow, read_rows
from thumbwheel.importers.source import DEFAULT_REASON, Item, JsonLines
from thumbwheel.importers.types import AnyRecord, FeedbackRecord, Records, TraceRecord, Unreadable

Row = Mapping[str, Any]
GOOD: dict[str, Any] = {"kind": "label", "name": "good", "value": True}
"""What a file of training data says of an answer without a mark."""
KINDS = ("thumb", "rating", "score")
"""Kinds of marks that a person can name."""
CORRECTION, REFERENCE = "correction", "reference"
"""How a person says that a key holds a better answer, or what an answer should have been."""
IGNORED = "metadata"
"""How a person says that a key is no mark."""


TAGS = ("tags", "tag", "flags")
"""Keys of lists in which an opinion may stand beside other words."""
NOT_OF_ANSWER = frozenset(
    {
        "tools",
        "functions",
        "function_call",
        "tool_calls",
        "tool_choice",
        "response_format",
        "schema",
        "parameters",
        "usage",
    }
)
"""Keys of objects in which no mark stands."""
KINDS_IN = ("type", "name")
"""Keys of an object called feedback under which people write thumbs_down."""
DEEPEST = 3
"""Objects inside of each other in which marks are looked for."""
HOLDERS = ("annotation", "annotations", "evaluations", "reviews", "review")
"""Keys of objects in which marks may stand, and which may hold anything else."""
POINTERS = frozenset(
    {
        "message-index",
        "message-id",
        "message",
        "turn",
        "turn-index",
        "turn-id",
        "index",
        "target-message-id",
    }
)
"""Keys of a mark that say which message of a chat it is about."""
MOST_PROMPT_MESSAGES = 250_000
"""Messages in the prompts of all answers of one chat. Each answer has all messages before it, so
their number is quadratic: a chat of 1,000 messages has as many."""
NOT_HEARD = frozenset({"system", "developer", "tool", "function"})
"""Roles at whose messages no opinion stands: a tool says `success` of itself."""
UNEXPECTED = (
    "the answer differs from {key} beside it and is not learned as good; if {key} says nothing of "
    "the answer: --column metadata={key}"
)
FAILED = (
    "its {key} says that the answer failed, and it is not learned as good; if {key} says nothing "
    "of the answer: --column metadata={key}"
)
UNCLEAR = (
    "its key {key} may be another answer to the same question. Say what it is: --column "
    "correction={key} (somebody wrote it in place of the other), reference={key} (the right "
    "answer), or metadata={key} (it is nothing of the kind); where the other is the worse one, "
    "write the two as chosen and rejected"
)
CONTENTS = frozenset(
    {
        "role",
        "from",
        "content",
        "value",
        "text",
        "parts",
        "name",
        "tool_calls",
        "function_call",
        "weight",
    }
)
"""Keys of a message that are no marks."""
FORMAT = frozenset(
    {
        "prompt",
        "completion",
        "completions",
        "instruction",
        "input",
        "output",
        "system",
        "text",
        "response",
        "answer",
        "question",
        "query",
        "chosen",
        "rejected",
        "preferred_output",
        "non_preferred_output",
        "rejected_response",
        "rejected_messages",
        "reward_model",
    }
)
"""Keys of rows that are no marks, whatever they hold."""


ANSWERED = FORMAT - {"answer", "response"}
"""Keys of rows with one answer that are no other answer than that."""
SIDES = frozenset({"chosen", "rejected"})
"""Keys of the answers of a pair; true and false there are marks."""
DECISIONS = frozenset({"accept", "reject", "ignore"})
"""What people decide in Prodigy, whose key for it is `answer`."""


class MarkAt(NamedTuple):
    """A mark of a row: the key as a person finds it, its kind, its value."""

    key: str
    kind: str
    value: Any


def marks_at(
    row: Row, skip: Collection[str] = (), named: Mapping[str, str] | None = None
) -> Iterator[MarkAt]:
    """Yield the marks of a row, or of a message. `named` maps keys to the kinds of marks that a
    person named, or that their values show."""
    for key, value in row.items():
        if named and key in named:
            yield from _marks_under(key, named[key], value, skip)
        elif key not in skip and _is_decision(key, value):
            yield MarkAt(key, "thumb", value)
        elif key in skip or _is_of_format(key, value):
            continue
        elif key in TAGS and isinstance(value, list):
            yield from (MarkAt(key, "thumb", tag) for tag in value if is_opinion_word(tag))
        elif correction_in(key, value) is not None or _is_answer(key, value):
            continue  # another answer, not a mark
        elif key in HOLDERS or kind_of_name(key, in_training_data=True) is not None:
            kind = kind_of_name(key, in_training_data=True)
            marks = list(_marks_under(key, kind, value, skip))
            if marks and _points_at_messages(value, row):
                marks = [MarkAt(key, "pointing", value)]
            yield from marks
        elif isinstance(value, dict):
            yield from _marks_about(key, value, skip, named or {})


def _points_at_messages(value: Any, row: Row) -> bool:
    """Return whether marks in a list or an object are each about one message of the row's chat, by
    its id or its number."""
    marks = value if isinstance(value, list) else [value]
    for mark in marks:
        if isinstance(mark, dict) and POINTERS & {plain(str(name)) for name in mark}:
            return True
    if not isinstance(value, dict):
        return False
    names = {str(name) for name in value}
    ids = {str(message["id"]) for message in _messages_of(row) if message.get("id") is not None}
    return bool(names & ids) or (bool(names) and all(name.isdecimal() for name in names))


def _is_of_format(key: str, value: Any) -> bool:
    """Return whether what stands at a key is of the format of the row, whatever it is called."""
    if key in SIDES and isinstance(value, bool):
        return False
    return key in FORMAT or key in NOT_OF_ANSWER


def _is_answer(key: str, value: Any) -> bool:
    """Return whether a text is an answer beside the one of its row, by its name: preferred_answer,
    correct_response."""
    if not isinstance(value, str) or is_opinion_word(value):
        return False
    return is_expected_name(key) or (may_be_other_answer(key) and is_sentence(value))


def _is_decision(key: str, value: Any) -> bool:
    """Return whether it is what somebody decided in Prodigy."""
    return key == "answer" and isinstance(value, str) and value in DECISIONS


def _marks_about(
    key: str, about: Row, skip: Collection[str], named: Mapping[str, str], depth: int = 1
) -> Iterator[MarkAt]:
    """Yield the marks in an object about a row; its other labels may be anything."""
    for name, value in about.items():
        path = f"{key}.{name}"
        if path in named:
            yield MarkAt(path, named[path], value)
            continue
        kind = kind_of_name(str(name), in_training_data=True)
        is_usual = kind_of_name(str(name)) is not None
        if is_opinion_word(value) and may_be_of_answer(str(name)):
            kind = kind or "thumb"
        elif isinstance(value, dict) and kind is None and name not in NOT_OF_ANSWER:
            if depth < DEEPEST and path not in skip:
                yield from _marks_about(path, value, skip, named, depth + 1)
            continue
        elif not is_usual and not isinstance(value, bool):
            continue
        if path not in skip:
            yield from _marks_under(path, kind, value, skip)


def _marks_under(key: str, kind: str | None, value: Any, skip: Collection[str]) -> Iterator[MarkAt]:
    """Yield the mark called `key`, or the marks in the object or list at that key."""
    is_holder = key in HOLDERS
    value = number_of_scale(value)
    if isinstance(value, list) and (len(value) == 1 or _are_objects(value)):
        for part in value:
            yield from _marks_under(key, kind, part, skip)
        return
    if isinstance(value, dict) and (kind is not None or is_holder):
        inner_marks = []
        for name, part in value.items():
            inner_kind = kind_of_name(str(name), in_training_data=True)
            is_word = inner_kind is None and is_opinion_word(part)
            if name == "value" or (is_word and (name in KINDS_IN or may_be_of_answer(name))):
                inner_kind = kind or "thumb"
            path = f"{key}.{name}"
            if inner_kind is not None and path not in skip:
                inner_marks.append(MarkAt(path, inner_kind, number_of_scale(part)))
        yield from inner_marks
        if inner_marks or is_holder:
            return
    if kind is not None and not is_holder:
        yield MarkAt(key, kind, value)


def _are_objects(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _messages_of(row: Row) -> Iterator[Row]:
    """Yield the messages of a row at which an opinion may stand, without their contents."""
    for messages in row.values():
        if is_chat(messages):
            yield from (without_contents(message) for message in messages if _is_heard(message))


def _is_heard(message: Row) -> bool:
    """Return whether an opinion may stand at a message."""
    try:
        return role_of(message)[1] not in NOT_HEARD
    except Unreadable:
        return True


def without_contents(message: Row) -> Row:
    """Return the keys of a message other than its contents."""
    return {key: value for key, value in message.items() if key not in CONTENTS}


def _all_marks(
    row: Row, skip: Collection[str], named: Mapping[str, str] | None
) -> Iterator[MarkAt]:
    """Yield the marks of a row and of its messages."""
    yield from marks_at(row, skip, named)
    for message in _messages_of(row):
        yield from marks_at(message, skip, named)


@dataclass
class _Words:
    """Keys of which nobody knows that they are marks, by whether their values are opinions."""

    opinions: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        for key, value in row.items():
            if isinstance(value, list) and len(value) == 1:
                (value,) = value
            if value is None or key in self.others:
                continue
            if is_opinion_word(value) and may_sort_answers(key):
                self.opinions.add(key)
            else:
                self.others.add(key)

    def keys(self, skip: Collection[str]) -> set[str]:
        """Return the keys that hold nothing but opinions."""
        return self.opinions - self.others - FORMAT - set(skip)


@dataclass(frozen=True)
class RowMarks:
    """How the marks of a file are read, by all of its rows."""

    readings: Mapping[str, Reading] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    """Keys of the format that are no marks."""
    named: Mapping[str, str] = field(default_factory=dict)
    have_corrections: bool = False
    """Whether a better answer stands beside any answer of the file."""
    corrected: frozenset[str] = frozenset()
    """Keys of better answers, as a person says."""
    expected: frozenset[str] = frozenset()
    """Keys of the right answers, as a person says."""

    @property
    def are_there(self) -> bool:
        """Whether somebody judged answers of the file."""
        return bool(self.readings) or self.have_corrections

    def corrections(self, row: Row, answer: Any) -> list[dict[str, Any]]:
        """Return the corrections of an answer that stand beside it in its row or message."""
        signals = []
        for key, value in row.items():
            better = None if key in self.skip else correction_in(key, value)
            if key in self.corrected:
                better = text_in(value)
            if better is not None and better != answer:
                signals.append({"kind": "correction", "value": better})
        return signals

    def difference(self, row: Row, answer: Any) -> str:
        """Return why an answer is not known to be good, by another answer beside it; an empty text
        if it may be one. Raises Unreadable for another answer of which nobody says what it is."""
        key = failure_in({key: value for key, value in row.items() if key not in self.skip})
        if key is not None:
            return FAILED.format(key=key)
        key = differs_from_expected(row, answer, self.skip, self.expected)
        if key is not None:
            return UNEXPECTED.format(key=key)
        key = other_answer(row, answer, {*self.skip, *self.expected, *self.corrected})
        if key is not None:
            raise Unreadable(UNCLEAR.format(key=key))
        return ""

    def signals(self, row: Row) -> list[dict[str, Any]]:
        """Return the signals of the marks of a row, or of a message. Raises Unreadable."""
        signals = []
        marks = list(marks_at(row, self.skip, self.named))
        values = {mark.key.rpartition(".")[2]: mark.value for mark in marks}
        for mark in marks:
            if is_unpressed(mark.key.rpartition(".")[2], mark.value, values):
                continue
            reading = self.readings.get(mark.key) or reading_of(mark.key, mark.kind, None)
            try:
                signal = reading.signal(mark.value)
            except Unreadable as error:
                raise Unreadable(
                    f"{error}. If it says nothing of the answer: --column metadata={mark.key}"
                ) from None
            if signal is not None and signal not in signals:
                signals.append(signal)
        return signals


def marks_of_rows(
    rows: Iterable[Row],
    skip: Collection[str] = (),
    scales: Scales | None = None,
    named: Mapping[str, str] | None = None,
    answers: Mapping[str, frozenset[str]] | None = None,
) -> RowMarks:
    """Return the marks of these rows, and how they are read. `answers` has the keys of further
    answers by what a person says that they are."""
    answers = answers or {}
    corrected, expected = (answers.get(meaning, frozenset()) for meaning in (CORRECTION, REFERENCE))
    columns: dict[str, MarkColumn] = {}
    kinds: dict[str, str] = {}
    words = _Words()
    have_corrections = False
    for row in rows:
        words.add(row)
        have_corrections = have_corrections or _has_correction(row, skip)
        for message in _messages_of(row):
            words.add(message)
            have_corrections = have_corrections or _has_correction(message, skip)
        for mark in _all_marks(row, skip, named):
            kinds[mark.key] = mark.kind
            columns.setdefault(mark.key, MarkColumn()).add(mark.value)
    worded = dict.fromkeys(words.keys({*skip, *kinds}), "thumb")
    kinds |= worded
    columns |= {key: MarkColumn() for key in worded}
    named = {**worded, **(named or {})}
    readings = {key: reading_of(key, kinds[key], column, scales) for key, column in columns.items()}
    have_corrections = have_corrections or bool(corrected)
    return RowMarks(readings, frozenset(skip), named, have_corrections, corrected, expected)


def _has_correction(row: Row, skip: Collection[str]) -> bool:
    """Return whether a better answer stands in a row or message."""
    return any(correction_in(key, value) for key, value in row.items() if key not in skip)


def judged_answer(
    row: Row,
    marks: RowMarks,
    prompt: Messages,
    answer: Row,
    metadata: Row | None,
    raw: Row | None = None,
) -> list[AnyRecord]:
    """Return the records of a row with one answer; `raw` is the message it came from if it may
    have marks of its own. Raises Unreadable."""
    content = answer.get("content")
    signals: list[Any] = [*marks.signals(row), *marks.corrections(row, content)]
    if raw is not None:
        beside = without_contents(raw)
        signals += [*marks.signals(beside), *marks.corrections(beside, content)]
    is_learned = is_row_learned(row, marks.skip) and is_message_learned(raw or {})
    if not is_learned or marks.are_there:
        return answered(prompt, answer, signals, metadata)
    beside_it = {key: value for key, value in row.items() if key not in ANSWERED}
    if not answer.get("tool_calls") and is_blank(content):
        raise Unreadable("its answer is empty")
    if difference := marks.difference(beside_it, content):
        return Records(answered(prompt, answer, [], metadata), [difference])
    return answered(prompt, answer, [GOOD], metadata)


def answered(
    prompt: Messages,
    answer: Row,
    signals: Iterable[Row],
    metadata: Row | None,
    name: str | None = None,
) -> list[AnyRecord]:
    """Return a trace whose answer is this message, and its feedback. Raises Unreadable for a good
    answer whose call cannot be made."""
    signals = list(signals)
    if GOOD in signals and (name_of_call := broken_call(answer)) is not None:
        raise Unreadable(f"the arguments of its call {name_of_call!r} are no JSON object")
    fields = {"id": name, "input": prompt, "metadata": dict(metadata) if metadata else None}
    trace = TraceRecord.model_validate(fields | answer_fields(answer))
    targets = [trace.as_target()]
    feedback = [FeedbackRecord.model_validate({"targets": targets, **signal}) for signal in signals]
    return [trace, *feedback]


def messages_of_chat(row: Row, raw_messages: Iterable[Row]) -> list[tuple[dict[str, Any], Row]]:
    """Return (message, the raw message it came from) for each message of a chat, with the row's
    system text and files."""
    pairs: list[tuple[dict[str, Any], Row]] = []
    for raw in raw_messages:
        *earlier, last = unfolded(raw)
        for part in earlier:  # calls within the message, whose marks are about its end
            pairs += [(message, loss_marks(raw)) for message in converted(part)]
        pairs += [(message, raw) for message in converted(last)]
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
    """Return a trace for every answer that a trainer would learn from, and for the last one, with
    their feedback. Marks of the row are about the last answer, marks of a message about that
    message. Raises Unreadable."""
    pairs = messages_of_chat(row, raw_messages)
    messages = [message for message, _ in pairs]
    turns = []
    is_asked = False
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and is_asked:
            turns.append(index)
        is_asked = is_asked or message["role"] in ("user", "tool")
    if not turns:
        raise Unreadable("its messages hold no answer of the assistant to a question")
    _require_short_prompts(turns)
    others = [pair for index, pair in enumerate(pairs) if index not in turns]
    _demand_marks_of_answers(others, marks)
    said_of_row = marks.signals(row)
    said_of_row += marks.corrections(row, pairs[turns[-1]][0]["content"])
    may_be_good = is_row_learned(row, marks.skip) and not marks.are_there
    difference = marks.difference(row, pairs[turns[-1]][0]["content"]) if may_be_good else ""
    records: list[AnyRecord] = []
    for index in turns:
        message, raw = pairs[index]
        is_last = index == turns[-1]
        beside = without_contents(raw)
        signals: list[Any] = [
            *marks.signals(beside),
            *marks.corrections(beside, message["content"]),
        ]
        if is_last:
            signals += [signal for signal in said_of_row if signal not in signals]
        is_learned = is_message_learned(raw) and may_be_good and not (is_last and difference)
        if not is_last and not signals and not is_learned:
            continue
        if not is_last and not _can_be_answer(message):
            continue
        if not signals and is_learned:
            signals = [GOOD]
        if signals and not message.get("tool_calls") and is_blank(message["content"]):
            raise Unreadable("its last answer is empty")
        trace_name = name if is_last or name is None else f"{name}/{index}"
        prompt = without_old_thoughts(messages[:index])
        records += answered(prompt, message, signals, metadata, trace_name)
    return Records(records, [difference]) if difference else records


def _require_short_prompts(turns: list[int]) -> None:
    """Raise Unreadable for answers at these positions if their prompts have too many messages."""
    if sum(turns) > MOST_PROMPT_MESSAGES:
        raise Unreadable(
            f"its {len(turns):,} answers have {sum(turns):,} messages before them, more than the "
            f"{MOST_PROMPT_MESSAGES:,} that one row may have; split the chat"
        )


def _demand_marks_of_answers(others: Iterable[tuple[Row, Row]], marks: RowMarks) -> None:
    """Raise Unreadable for an opinion at a message that is no answer to a question, because nobody
    can say which answer is meant. `others`: (message, the raw message it came from)."""
    for message, raw in others:
        if message["role"] in NOT_HEARD:
            continue
        beside = without_contents(raw)
        if marks.signals(beside) or marks.corrections(beside, None):
            raise Unreadable(
                f"an opinion stands at a message of the {message['role']} that answers no "
                "question: nobody can say which answer is meant; write it into that answer"
            )


def is_blank(content: Any) -> bool:
    """Return whether a content says nothing."""
    return not content or (isinstance(content, str) and not content.strip())


def _can_be_answer(message: Row) -> bool:
    """Return whether a message in the middle of a chat is a text or a call, and so an answer of its
    own."""
    content = message["content"]
    return bool(message.get("tool_calls")) or (isinstance(content, str) and bool(content))


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
        reason: str = DEFAULT_REASON,
    ) -> TrainingRows:
        """Return a source of these rows; a row that is read alone has its own marks only."""

        def parse_alone(row: dict[str, Any]) -> list[AnyRecord]:
            return parse(row, marks_of_rows([row], skip))

        return cls(
            parse_alone,
            claims,
            example,
            about=about,
            reason=reason,
            skip=frozenset(skip),
            parse_marked=parse,
        )

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> TrainingRows:
        """Return the same source with the meanings and scales that a person gave for its marks.
        Raises InputError for an unknown meaning."""
        unknown = columns.keys() - {*KINDS, CORRECTION, REFERENCE, IGNORED}
        if unknown:
            meaning = sorted(unknown)[0]
            raise InputError(
                f"--column {meaning}={columns[meaning]}",
                "the rows of this source have their own keys; only the marks and further answers "
                "beside them can be named",
                f"Known: {', '.join(KINDS)}, {CORRECTION}, {REFERENCE}, {IGNORED}; or read it as a "
                "table: thumbwheel import csv FILE",
            )
        return replace(self, columns=columns, scales=scales)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read the marks of all rows first."""
        rows = (row.row for row in read_rows(path, ignore_position) if row.row is not None)
        yield from self.marked_items(read_rows(path, on_position), rows)

    def marked_items(self, rows: Iterator[FileRow], all_rows: Iterable[Row]) -> Iterator[Item]:
        """Yield the items of `rows`, with their marks read in the light of `all_rows`."""
        assert self.parse_marked is not None  # noqa: S101 - set by `of`
        named: dict[str, str] = {}
        about: dict[str, frozenset[str]] = {}
        for meaning, keys in self.columns.items():
            if meaning in KINDS:
                named |= dict.fromkeys(keys.split(SEVERAL), meaning)
            else:
                about[meaning] = frozenset(keys.split(SEVERAL))
        skip = {*self.skip, *about.pop(IGNORED, ())}
        marks = marks_of_rows(all_rows, skip, self.scales, named, about)
        yield from self.items(rows, partial(self.parse_marked, marks=marks))
