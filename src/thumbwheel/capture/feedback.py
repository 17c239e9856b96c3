"""Verbs for feedback that is typed, and for looking at all feedback: add, list, stats.

Not here: bringing files in (`ingest.py`), what the feedback would teach (the datasets stage).
"""

from __future__ import annotations

import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.capture import store
from thumbwheel.capture.ingest import scope_of
from thumbwheel.capture.rows import Scope, named_record
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.feedback_in_force import OWNER
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.source import Line, row_of
from thumbwheel.importers.types import (
    CHECKS,
    NOUNS,
    SCALES,
    AnyRecord,
    FeedbackRecord,
    Rater,
    TargetRef,
    Unreadable,
    explain,
)
from thumbwheel.models.versions import require_agent

SOURCE = OWNER


def add_feedback(
    ws: Workspace,
    agent: str,
    target: str,
    kind: str,
    value: Any,
    *,
    rater: str | None = None,
    **fields: Any,
) -> str:
    """Store one judgement about the trace or session `target` (our id or its own) and return its
    id.

    `fields`: name, scale, comment, supersedes, retracts, occurred_at of FeedbackRecord. Raises
    NotFound for an unknown target or feedback, InputError for an impossible value.
    """
    agent_id = require_agent(ws, agent).id
    fields = {key: field for key, field in fields.items() if field is not None}
    for key in {"supersedes", "retracts"} & fields.keys():
        fields[key] = _feedback_id(ws, agent, agent_id, fields[key])
    values = {
        "id": uuid.uuid4().hex,
        "kind": kind,
        "value": value,
        "targets": [_target(ws, agent, agent_id, target)],
        "rater": Rater(id=rater) if rater else None,
        "occurred_at": datetime.now(UTC),
    }
    try:
        record = FeedbackRecord.model_validate(values | fields)
    except ValidationError as error:
        raise InputError(
            f"feedback {kind} {value!r}", explain(error), "See: thumbwheel feedback add --help"
        ) from None
    return store_record(ws, agent, record)


def store_record(
    ws: Workspace,
    agent: str,
    record: AnyRecord,
    reviewer: str | None = None,
    source: str = SOURCE,
) -> str:
    """Store one record of the command line, or of another `source`, and return its row id. Raises
    InputError if it contradicts stored data."""
    check_text(record)
    scope = scope_of(ws, agent, source, reviewer)
    (record_id,) = ws.db.write(
        lambda connection: save_records(connection, scope, [record]),
        of_agent(scope.agent_id, is_quiet=True),
    )
    return record_id


def check_text(record: AnyRecord) -> None:
    """Raise InputError for a record that a database or JSON cannot store."""
    try:
        row_of(record.model_dump_json().encode())
    except (Unreadable, ValueError) as error:  # pydantic's serialisation error is a ValueError
        why = "it holds bytes that are no UTF-8 text"
        if isinstance(error, Unreadable):
            why = str(error)
        fix = "Type it in a terminal whose locale is UTF-8, or give it in a file"
        raise InputError(NOUNS[type(record)], why, fix) from None


def save_records(
    connection: sa.Connection, scope: Scope, records: Sequence[AnyRecord]
) -> list[str]:
    """Store records in the caller's transaction, all or none, and return their row ids. Raises
    InputError if one contradicts stored data, Conflict if one is about erased data."""
    lines = [Line(number, [record], "") for number, record in enumerate(records, 1)]
    for result in store.save_lines(connection, scope, lines):
        noun = NOUNS[type(result.line.records[0])]
        if result.erased:
            raise Conflict(noun, "its target was erased", "Nothing was stored")
        if result.reason:
            raise InputError(noun, result.reason, "Use another id, or change what is given")
    return [named_record(scope, record).id for record in records]


