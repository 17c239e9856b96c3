"""All SQL of capture: keeping lines, linking feedback to what it is about (also when that arrives
later), lists and counts.

Statements are dialect-neutral: what is there is selected, what is not is inserted, and the one
writer makes that safe. Not here: how a record looks in the tables (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME, covered, marks
from thumbwheel.capture.rows import (
    PREFIXES,
    TARGET_PREFIX,
    Named,
    Row,
    Rows,
    Scope,
    case_objection,
    named,
    row_id,
)
from thumbwheel.capture.source import AnyRecord, Line
from thumbwheel.capture.types import (
    OWNER_MARKS,
    CaseRecord,
    FeedbackRecord,
    TraceRecord,
    Unreadable,
)
from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.db import feedback_in_force
from thumbwheel.db.columns import has_id
from thumbwheel.db.engine import streamed
from thumbwheel.db.schema import (
    cases,
    feedback,
    feedback_targets,
    messages,
    model_versions,
    raters,
    sessions,
    steps,
    subjects,
    tombstones,
    traces,
)

MOST = 5_000
"""Values in one IN list; SQLite takes 32,766 parameters, PostgreSQL 65,535."""

TABLES: Mapping[type[AnyRecord], sa.Table] = {
    TraceRecord: traces,
    FeedbackRecord: feedback,
    CaseRecord: cases,
}
COMPLETED: Mapping[sa.Table, Sequence[str]] = {
    traces: ("session_id", "subject_id", "occurred_at"),
    feedback: ("rater_id", "occurred_at"),
}
"""Columns that a later record of the same identity may fill in."""
WORDS: Mapping[type[AnyRecord], str] = {
    TraceRecord: "trace",
    FeedbackRecord: "feedback",
    CaseRecord: "case",
}


Target = tuple[str, str, int | None]
"""Kind, row id, position of the step."""


Giver = tuple[str, str | None]
"""Source and rater (row id; None where nobody is named) of a piece of feedback."""


@dataclass(frozen=True)
class Kept:
    """What became of a line: the records that are new (none: a duplicate), or why it was refused."""

    line: Line
    new: Sequence[AnyRecord]
    reason: str | None = None
    erased: bool = False


@dataclass(frozen=True)
class _Known:
    """What the database holds of the things that a batch names."""

    fingerprints: dict[str, str]
    raters: Mapping[str, tuple[str, float]]
    unreviewed: Collection[str]
    givers: dict[str, Giver]
    """Feedback that these lines would replace or take back -> who gave it."""


def keep(connection: sa.Connection, scope: Scope, lines: Sequence[Line]) -> list[Kept]:
    """Insert what is new in `lines`, each as a whole or not at all; a duplicate changes nothing, a
    contradiction is refused.

    A record that is known by an identity of its own may complete its row, and is then among the new
    ones.

    What was erased is not stored again. A case that is stored with basis feedback becomes gold when
    somebody vouches for it now.
    """
    gone = _erased(connection, scope, lines)
    if gone:
        rest = iter(
            keep(connection, scope, [line for at, line in enumerate(lines) if at not in gone])
        )
        return [
            Kept(line, (), erased=True) if at in gone else next(rest)
            for at, line in enumerate(lines)
        ]
    found = _restated(connection, scope, [_named(scope, line) for line in lines])
    found = _dated(connection, scope, found)
    everything = [one for names in found if not isinstance(names, str) for one in names]
    known = _known(connection, scope, everything)
    rows = Rows(scope, _versions(connection, scope, everything))
    vouched: dict[str, None] = {}
    repeated: list[Named] = []
    kept = []
    for line, names in zip(lines, found, strict=True):
        reason = names if isinstance(names, str) else _objection(names, known, rows)
        if reason is not None or isinstance(names, str):
            kept.append(Kept(line, (), reason))
            continue
        new = {one.id: one for one in names if one.id not in known.fingerprints}
        repeated += [
            one for one in names if one.id in known.fingerprints and one.record.identity is not None
        ]
        for one in new.values():
            rows.add(one)
            known.fingerprints[one.id] = one.fingerprint
            if isinstance(one.record, FeedbackRecord):
                known.givers[one.id] = (one.source, rows.feedback[-1]["rater_id"])
        approved = [one for one in names if one.id in known.unreviewed and one.id not in vouched]
        vouched |= dict.fromkeys(one.id for one in approved)
        kept.append(Kept(line, [one.record for one in (*new.values(), *approved)]))
    _insert(connection, rows, list(vouched))
    completed = _complete(connection, scope, repeated, rows.versions)
    return [
        replace(
            one, new=[*one.new, *(record for record in one.line.records if id(record) in completed)]
        )
        for one in kept
    ]


def _complete(
    connection: sa.Connection, scope: Scope, repeated: Sequence[Named], versions: Mapping[str, str]
) -> set[int]:
    """Fill in what these records, whose rows are there, say and their rows do not; which records
    (by `id()`) changed a row."""
    completed = set()
    for table, columns in COMPLETED.items():
        again = {one.id: one for one in repeated if TABLES[type(one.record)] is table}
        stored = {row["id"]: dict(row) for row in _rows(connection, table, again)}
        for one in repeated:
            if one.id not in stored:
                continue
            told = Rows(scope, versions)
            told.add(one)
            (row,) = told.traces or told.feedback
            change = _news(stored[one.id], row, columns)
            if not change:
                continue
            for owners, shared in (
                (sessions, told.sessions),
                (subjects, told.subjects),
                (raters, told.raters),
            ):
                _insert_missing(connection, owners, shared)
            connection.execute(table.update().where(table.c.id == one.id).values(change))
            stored[one.id] |= change
            completed.add(id(one.record))
    return completed


def _rows(
    connection: sa.Connection, table: sa.Table, wanted: Iterable[str]
) -> Iterator[sa.RowMapping]:
    for some in _pieces(list(wanted)):
        yield from connection.execute(sa.select(table).where(table.c.id.in_(some))).mappings()


def _news(stored: Row, told: Row, columns: Sequence[str]) -> Row:
    """What `told` changes in a stored row: it fills in what is missing, its later time counts, and
    so do its owner's marks."""
    change = {}
    for column in columns:
        newer = (
            column == "occurred_at"
            and None not in (stored[column], told[column])
            and told[column] > stored[column]
        )
        if newer or (stored[column] is None and told[column] is not None):
            change[column] = told[column]
    before, now = stored["metadata"] or {}, told["metadata"] or {}
    marks = {key: now[key] for key in OWNER_MARKS if key in now}
    metadata = now | before | marks
    return change if metadata == before else change | {"metadata": metadata}


