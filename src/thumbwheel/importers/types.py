"""Records: traces, steps, feedback, targets, raters and cases as a source delivers them,
checked on construction.

Reading is tolerant (ISO times with T or space, a time without a zone is UTC, numbers as ids, a
plain string as input), what is stored is strict. Lives here: what a record is and what it refuses.
Not here: how a file format spells it (`sources/`), how it is kept (`store.py`). To add a kind of
feedback, add its check to CHECKS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from thumbwheel.core import ids
from thumbwheel.core.plugins import nearest
from thumbwheel.core.present import shortened

LLM_FIELDS = (
    "model",
    "served_model",
    "model_version",
    "deployment",
    "finish_reason",
    "sampling",
    "tokens",
    "token_ids",
    "token_logprobs",
    "first_token_at",
    "complete",
    "error",
    "routing",
    "cost",
)
"""Keys of a trace that describe the model call which made its answer."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
"""The scale of a number that comes without one."""
HEAVIEST = 1000.0
"""Weight of a rater: sums of more would be no numbers at some point."""
MOST_TARGETS = 256
"""Of one judgement: a ranking makes a pair of every two of them."""
MOST_MESSAGES, MOST_STEPS = 20_000, 10_000
"""Of one trace. Each is a row, and all of them are stored in one transaction, for which everybody
waits."""
OWNER_MARKS = ("is_training_data", "is_validation_data")
"""Keys of a trace's metadata (true or false) by which its owner says what it is for; a later import
may change them."""


_MAIL_TIME = re.compile(r"(?:[A-Z][a-z]{2}, )?\d{1,2} [A-Z][a-z]{2} \d{4} ")


class Unreadable(ValueError):
    """A line or record that cannot be taken; its text is the reason. It is data (a refused line),
    never an error of the program."""


@dataclass
class NaiveTimes:
    """The zone of times that are written without one, and how many there were."""

    zone: tzinfo = UTC
    count: int = 0


_NAIVE: ContextVar[NaiveTimes] = ContextVar("naive_times")


@contextmanager
def naive_times(zone: tzinfo | None) -> Iterator[NaiveTimes]:
    """Read times without a zone as times of `zone` (None: UTC), and count them, until the end of
    the block."""
    naive = NaiveTimes(zone or UTC)
    before = _NAIVE.set(naive)
    try:
        yield naive
    finally:
        _NAIVE.reset(before)


_POINTED_DATE = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?!\d)")
_YEAR_FIRST = re.compile(r"\d{4}/\d{1,2}/\d{1,2}(?!\d)")
_DATES = ("%Y-%m-%d", "%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%B-%Y")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p")
"""Dates and times of the day as people and spreadsheets write them."""


def parse_time(value: Any) -> datetime:
    """Return an aware UTC time from a datetime, or from ISO 8601 with T or space (naive means UTC,
    or see `naive_times`). Raises Unreadable.

    >>> parse_time("2026-01-05 08:30:00").isoformat()
    '2026-01-05T08:30:00+00:00'
    """
    if not isinstance(value, str | datetime):
        raise Unreadable(f"{value!r} is no time; write it as '2026-01-05T08:30:00Z'")
    try:
        time = _read_time(value.strip()) if isinstance(value, str) else value
        if time.tzinfo is None:
            naive = _NAIVE.get(None) or NaiveTimes()
            naive.count += 1
            time = time.replace(tzinfo=naive.zone)
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unreadable(
            f"{value!r} is no possible time; write it as '2026-01-05T08:30:00Z'"
        ) from None
    if not 1970 <= time.year <= 2100:
        raise Unreadable(f"{value!r} is no possible time: it lies outside the years 1970 to 2100")
    return time


def _read_time(text: str) -> datetime:
    """Return a time from ISO 8601, also with the word UTC or GMT after it, from the format of mails
    and HTTP, with points (31.12.2025) or the name of its month. Raises ValueError for any other,
    such as 1/2/2026, of which nobody knows the day."""
    for word in (" UTC", " GMT"):
        if text.endswith(word) and text[:4].isdigit():
            text = f"{text.removesuffix(word)}+00:00"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        if _MAIL_TIME.match(text):
            return parsedate_to_datetime(text)
    text = " ".join(text.replace(",", " ").split())
    if match := _POINTED_DATE.match(text):
        day, month, year = match.groups()
        text = f"{year}-{month:0>2}-{day:0>2}{text[match.end() :]}"
    elif _YEAR_FIRST.match(text):
        text = text.replace("/", "-", 2)
    for time in _CLOCKS:
        for date in _DATES:
            with suppress(ValueError):
                return datetime.strptime(text, f"{date}{time}")
    raise ValueError(text)