def _target(ws: Workspace, agent: str, agent_id: str, name: str) -> TargetRef:
    with ws.db.read() as connection:
        targets = store.named_targets(connection, agent_id, name)
    if not targets:
        why = f"agent {agent!r} has no trace or session of that id"
        raise NotFound(f"target {name!r}", why, "Import its trace first, or check the id")
    if len(targets) > 1:
        several = ", ".join(f"{row.id} ({row.kind} of {row.source})" for row in targets)
        raise InputError(
            f"target {name!r}", f"it matches several: {several}", "Give one of these ids"
        )
    (target,) = targets
    return TargetRef(kind=target.kind, id=target.external_id, source=target.source)


def _feedback_id(ws: Workspace, agent: str, agent_id: str, name: str) -> str:
    with ws.db.read() as connection:
        ids = store.named_feedback(connection, agent_id, name)
    if len(ids) != 1:
        why = f"agent {agent!r} has no feedback of that id"
        if ids:
            why = f"it names several: {', '.join(ids)}"
        raise NotFound(f"feedback {name!r}", why, "See: thumbwheel feedback list")
    return ids[0]


def list_feedback(
    ws: Workspace,
    agent: str,
    *,
    kind: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> list[dict[str, Any]]:
    """Return the newest feedback of `agent` after the one with the id `after`, each with its
    ordered targets. Raises NotFound for an unknown kind, InputError for an unknown id."""
    if kind is not None and kind not in CHECKS:
        raise NotFound(
            f"kind {kind!r}",
            "there is no such kind of feedback",
            f"Known: {', '.join(CHECKS)}.{nearest(kind, CHECKS)}",
        )
    agent_id = require_agent(ws, agent).id
    targets: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with ws.db.read() as connection:
        rows = store.latest_feedback(connection, agent_id, kind, limit, after)
        for row in store.targets_of(connection, [row["id"] for row in rows]):
            target = {key: row[key] for key in ("kind", "source", "external_id")}
            if row["step"] is not None:
                target["step"] = row["step"]
            targets[row["feedback_id"]].append(target | {"target_id": row["target_id"]})
    hidden = ("agent_id", "rater_id", "fingerprint")
    return [
        {key: row[key] for key in row if key not in hidden} | {"targets": targets[row["id"]]}
        for row in rows
    ]


PERIODS = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
"""Length of a period -> how a day names the one that it lies in."""
UNKNOWN = "(unknown)"
OPINIONS = frozenset({"thumb", "rating", "score"})
"""Kinds by which a person says how good an answer is. Outcomes and labels say what came of it, or
what it is."""


class _Opinion(NamedTuple):
    """Opinion of a person on an answer; the order is that of time."""

    time: datetime
    feedback_id: str
    rater: str
    good: bool
    trace_id: str | None


@dataclass
class SignalCount:
    """Feedback in force: of each rater the newest of a kind about the same thing."""

    count: int = 0
    judged: int = 0
    """How many of them can be called positive or not."""
    positive: int = 0
    """Thumbs up, true, or above the middle of the scale."""
    raters: Counter[str] = field(default_factory=Counter)

    def add(self, rater: str, good: bool | None) -> None:
        self.raters[rater] += 1
        self.count += 1
        self.judged += good is not None
        self.positive += bool(good)

    @property
    def share(self) -> float | None:
        """Positive of those that can be; None where none can."""
        return self.positive / self.judged if self.judged else None

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for --json, without the raters' names."""
        return {
            "count": self.count,
            "judged": self.judged,
            "positive": self.positive,
            "people": len(self.raters),
            "share_positive": self.share,
        }


@dataclass(frozen=True)
class FeedbackStats:
    """Counts of feedback: by signal (labels and outcomes: kind and name), by rater, what is no
    longer in force, and what waits for its trace.

    `periods` and `versions` hold what people think of answers, each person once of each answer: by
    the day, week or month in which it was said, and by the model that gave the answer.
    """

    signals: dict[str, SignalCount]
    raters: Counter[str]
    replaced: int
    unresolved: int
    period: str
    periods: dict[str, SignalCount]
    versions: dict[str, SignalCount]

    def as_dict(self) -> dict[str, Any]:
        signals = {
            name: count.as_dict() | {"raters": dict(count.raters)}
            for name, count in self.signals.items()
        }
        return {
            "signals": signals,
            "raters": dict(self.raters),
            "replaced": self.replaced,
            "unresolved": self.unresolved,
            "over_time": [
                {self.period: name, **count.as_dict()} for name, count in self.periods.items()
            ],
            "by_version": [
                {"version": name, **count.as_dict()} for name, count in self.versions.items()
            ],
        }


def feedback_stats(ws: Workspace, agent: str, period: str = "week") -> FeedbackStats:
    """Return statistics of all feedback of `agent`; `period` is a key of PERIODS. Raises NotFound
    for any other period, and for an unknown agent."""
    if period not in PERIODS:
        raise NotFound(
            f"period {period!r}",
            "there is no such period",
            f"Known: {', '.join(PERIODS)}.{nearest(period, PERIODS)}",
        )
    agent_id = require_agent(ws, agent).id
    by_signal: defaultdict[str, SignalCount] = defaultdict(SignalCount)
    by_period: defaultdict[str, SignalCount] = defaultdict(SignalCount)
    by_version: defaultdict[str, SignalCount] = defaultdict(SignalCount)
    raters: Counter[str] = Counter()
    opinions: dict[tuple[str | None, str | None], _Opinion] = {}
    with ws.db.read() as connection:
        calls = store.answering_models(connection, agent_id)
        versions = {call.trace_id: _version(call) for call in calls}
        for row in store.signals(connection, agent_id):
            rater = row.rater or UNKNOWN
            good = _positive(row.kind, row.value, row.scale)
            raters[rater] += 1
            signal = f"{row.kind} {row.name}" if row.name else row.kind
            by_signal[signal].add(rater, good)
            is_person = row.rater_kind in (None, "person")
            if good is None or not is_person or row.kind not in OPINIONS:
                continue
            # what a person says in several ways about one answer is one opinion: the newest
            named = row.rater is not None and row.trace_id is not None
            key = (row.rater, row.trace_id) if named else (row.id, None)
            opinion = _Opinion(row.at, row.id, rater, good, row.trace_id)
            opinions[key] = max(opinion, opinions.get(key, opinion))
        for opinion in opinions.values():
            by_period[f"{opinion.time:{PERIODS[period]}}"].add(opinion.rater, opinion.good)
            version = versions.get(opinion.trace_id, UNKNOWN)
            by_version[version].add(opinion.rater, opinion.good)
        replaced = store.feedback_count(connection, agent_id) - raters.total()
        unresolved = store.open_targets(connection, agent_id)
    return FeedbackStats(
        signals=dict(sorted(by_signal.items())),
        raters=raters,
        replaced=replaced,
        unresolved=unresolved,
        period=period,
        periods=dict(sorted(by_period.items())),
        versions=dict(sorted(by_version.items())),
    )


def _version(call: Any) -> str:
    """Return the version that answered, else the name of the model from the provider or the app."""
    if call.number is not None:
        return f"v{call.number}"
    return str(call.served_model or call.requested_model or UNKNOWN)


def _positive(kind: str, value: Any, scale: dict[str, float] | None) -> bool | None:
    if isinstance(value, bool):
        return value
    if kind not in SCALES:
        return None
    low, high = (scale["min"], scale["max"]) if scale else SCALES[kind]
    return bool(value > (low + high) / 2)


def scores_in_force(ws: Workspace, agent: str) -> list[float]:
    """Return every score in force, each rater's newest about the same target, as its position on
    its scale (0 to 1). Raises NotFound for an unknown agent."""
    agent_id = require_agent(ws, agent).id
    scores = []
    with ws.db.read() as connection:
        for row in store.signals(connection, agent_id):
            if row.kind == "score":
                low, high = (row.scale["min"], row.scale["max"]) if row.scale else SCALES["score"]
                scores.append((row.value - low) / (high - low))
    return scores


def number(text: str, what: str) -> float:
    """Return the number that a user typed. Raises InputError for anything else, and for NaN and
    infinity; the record checks the range."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{what} {text!r}", "it is not a finite number", "Give a number such as 4 or 0.7"
        )
    return value