def _erased(connection: sa.Connection, scope: Scope, lines: Sequence[Line]) -> set[int]:
    """The places of the lines that would bring back what was erased; raises StorageError where that
    can no longer be told."""
    of_agent = tombstones.c.agent_id == scope.agent_id
    if not connection.execute(sa.select(tombstones.c.id).where(of_agent).limit(1)).scalar():
        return set()
    if scope.seal is None:
        raise StorageError(
            "secret 'erased.key'",
            "it is missing, so erased data could come back unseen",
            "Restore it from a backup",
        )
    found = [marks(scope, line) for line in lines]
    keys = {key for several in found for (_, key), *_ in several}
    rows = _select(
        connection,
        tombstones.c.key,
        keys,
        tombstones.c.kind,
        tombstones.c.recorded_at,
        tombstones.c.agent_id,
    )
    known = {(row.kind, row.key): row.recorded_at for row in rows if row.agent_id == scope.agent_id}
    names = {
        name for several in found for mark, _, name in several if mark[0] == NAME and mark in known
    }
    there = {
        row.external_id
        for row in _select(connection, traces.c.external_id, names, traces.c.agent_id)
        if row.agent_id == scope.agent_id
    }
    return {
        place for place, several in enumerate(found) if covered(several, known, frozenset(there))
    }