def _name(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _chat(value: Any) -> Any:
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(messages, list) or not messages:
        raise Unreadable(f"{_short(value)} is neither a text nor a list of chat messages")
    if len(messages) > MOST_MESSAGES:
        raise Unreadable(f"it has {len(messages):,} messages; {MOST_MESSAGES:,} are the most")
    for message in messages:
        _check_message(message)
    return messages


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unreadable(
            f"{_short(message)} is no chat message; it looks like {{'role': 'user', 'content': "
            f"'text'}}"
        )
    if message["role"] not in ROLES:
        raise Unreadable(
            f"role {message['role']!r} is none of "
            f"{', '.join(ROLES)}.{nearest(message['role'], ROLES)}"
        )
    if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
        raise Unreadable(f"{_short(message)} has neither content nor tool_calls")


def _short(value: Any) -> str:
    return shortened(repr(value), 80)


Name = Annotated[str, Field(min_length=1, max_length=512, pattern=r"\S"), BeforeValidator(_name)]
"""An id in somebody else's system; a whole number is taken as its digits."""
Word = Annotated[str, Field(min_length=1, max_length=32)]
Time = Annotated[datetime, BeforeValidator(parse_time)]
Chat = Annotated[list[dict[str, Any]], BeforeValidator(_chat)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
StepKind = Literal["llm", "tool", "reasoning", "task", "decision"]
TargetKind = Literal["trace", "step", "session"]
RaterKind = Literal["person", "model", "checker", "reference"]
"""`reference`: the file compared the answer with a right one that it holds, which is no opinion of
a program."""
FeedbackKind = Literal[
    "thumb", "rating", "score", "correction", "preference", "label", "outcome", "comment"
]


class Part(BaseModel):
    """Base of everything here: frozen, strict, unknown keys and NaN refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        protected_namespaces=(),
    )


class Tokens(Part):
    """Token counts as the provider told them; null when unknown. `cached` ones are among those of
    the prompt, those of the `reasoning` among those of the completion."""

    prompt: Count | None = None
    completion: Count | None = None
    cached: Count | None = None
    reasoning: Count | None = None


class Routing(Part):
    """Why this model answered: the arm of an experiment, with the probability of every arm when it
    was drawn, and the reason in words. `arm` is null for a call that does not count, because
    another arm than the one that was drawn (`assigned`) answered, or none was drawn. A call with
    `fails_everywhere` failed with every version that might answer: no arm is to blame for it."""

    arm: Name | None = None
    assigned: Name | None = None
    experiment: Name | None = None
    stratum: int | None = None
    unit: Name | None = None
    probabilities: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None
    fails_everywhere: bool | None = None
    reason: Annotated[str, Field(max_length=2000)] | None = None


class Scale(Part):
    """The ends of a rating scale."""

    min: float
    max: float

    @model_validator(mode="after")
    def _ordered(self) -> Scale:
        if not self.min < self.max:
            raise Unreadable(f"scale from {self.min:g} to {self.max:g} has no width")
        return self


class Rater(Part):
    """Who judged. Kind and weight are null where the line does not say; then the stored ones stand
    (person, 1.0 at first)."""

    id: Name
    kind: RaterKind | None = None
    weight: Annotated[float, Field(ge=0, le=HEAVIEST)] | None = None


class TargetRef(Part):
    """What is judged: a trace, the step `step` of trace `id`, or a session; without `source`, of
    the same source or of any other."""

    kind: TargetKind
    id: Name
    step: Count | None = None
    source: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class Record(Part):
    """What has a name in its source; without one, the hash of the content is the name, so that
    reading twice meets the same row."""

    source: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    id: Name | None = None

    _identity: Any = PrivateAttr(None)
    _is_time_of_receipt: bool = PrivateAttr(False)

    @property
    def identity(self) -> Any:
        """What identifies the record instead of its content; None where its content does."""
        return self._identity

    def with_identity(self, identity: Any) -> Self:
        """Return the same record, identified by this JSON value: a record that differs in
        everything else is the same row, which it may complete."""
        self._identity = identity
        return self

    def received_at(self) -> Self:
        """Return the same record, with its time marked as the time of receipt: it is not part of
        the content, so a repeated record is recognised."""
        self._is_time_of_receipt = True
        return self

    @property
    def external_id(self) -> str:
        """Its id in its source; without one, the hash of what identifies it."""
        if self.id:
            return self.id
        name, _ = self.name_and_fingerprint()
        return name

    def name_and_fingerprint(self) -> tuple[str, str]:
        """Return (external id, sha256 of its identity, or of its content without id and source).
        Raises Unreadable for NaN and infinity."""
        identity = self._identity
        if identity is None:
            exclude = {
                "id",
                "source",
                "seal",
                "sender",
                *(["occurred_at"] if self._is_time_of_receipt else ()),
            }
            identity = self.model_dump(mode="json", exclude_none=True, exclude=exclude)
        try:
            digest = ids.fingerprint(identity)
        except ValueError:
            raise Unreadable("it holds NaN or an infinite number") from None
        return self.id or f"sha256:{digest[:40]}", digest


class StepRecord(Part):
    """One step of a trace; the model keys belong to an `llm` step."""

    kind: StepKind = "llm"
    name: Annotated[str, Field(max_length=512)] | None = None
    input: Any = None
    output: Any = None
    status: Word = "ok"
    started_at: Time | None = None
    ended_at: Time | None = None
    model: Name | None = None
    served_model: Name | None = None
    model_version: Name | None = None
    deployment: Name | None = None
    finish_reason: Word | None = None
    sampling: dict[str, Any] | None = None
    tokens: Tokens | None = None
    token_ids: list[Count] | None = None
    token_logprobs: list[Annotated[float, Field(le=0)]] | None = None
    first_token_at: Time | None = None
    complete: bool | None = None
    """Whether `output` is the whole answer. False where the client left, the server failed, or the
    answer was too long to be kept; nothing is learned from such an answer."""
    error: Annotated[str, Field(max_length=2000)] | None = None
    routing: Routing | None = None
    cost: Annotated[float, Field(ge=0)] | None = None
    """In the currency of the owner's price list."""

    @model_validator(mode="after")
    def _coherent(self) -> StepRecord:
        if self.started_at and self.ended_at and self.ended_at < self.started_at:
            raise Unreadable(
                f"the step ends ({self.ended_at.isoformat()}) before it starts "
                f"({self.started_at.isoformat()})"
            )
        ids, logprobs = self.token_ids, self.token_logprobs
        # some servers tell the log-probabilities without the ids
        if ids is not None and logprobs is not None and len(logprobs) != len(ids):
            raise Unreadable(f"{len(logprobs)} token_logprobs for {len(ids)} token_ids")
        return self


class TraceRecord(Record):
    """One run of the agent: the chat that it was given, what it answered, and the ordered steps in
    between (never none)."""

    session: Name | None = None
    subject: Name | None = None
    parent: Name | None = None
    case: Name | None = None
    input: Chat
    output: str | None = None
    steps: list[StepRecord] = Field(default_factory=lambda: [StepRecord()], max_length=MOST_STEPS)
    status: Word = "ok"
    occurred_at: Time | None = None
    metadata: dict[str, Any] | None = None
    seal: Annotated[str, Field(max_length=64)] | None = None
    """With which the gateway vouches for what it says of the call (gateway_seal.py)."""

    def as_target(self) -> TargetRef:
        """Return a reference to this trace as the target of feedback."""
        return TargetRef(kind="trace", id=self.external_id)


class FeedbackRecord(Record):
    """One judgement: its raw value and scale, its ordered targets, who gave it and when."""

    kind: FeedbackKind
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    value: Any
    scale: Scale | None = None
    targets: list[TargetRef]
    rater: Rater | None = None
    occurred_at: Time | None = None
    supersedes: Name | None = None
    retracts: Name | None = None
    sender: Annotated[str, Field(max_length=128)] | None = None
    """Who sent it. Only the server says so, of what came to it; of a file it is nobody's word."""
    comment: str | None = None
    metadata: dict[str, Any] | None = None

    _since: datetime | None = PrivateAttr(None)

    @property
    def since(self) -> datetime | None:
        """When the trace or session that it judges happened. This is the time of the feedback until
        its rater says something else about it; None where nobody knows."""
        return self._since

    def not_before(self, time: datetime | None) -> FeedbackRecord:
        """Return the same record, marked as no older than `time`."""
        self._since = time
        return self

    @model_validator(mode="after")
    def _possible(self) -> FeedbackRecord:
        if self.retracts and self.supersedes:
            raise Unreadable("it both supersedes and retracts; it can do one of them")
        _check_targets(self)
        CHECKS[self.kind](self)
        return self


class CaseRecord(Record):
    """An input with what is needed to judge an answer: a reference, a checker, or both."""

    input: Chat
    reference: Any = None
    checker: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    checker_config: dict[str, Any] | None = None
    group: Name | None = None
    slices: dict[str, str | bool | int | float] | None = None

    @model_validator(mode="after")
    def _judgeable(self) -> CaseRecord:
        if self.reference is None and self.checker is None:
            raise Unreadable("a case needs a reference or a checker; this one has neither")
        return self


AnyRecord = TraceRecord | FeedbackRecord | CaseRecord
NOUNS: Mapping[type[AnyRecord], str] = {
    TraceRecord: "trace",
    FeedbackRecord: "feedback",
    CaseRecord: "case",
}


class Records(list[AnyRecord]):
    """The records of a row with remarks: what a person should look at, in words that are the same
    for every row of the kind."""

    def __init__(self, records: Iterable[AnyRecord], remarks: Iterable[str] = ()) -> None:
        super().__init__(records)
        self.remarks = tuple(remarks)


def _check_targets(record: FeedbackRecord) -> None:
    count = len(record.targets)
    if count > MOST_TARGETS:
        raise Unreadable(f"it has {count:,} targets; {MOST_TARGETS} are the most")
    if record.kind == "preference" and count < 2:
        raise Unreadable(f"a preference compares two or more targets; it has {count}")
    if record.kind != "preference" and count != 1 and not (record.retracts and count == 0):
        raise Unreadable(f"a {record.kind} has one target; it has {count}")
    distinct = {(target.kind, target.source, target.id, target.step) for target in record.targets}
    if len(distinct) < count:
        raise Unreadable("the same target is named twice")


def _check_thumb(record: FeedbackRecord) -> None:
    if not isinstance(record.value, bool):
        raise Unreadable(f"thumb {_short(record.value)} is neither true (up) nor false (down)")


def _check_number(record: FeedbackRecord) -> None:
    kind, value, scale = record.kind, record.value, record.scale
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{kind} {_short(value)} is no number")
    low, high = (scale.min, scale.max) if scale else SCALES[kind]
    if not low <= value <= high:
        raise Unreadable(f"{kind} {_short(value)} is outside its scale, {low:g} to {high:g}")


def _check_text(record: FeedbackRecord) -> None:
    value = record.value
    if not isinstance(value, str) or not (value.strip() or record.retracts):
        raise Unreadable(f"{record.kind} {_short(value)} is no text")


def _check_correction(record: FeedbackRecord) -> None:
    _check_text(record)
    if record.targets and record.targets[0].kind == "session":
        raise Unreadable("a correction replaces one answer; its target is a whole session")


def _check_label(record: FeedbackRecord) -> None:
    name, value = record.name, record.value
    if not name or not isinstance(value, bool | str) or value == "":
        raise Unreadable(
            f"a label has a name and true, false or a text as value; this one is {name!r}: "
            f"{_short(value)}"
        )


def _check_outcome(record: FeedbackRecord) -> None:
    if not record.name:
        raise Unreadable("an outcome has a name, for example 'resolved'")
    if not isinstance(record.value, bool):
        _check_number(record)


def _check_preference(record: FeedbackRecord) -> None:
    value = record.value
    ranking = value.get("ranking") if isinstance(value, dict) and len(value) == 1 else None
    is_ranking = isinstance(ranking, list) and all(
        isinstance(rank, list) and rank for rank in ranking
    )
    if not isinstance(ranking, list) or not is_ranking:
        raise Unreadable(
            f"preference {_short(value)} is no ranking such as {{'ranking': [[1], [0]]}}, "
            "best first, ties in one list"
        )
    positions = list(chain.from_iterable(ranking))
    are_numbers = all(type(position) is int for position in positions)
    if not are_numbers or sorted(positions) != list(range(len(record.targets))):
        raise Unreadable(
            f"ranking {ranking!r} does not name each of the {len(record.targets)} targets once, by "
            "its position from 0"
        )


CHECKS: Mapping[str, Callable[[FeedbackRecord], None]] = {
    "thumb": _check_thumb,
    "rating": _check_number,
    "score": _check_number,
    "correction": _check_correction,
    "preference": _check_preference,
    "label": _check_label,
    "outcome": _check_outcome,
    "comment": _check_text,
}
"""What each kind of feedback demands of its value."""

PARTS: Mapping[str | int, type[Part]] = {
    "steps": StepRecord,
    "tokens": Tokens,
    "scale": Scale,
    "rater": Rater,
    "targets": TargetRef,
}
"""Key of a record -> what stands there."""


def explain(error: ValidationError) -> str:
    """Return the first problem of a record in one line: the key, the problem, and the nearest known
    key for an unknown one."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, ValueError):
        return f"{path}: {reason}" if path else str(reason)
    if first["type"] == "missing":
        return f"key {path!r} is missing"
    if first["type"] == "extra_forbidden":
        *outer, unknown = first["loc"]
        part = next((PARTS[key] for key in reversed(outer) if key in PARTS), Part)
        return f"key {path!r} is unknown.{nearest(str(unknown), part.model_fields)}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"key {path!r} is {_short(first['input'])}: {message}"