def _named(scope: Scope, line: Line) -> list[Named] | str:
    try:
        return [named(scope, record) for record in line.records]
    except Unreadable as error:
        return str(error)


def _known(connection: sa.Connection, scope: Scope, everything: Sequence[Named]) -> _Known:
    fingerprints: dict[str, str] = {}
    for kind, table in TABLES.items():
        wanted = [one.id for one in everything if type(one.record) is kind]
        fingerprints |= {
            row.id: row.fingerprint
            for row in _select(connection, table.c.id, wanted, table.c.fingerprint)
        }
    judges = {
        row_id("rat", scope.agent, one.source, one.record.rater.id)
        for one in everything
        if isinstance(one.record, FeedbackRecord) and one.record.rater
    }
    stored = {
        row.id: (row.kind, row.weight)
        for row in _select(connection, raters.c.id, judges, raters.c.kind, raters.c.weight)
    }
    doubtful = [
        one.id for one in everything if scope.reviewer and isinstance(one.record, CaseRecord)
    ]
    unreviewed = {
        row.id
        for row in _select(connection, cases.c.id, doubtful, cases.c.basis)
        if row.basis != "gold"
    }
    earlier = {
        name
        for one in everything
        if isinstance(one.record, FeedbackRecord)
        for name in _replaces(scope, one, one.record)
    }
    columns = (feedback.c.source, feedback.c.rater_id)
    givers: dict[str, Giver] = {
        row.id: (row.source, row.rater_id)
        for row in _select(connection, feedback.c.id, earlier, *columns)
    }
    return _Known(fingerprints, stored, unreviewed, givers)


def _replaces(scope: Scope, one: Named, record: FeedbackRecord) -> list[str]:
    """The row ids of what this feedback replaces or takes back."""
    return [
        scope.id_of("fbk", name, one.source)
        for name in (record.supersedes, record.retracts)
        if name is not None
    ]


def _versions(
    connection: sa.Connection, scope: Scope, everything: Sequence[Named]
) -> dict[str, str]:
    if not any(
        step.model_version
        for one in everything
        if isinstance(one.record, TraceRecord)
        for step in one.record.steps
    ):
        return {}
    query = sa.select(model_versions.c.id, model_versions.c.number).where(
        model_versions.c.agent_id == scope.agent_id
    )
    found = list(connection.execute(query))
    return {row.id: row.id for row in found} | {f"v{row.number}": row.id for row in found}


def _objection(names: Sequence[Named], known: _Known, rows: Rows) -> str | None:
    """Why this line contradicts what is stored, or itself; None where it does not."""
    if (reason := case_objection([one.record for one in names], rows.scope.case_rule)) is not None:
        return reason
    own: dict[str, str] = {}
    for one in names:
        before = own.setdefault(one.id, known.fingerprints.get(one.id, one.fingerprint))
        if before != one.fingerprint and one.record.identity is None:
            return (
                f"{WORDS[type(one.record)]} {one.name!r} differs from what is stored under that id"
            )
        if one.source == feedback_in_force.OWNER != rows.scope.source:
            return (
                f"source {feedback_in_force.OWNER!r} is the owner's command line; a line of "
                f"{rows.scope.source!r} cannot speak for it"
            )
        if isinstance(one.record, FeedbackRecord):
            reason = _rater_objection(one, one.record, known, rows) or _giver_objection(
                one, one.record, known, rows
            )
            if reason:
                return reason
        for step in one.record.steps if isinstance(one.record, TraceRecord) else ():
            if step.model_version and step.model_version not in rows.versions:
                return (
                    f"model_version {step.model_version!r} is no version of agent "
                    f"{rows.scope.agent!r}"
                )
    return None


def _rater_objection(one: Named, record: FeedbackRecord, known: _Known, rows: Rows) -> str | None:
    if record.rater is None:
        return None
    rater_id = row_id("rat", rows.scope.agent, one.source, record.rater.id)
    noted = rows.raters.get(rater_id)
    kind, weight = (
        (noted["kind"], noted["weight"])
        if noted
        else known.raters.get(rater_id, (record.rater.kind, record.rater.weight))
    )
    if record.rater.kind not in (None, kind) or record.rater.weight not in (None, weight):
        said = (
            f"{record.rater.kind or kind}, weight "
            f"{weight if record.rater.weight is None else record.rater.weight:g}"
        )
        return (
            f"rater {record.rater.id!r} is stored as {kind}, weight {weight:g}; this line says "
            f"{said}"
        )
    return None


def _giver_objection(one: Named, record: FeedbackRecord, known: _Known, rows: Rows) -> str | None:
    """Why this line may not replace or take back what it names: it is neither its rater's nor the
    owner's.

    What it names may come later; then it stands, and this line changes nothing
    (`feedback_in_force.superseded_and_retracted`).
    """
    scope = rows.scope
    if scope.source == feedback_in_force.OWNER:
        return None
    verb, name = (
        ("retracts", record.retracts) if record.retracts else ("supersedes", record.supersedes)
    )
    own = (
        one.source,
        row_id("rat", scope.agent, one.source, record.rater.id) if record.rater else None,
    )
    for earlier in _replaces(scope, one, record):
        if one.source == scope.source and known.givers.get(earlier, own) == own:
            continue
        who = f"rater {record.rater.id!r}" if record.rater else "nobody by name"
        reason = (
            f"it {verb} {name!r}, which is of another rater or source, and it comes from {who} of "
            f"source {scope.source!r}"
        )
        return f"{reason}; the owner can: thumbwheel feedback add --{verb}"
    return None


def _dated(
    connection: sa.Connection, scope: Scope, found: Sequence[list[Named] | str]
) -> list[list[Named] | str]:
    """The same, with the time of what it is about for feedback without a time, where it is the
    first that its speaker says about it.

    What another import says instead was said since, so it keeps the time of that import.
    """
    undated = {
        one.id: _slot_of(scope, one)
        for names in found
        if not isinstance(names, str)
        for one in names
        if isinstance(one.record, FeedbackRecord)
        and one.record.since is not None
        and one.record.occurred_at is None
    }
    if not undated:
        return list(found)
    stored = {row.id for row in _select(connection, feedback.c.id, undated)}
    last = _last_words(
        connection, scope, {slot for one_id, slot in undated.items() if one_id not in stored}
    )
    first = {
        one_id for one_id, slot in undated.items() if one_id not in stored and slot not in last
    }
    return [
        names
        if isinstance(names, str)
        else [_at_its_start(one) if one.id in first else one for one in names]
        for names in found
    ]


def _at_its_start(one: Named) -> Named:
    record = _feedback(one)
    return replace(one, record=record.model_copy(update={"occurred_at": record.since}))


Slot = tuple[Any, ...]
"""What a statement is one of: whose word of which kind about which things."""


def _restated(
    connection: sa.Connection, scope: Scope, found: Sequence[list[Named] | str]
) -> list[list[Named] | str]:
    """The same, with a name of its own for feedback that says again what its rater, or the row that
    it stands in, had said before the last word: False, True, False ends with False, although the
    first and the third line are the same."""
    candidates = {
        one.id: one
        for names in found
        if not isinstance(names, str)
        for one in names
        if isinstance(one.record, FeedbackRecord) and _may_be_restated(one.record)
    }
    stored = _select(connection, feedback.c.id, candidates, feedback.c.recorded_at)
    there = [row.id for row in stored if row.recorded_at < scope.recorded_at]
    if not there:
        return list(found)
    slots = {one_id: _slot_of(scope, candidates[one_id]) for one_id in there}
    last = _last_words(connection, scope, set(slots.values()))
    anew = {
        one_id
        for one_id, slot in slots.items()
        if slot in last and _value_key(_feedback(candidates[one_id]).value) not in last[slot]
    }
    return [
        names
        if isinstance(names, str)
        else [_anew(scope, one) if one.id in anew else one for one in names]
        for names in found
    ]


def _may_be_restated(record: FeedbackRecord) -> bool:
    """Whether it is known by what it says, has no time, and has a speaker: the newest import of it
    counts."""
    speaks = record.rater is not None or not any(
        target.id.startswith(feedback_in_force.BY_CONTENT) for target in record.targets
    )
    return (
        record.id is None
        and speaks
        and record.occurred_at is None
        and not (record.retracts or record.supersedes)
    )


def _anew(scope: Scope, one: Named) -> Named:
    name = f"{one.name}@{scope.recorded_at.isoformat()}"
    return replace(
        one, id=row_id(PREFIXES[FeedbackRecord], scope.agent, one.source, name), name=name
    )


def _slot_of(scope: Scope, one: Named) -> Slot:
    record = _feedback(one)
    rater_id = row_id("rat", scope.agent, one.source, record.rater.id) if record.rater else None
    targets = sorted(
        (target.kind, target.source or one.source, target.id, target.step)
        for target in record.targets
    )
    return (one.source, rater_id, record.kind, record.name, *targets)


def _feedback(one: Named) -> FeedbackRecord:
    assert isinstance(one.record, FeedbackRecord)  # noqa: S101 - narrows the type; the caller has checked it
    return one.record


def _value_key(value: Any) -> str:
    """What tells two values apart. A whole number is one value however it is written: SQLite gives
    a lone 1.0 back as 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ids.canonical(value)


def _last_words(
    connection: sa.Connection, scope: Scope, slots: Collection[Slot]
) -> dict[Slot, set[str]]:
    """Slot -> the values of its newest statements (several of one import) before this import."""
    names = {target[2] for slot in slots for target in slot[4:]}
    about = _select(
        connection, feedback_targets.c.external_id, names, feedback_targets.c.feedback_id
    )
    stored_ids = {row.feedback_id for row in about}
    aims: dict[str, list[tuple[Any, ...]]] = {}
    targets = feedback_targets.c
    for row in _select(
        connection,
        targets.feedback_id,
        stored_ids,
        targets.kind,
        targets.source,
        targets.external_id,
        targets.step,
    ):
        aims.setdefault(row.feedback_id, []).append(
            (row.kind, row.source, row.external_id, row.step)
        )
    columns = (
        feedback.c.source,
        feedback.c.rater_id,
        feedback.c.kind,
        feedback.c.name,
        feedback.c.value,
        feedback.c.recorded_at,
    )
    latest: dict[Slot, tuple[Any, set[str]]] = {}
    for row in _select(
        connection, feedback.c.id, stored_ids, *columns, feedback_in_force.STATED_AT.label("at")
    ):
        slot = (row.source, row.rater_id, row.kind, row.name, *sorted(aims[row.id]))
        if slot not in slots or row.recorded_at >= scope.recorded_at:
            continue
        at, values = latest.get(slot, (row.at, set()))
        if row.at > at:
            values = set()
        if row.at >= at:
            latest[slot] = (row.at, values | {_value_key(row.value)})
    return {slot: values for slot, (_, values) in latest.items()}


def _insert(connection: sa.Connection, rows: Rows, vouched: Sequence[str]) -> None:
    reviewer = rows.reviewer() if vouched else None
    fresh = _insert_missing(connection, sessions, rows.sessions)
    for table, shared in (
        (subjects, rows.subjects),
        (raters, rows.raters),
        (messages, rows.messages),
    ):
        _insert_missing(connection, table, shared)
    _insert_all(connection, cases, rows.cases)
    _insert_all(connection, traces, rows.traces)
    _insert_all(connection, steps, rows.steps)
    if vouched:
        connection.execute(
            cases.update()
            .where(cases.c.id.in_(vouched))
            .values(basis=rows.scope.basis, reviewer_id=reviewer)
        )
    arrived: dict[Target, str | None] = {
        ("trace", row["id"], None): row["external_id"] for row in rows.traces
    }
    arrived |= {("session", row_id, None): rows.sessions[row_id]["external_id"] for row_id in fresh}
    arrived |= {("step", row["trace_id"], row["position"]): None for row in rows.steps}
    _link_waiting(connection, rows.scope, arrived)
    _insert_all(connection, feedback, rows.feedback)
    _aim(connection, rows, arrived.keys())
    _insert_all(connection, feedback_targets, rows.targets)


def _insert_all(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def _insert_missing(
    connection: sa.Connection, table: sa.Table, rows: Mapping[str, Row]
) -> list[str]:
    """The ids of `rows` that were not there; they are now, in the given order."""
    there = {row.id for row in _select(connection, table.c.id, rows)}
    missing = [row_id for row_id in rows if row_id not in there]
    _insert_all(connection, table, [rows[row_id] for row_id in missing])
    return missing


def _select(
    connection: sa.Connection,
    key: sa.Column[Any],
    wanted: Iterable[Any],
    *columns: sa.ColumnElement[Any],
) -> Iterator[Any]:
    """Rows (key, columns) whose key is among `wanted`, however many these are."""
    for some in _pieces(list(wanted)):
        yield from connection.execute(sa.select(key, *columns).where(key.in_(some)))


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + MOST] for start in range(0, len(values), MOST))


def _aim(connection: sa.Connection, rows: Rows, arrived: Collection[Target]) -> None:
    """Give each new target row the id of what it names, where that exists."""
    aims = [
        _aimed(rows.scope, row["kind"], row["external_id"], row["source"], row["step"])
        for row in rows.targets
    ]
    there = _existing(connection, rows.scope, [aim for aim in aims if aim not in arrived])
    for row, aim in zip(rows.targets, aims, strict=True):
        row["target_id"] = aim[1] if aim in arrived or aim in there else None


def _aimed(scope: Scope, kind: str, name: str, source: str, step: int | None) -> Target:
    return kind, scope.id_of(TARGET_PREFIX[kind], name, source), step


def _existing(connection: sa.Connection, scope: Scope, aims: Sequence[Target]) -> set[Target]:
    """Those of `aims` that exist for this agent."""
    found: set[Target] = set()
    for kind, table in (("trace", traces), ("step", traces), ("session", sessions)):
        wanted = {aim[1] for aim in aims if aim[0] == kind}
        owned = [
            row.id
            for row in _select(connection, table.c.id, wanted, table.c.agent_id)
            if row.agent_id == scope.agent_id
        ]
        if kind == "step":
            found |= {
                (kind, row.trace_id, row.position)
                for row in _select(connection, steps.c.trace_id, owned, steps.c.position)
            }
        else:
            found |= {(kind, row_id, None) for row_id in owned}
    return found


_WAITING = (
    sa.select(feedback_targets)
    .join(feedback, feedback.c.id == feedback_targets.c.feedback_id)
    .where(feedback_targets.c.target_id.is_(None))
)


def _link_waiting(
    connection: sa.Connection, scope: Scope, arrived: Mapping[Target, str | None]
) -> None:
    """Feedback of this agent that waited for what has just arrived gets its target."""
    names = {name for name in arrived.values() if name is not None} | {
        row_id for _, row_id, _ in arrived
    }
    found: list[tuple[Any, str]] = []
    for some in _pieces(list(names)):
        query = _WAITING.where(
            feedback.c.agent_id == scope.agent_id, feedback_targets.c.external_id.in_(some)
        )
        for row in connection.execute(query):
            aim = _aimed(scope, row.kind, row.external_id, row.source, row.step)
            if aim in arrived:
                found.append((row, aim[1]))
    _set_targets(connection, found)


def _set_targets(connection: sa.Connection, found: Sequence[tuple[Any, str]]) -> None:
    statement = (
        feedback_targets.update()
        .where(
            feedback_targets.c.feedback_id == sa.bindparam("of"),
            feedback_targets.c.position == sa.bindparam("at"),
        )
        .values(target_id=sa.bindparam("to"))
    )
    if found:
        connection.execute(
            statement,
            [
                {"of": row.feedback_id, "at": row.position, "to": target_id}
                for row, target_id in found
            ],
        )


def link_elsewhere(connection: sa.Connection, scope: Scope, after: str) -> str | None:
    """Link a page of targets (feedback ids above `after`) that their own source never delivered to
    the one trace or session of that name in another source; where several sources have one, the
    target stays open. Returns where the next page starts."""
    query = sa.select(traces.c.source).where(traces.c.agent_id == scope.agent_id).distinct()
    sources = set(connection.execute(query).scalars())
    waiting = _WAITING.where(
        feedback.c.agent_id == scope.agent_id, feedback_targets.c.source == feedback.c.source
    )
    if len(sources) < 2:
        waiting = waiting.where(feedback_targets.c.source.not_in(sources))
    page = (
        waiting.with_only_columns(feedback_targets.c.feedback_id)
        .where(feedback_targets.c.feedback_id > after)
        .distinct()
    )
    owners = list(
        connection.execute(page.order_by(feedback_targets.c.feedback_id).limit(MOST)).scalars()
    )
    if not owners or not sources:
        return None
    rows = list(connection.execute(waiting.where(feedback_targets.c.feedback_id.in_(owners))))
    aims = {
        row: [_aimed(scope, row.kind, row.external_id, source, row.step) for source in sources]
        for row in rows
    }
    there = _existing(connection, scope, [aim for several in aims.values() for aim in several])
    matches = {row: {aim[1] for aim in several if aim in there} for row, several in aims.items()}
    _set_targets(
        connection, [(row, next(iter(match))) for row, match in matches.items() if len(match) == 1]
    )
    return str(owners[-1])


def named_targets(connection: sa.Connection, agent_id: str, name: str) -> list[sa.Row[Any]]:
    """(kind, id, source, external_id) of the traces and sessions that have this id, ours or their
    source's."""
    found: list[sa.Row[Any]] = []
    for kind, table in (("trace", traces), ("session", sessions)):
        columns = sa.literal(kind).label("kind"), table.c.id, table.c.source, table.c.external_id
        query = sa.select(*columns).where(
            table.c.agent_id == agent_id,
            sa.or_(has_id(table.c.id, name), table.c.external_id == name),
        )
        found += connection.execute(query)
    return found


def named_feedback(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """Ids of the feedback that has this id, ours or its source's."""
    query = sa.select(feedback.c.id).where(
        feedback.c.agent_id == agent_id,
        sa.or_(has_id(feedback.c.id, name), feedback.c.external_id == name),
    )
    return list(connection.execute(query).scalars())


def latest_feedback(
    connection: sa.Connection, agent_id: str, kind: str | None, limit: int
) -> list[sa.RowMapping]:
    """The newest feedback first, with its rater's name and kind."""
    query = (
        sa.select(feedback, raters.c.external_id.label("rater"), raters.c.kind.label("rater_kind"))
        .join(raters, raters.c.id == feedback.c.rater_id, isouter=True)
        .where(feedback.c.agent_id == agent_id, *([feedback.c.kind == kind] if kind else []))
        .order_by(feedback.c.recorded_at.desc(), feedback.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def targets_of(connection: sa.Connection, feedback_ids: Sequence[str]) -> list[sa.RowMapping]:
    """All targets of these feedback rows, in order."""
    found: list[sa.RowMapping] = []
    for some in _pieces(feedback_ids):
        query = sa.select(feedback_targets).where(feedback_targets.c.feedback_id.in_(some))
        found += connection.execute(
            query.order_by(feedback_targets.c.feedback_id, feedback_targets.c.position)
        ).mappings()
    return found


def signals(connection: sa.Connection, agent_id: str) -> Iterator[Any]:
    """(id, kind, name, value, scale, rater, rater_kind, at, trace_id) of the newest words in force,
    as a stream.

    `trace_id` is the trace that the first target names, or whose step it is; None for sessions and
    for what has not arrived.
    """
    one, target = feedback.c, feedback_targets.c
    about_trace = sa.and_(
        target.feedback_id == one.id, target.position == 0, target.kind.in_(("trace", "step"))
    )
    query = (
        sa.select(
            one.id,
            one.kind,
            one.name,
            one.value,
            one.scale,
            raters.c.external_id.label("rater"),
            raters.c.kind.label("rater_kind"),
            feedback_in_force.STATED_AT.label("at"),
            target.target_id.label("trace_id"),
        )
        .select_from(
            feedback.outerjoin(raters, raters.c.id == one.rater_id).outerjoin(
                feedback_targets, about_trace
            )
        )
        .where(one.id.in_(feedback_in_force.newest_words(agent_id)))
    )
    yield from streamed(connection, query)


def feedback_count(connection: sa.Connection, agent_id: str) -> int:
    """How many statements there are, those that no longer stand among them; what only takes
    something back is none."""
    query = sa.select(sa.func.count()).where(
        feedback.c.agent_id == agent_id, feedback.c.retracts.is_(None)
    )
    return int(connection.execute(query).scalar_one())


def answering_models(connection: sa.Connection, agent_id: str) -> Iterator[Any]:
    """(trace_id, number of the version, served_model, requested_model) of the last model call of
    every trace, as a stream."""
    place = (
        sa.func.row_number()
        .over(partition_by=steps.c.trace_id, order_by=steps.c.position.desc())
        .label("place")
    )
    columns = (
        steps.c.trace_id,
        steps.c.model_version_id,
        steps.c.served_model,
        steps.c.requested_model,
    )
    calls = (
        sa.select(*columns, place)
        .join(traces, traces.c.id == steps.c.trace_id)
        .where(traces.c.agent_id == agent_id, steps.c.kind == "llm")
        .subquery()
    )
    query = (
        sa.select(
            calls.c.trace_id, model_versions.c.number, calls.c.served_model, calls.c.requested_model
        )
        .select_from(
            calls.outerjoin(model_versions, model_versions.c.id == calls.c.model_version_id)
        )
        .where(calls.c.place == 1)
    )
    yield from streamed(connection, query)


def open_targets(connection: sa.Connection, agent_id: str) -> int:
    """How many targets have not arrived."""
    query = _WAITING.where(feedback.c.agent_id == agent_id).with_only_columns(sa.func.count())
    return int(connection.execute(query).scalar_one())


def case_rows(
    connection: sa.Connection, agent_id: str, basis: str | None, limit: int
) -> list[sa.RowMapping]:
    """Cases, newest first, with the last message of their input and the reviewer's name."""
    query = (
        sa.select(
            cases, messages.c.content.label("message"), raters.c.external_id.label("reviewer")
        )
        .join(messages, messages.c.id == cases.c.input_id)
        .join(raters, raters.c.id == cases.c.reviewer_id, isouter=True)
        .where(cases.c.agent_id == agent_id, *([cases.c.basis == basis] if basis else []))
        .order_by(cases.c.recorded_at.desc(), cases.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def case_counts(connection: sa.Connection, agent_id: str) -> dict[str, int]:
    """Basis -> number of cases."""
    query = (
        sa.select(cases.c.basis, sa.func.count())
        .where(cases.c.agent_id == agent_id)
        .group_by(cases.c.basis)
    )
    return dict(connection.execute(query).tuples().all())
