"""All SQL of capture: storing lines, linking feedback to what it is about (also when that arrives
later), lists and counts.

Statements are dialect-neutral: what is there is selected, what is not is inserted, and the one
writer makes that safe. Not here: how a record looks in the tables (`rows.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.erased import NAME, Mark, any_erased
from thumbwheel.capture.prepare import (
    NamedLine,
    PreparedLines,
    all_records,
    named_versions,
    prepare,
)
from thumbwheel.capture.rows import (
    PREFIXES,
    TARGET_PREFIX,
    NamedRecord,
    Row,
    Rows,
    Scope,
    chain_of,
    named_record,
    rater_source,
    row_id,
)
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, StorageError
from thumbwheel.db import feedback_in_force
from thumbwheel.db.batches import among, batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.encoded_rows import insert_missing, insert_rows
from thumbwheel.db.engine import streamed
from thumbwheel.db.page_content import content_length, fitting
from thumbwheel.db.schema import (
    cases,
    feedback,
    feedback_targets,
    messages,
    model_versions,
    raters,
    sessions,
    source_positions,
    steps,
    subjects,
    tombstones,
    traces,
)
from thumbwheel.db.workspace import OWNER_OF_HOME
from thumbwheel.importers.counterparts import Message, SourceAnswer, question_of
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import (
    MOST_STEPS,
    NOUNS,
    OWNER_MARKS,
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    TraceRecord,
)

MOST = 5_000
"""Values in one IN list; SQLite takes 32,766 parameters, PostgreSQL 65,535."""

OF_TRACE = frozenset({"position", "agent_id", "recorded_at"})
"""Columns of a step that say nothing about the step itself."""

PAGE = 500
"""Pieces of feedback that are linked in one piece of work."""
MOST_SOURCES = 32
"""Sources of an agent in which the target of another source's feedback is looked for."""
MOST_MOVED = 1_000
"""Steps of a trace that are put in another order for late ones."""

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

Target = tuple[str, str, int | None]
"""Kind, row id, position of the step."""


@dataclass(frozen=True)
class Giver:
    """Who gave a piece of feedback."""

    source: str
    rater_id: str | None
    """None where nobody is named."""
    sender: str | None
    """None for what was stored before senders were."""

    def may_take_back(self, earlier: Giver) -> bool:
        """Return whether this giver may replace or retract feedback of `earlier`; the rule is the
        same as in `feedback_in_force.superseded_and_retracted`."""
        is_owner = self.sender in (None, OWNER_OF_HOME)
        if is_owner and self.source == feedback_in_force.OWNER:
            return True
        is_same_sender = self.sender == earlier.sender
        if is_same_sender and (self.sender or "").startswith(feedback_in_force.USER):
            return True
        is_rater = (self.source, self.rater_id) == (earlier.source, earlier.rater_id)
        return is_rater and (is_owner or earlier.sender is None or is_same_sender)


@dataclass
class UnlinkedRecords:
    """What was stored since targets were linked across sources."""

    names: set[str] = field(default_factory=set)
    """Of traces and sessions."""
    feedback_ids: set[str] = field(default_factory=set)

    def add(self, scope: Scope, record: AnyRecord) -> None:
        """Take a new record in."""
        if isinstance(record, TraceRecord):
            self.names.add(record.external_id)
            if record.session is not None:
                self.names.add(record.session)
        elif isinstance(record, FeedbackRecord):
            self.feedback_ids.add(named_record(scope, record).id)


@dataclass(frozen=True)
class LineResult:
    """What became of a line: the records that are new (none: a duplicate), or why it was
    refused."""

    line: Line
    new: Sequence[AnyRecord]
    reason: str | None = None
    erased: bool = False


@dataclass(frozen=True)
class _Stored:
    """What the database holds of the things that a batch names; new rows of the batch are added."""

    fingerprints: dict[str, str]
    """Row id -> hash of the content."""
    raters: Mapping[str, tuple[str, float]]
    """Row id -> kind and weight."""
    unreviewed: Collection[str]
    """Cases that are not gold."""
    givers: dict[str, Giver]
    """Feedback that these lines would replace or take back -> who gave it."""


def save_lines(connection: sa.Connection, scope: Scope, lines: Sequence[Line]) -> list[LineResult]:
    """Prepare and save `lines` in the caller's transaction; return the result of each, in order."""
    versions = model_versions_of(connection, scope, lines)
    return save_prepared(connection, prepare(scope, lines, versions, connection.dialect))


def save_prepared(connection: sa.Connection, prepared: PreparedLines) -> list[LineResult]:
    """Insert the new records, each line as a whole or not at all. A duplicate changes nothing; a
    contradiction is refused. Return the result of each line, in order.

    A record that has an identity of its own may complete its row, and is then among the new ones.

    Erased data is not stored again. A case that is stored with basis feedback becomes gold if
    somebody vouches for it now.
    """
    erased = _erased(connection, prepared)
    rest = [
        candidate
        for position, candidate in enumerate(prepared.candidates)
        if position not in erased
    ]
    saved = _save(connection, prepared, rest)
    saved.reverse()
    results = []
    for position, candidate in enumerate(prepared.candidates):
        if position in erased:
            results.append(LineResult(candidate.line, (), erased=True))
        else:
            results.append(saved.pop())
    return results


def _save(
    connection: sa.Connection, prepared: PreparedLines, candidates: Sequence[NamedLine]
) -> list[LineResult]:
    # names and times that depend on what is stored
    scope = prepared.scope
    candidates = _restated(connection, scope, candidates)
    candidates = _dated(connection, scope, candidates)
    stored = _stored(connection, scope, all_records(candidates))
    rows = Rows(scope, prepared.versions)

    # what each line adds
    vouched: dict[str, None] = {}
    repeated: list[NamedRecord] = []
    results = []
    for candidate in candidates:
        reason = candidate.reason or _objection(candidate.records, stored, rows)
        if reason is not None:
            results.append(LineResult(candidate.line, (), reason))
            continue
        new: dict[str, NamedRecord] = {}
        for named in candidate.records:
            if named.id not in stored.fingerprints:
                new[named.id] = named
            elif named.record.identity is not None:
                repeated.append(named)
        for named in new.values():
            rows.extend(prepared.rows_of(named))
            stored.fingerprints[named.id] = named.fingerprint
            if isinstance(named.record, FeedbackRecord):
                row = rows.feedback[-1]
                stored.givers[named.id] = Giver(named.source, row["rater_id"], row["sender"])
        approved = [
            named
            for named in candidate.records
            if named.id in stored.unreviewed and named.id not in vouched
        ]
        vouched |= dict.fromkeys(named.id for named in approved)
        new_records = [named.record for named in (*new.values(), *approved)]
        results.append(LineResult(candidate.line, new_records))

    # write
    _insert(connection, rows, list(vouched))
    completed = _complete(connection, prepared, repeated)
    return [_with_completed(result, completed) for result in results]


def _with_completed(result: LineResult, completed: Collection[int]) -> LineResult:
    """Return the result with the records that completed a row added to its new ones."""
    completing = [record for record in result.line.records if id(record) in completed]
    return replace(result, new=[*result.new, *completing])


def _complete(
    connection: sa.Connection, prepared: PreparedLines, repeated: Sequence[NamedRecord]
) -> set[int]:
    """Fill in values of these records that their stored rows lack; return the `id()` of each record
    that changed a row."""
    completed = set()
    for table, columns in COMPLETED.items():
        of_table = {named.id for named in repeated if TABLES[type(named.record)] is table}
        stored: dict[str, Row] = {}
        for part in batches(of_table, MOST):
            query = sa.select(table).where(table.c.id.in_(part))
            for stored_row in connection.execute(query).mappings():
                stored[stored_row["id"]] = dict(stored_row)
        for named in repeated:
            if named.id not in stored:
                continue
            rows = prepared.rows_of(named)
            (row,) = rows.traces or rows.feedback
            change = _change(stored[named.id], row, columns)
            if not change:
                continue
            _insert_missing(connection, sessions, rows.sessions)
            _insert_missing(connection, subjects, rows.subjects)
            _insert_missing(connection, raters, rows.raters)
            connection.execute(table.update().where(table.c.id == named.id).values(change))
            stored[named.id] |= change
            completed.add(id(named.record))
    return completed


def add_late_steps(
    connection: sa.Connection,
    scope: Scope,
    records: Sequence[TraceRecord],
    senders: Collection[str],
) -> set[str]:
    """Add the steps that stored traces do not have yet; steps are told apart by kind, name and
    start. Return the names of the records whose traces now have all their steps; a record that
    contradicts its trace changes nothing.

    A trace without an answer gets the answer of its last step, unless someone other than the
    `senders` of these steps has judged it, because they have not seen it.
    """
    complete = set()
    for record in records:
        named = named_record(scope, record)
        query = sa.select(traces).where(traces.c.id == named.id)
        trace = connection.execute(query).mappings().first()
        if trace is None or trace["fingerprint"] == named.fingerprint:
            continue
        of_trace = sa.select(sa.func.count()).where(steps.c.trace_id == named.id)
        if connection.execute(of_trace).scalar_one() >= MOST_STEPS:
            continue
        rows = Rows(scope, model_versions_of(connection, scope, [Line(0, [record], "")]))
        rows.add(named)
        in_order = sa.select(steps).where(steps.c.trace_id == named.id).order_by(steps.c.position)
        stored_steps = [dict(row) for row in connection.execute(in_order).mappings()]
        late_steps = _late_steps(stored_steps, rows.steps)
        if late_steps is None:
            continue
        complete.add(named.name)
        if late_steps:
            is_judged = _is_judged(connection, named.id, senders)
            _extend(connection, dict(trace), rows, stored_steps, late_steps, is_judged=is_judged)
    return complete


def _is_judged(connection: sa.Connection, trace_id: str, senders: Collection[str]) -> bool:
    """Return whether anyone other than `senders` has given feedback on the trace."""
    sender = sa.func.coalesce(feedback.c.sender, OWNER_OF_HOME)
    about = feedback.join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
    query = sa.select(feedback.c.id).select_from(about)
    of_others = (feedback_targets.c.target_id == trace_id, sender.not_in(list(senders)))
    return connection.execute(query.where(*of_others).limit(1)).first() is not None


def _late_steps(stored_steps: Sequence[Row], all_steps: Sequence[Row]) -> list[Row] | None:
    """Return the steps that are not stored, or None if a step differs from the stored one, or has
    no start time to compare."""
    stored_by_key = {_step_key(step): step for step in stored_steps}
    late_steps = []
    for step in all_steps:
        if step["started_at"] is None:
            return None
        stored = stored_by_key.get(_step_key(step))
        if stored is None:
            late_steps.append(step)
        elif any(stored[column] != step[column] for column in step.keys() - OF_TRACE):
            return None
    return late_steps


def _step_key(step: Row) -> tuple[Any, ...]:
    return step["kind"], step["name"], step["started_at"]


def _extend(
    connection: sa.Connection,
    trace: Row,
    rows: Rows,
    stored_steps: Sequence[Row],
    late_steps: Sequence[Row],
    *,
    is_judged: bool,
) -> None:
    """Add steps to a stored trace, in order of time; at the end if there is feedback on one of its
    steps by number, or if there are very many."""
    all_steps = [*stored_steps, *late_steps]
    about_steps = sa.select(feedback_targets.c.feedback_id).where(
        feedback_targets.c.kind == "step", feedback_targets.c.target_id == trace["id"]
    )
    has_times = all(step["started_at"] is not None for step in stored_steps)
    is_movable = has_times and len(stored_steps) <= MOST_MOVED
    if is_movable and connection.execute(about_steps.limit(1)).first() is None:
        all_steps.sort(key=lambda step: step["started_at"])
    recorded_at = {"recorded_at": trace["recorded_at"]}
    numbered = [
        step | recorded_at | {"position": position} for position, step in enumerate(all_steps)
    ]
    # those before the first late one stay as they are
    late = {id(step) for step in late_steps}
    first = next(position for position, step in enumerate(all_steps) if id(step) in late)
    moved = steps.c.trace_id == trace["id"], steps.c.position >= first
    connection.execute(steps.delete().where(*moved))
    insert_rows(connection, steps, numbered[first:])

    # what the trace did not say before
    (row,) = rows.traces
    change = _change(trace, row, ("session_id", "subject_id"))
    if trace["output"] is None and all_steps[-1] in late_steps and not is_judged:
        change["output"] = row["output"]
    if change:
        _insert_missing(connection, sessions, rows.sessions)
        _insert_missing(connection, subjects, rows.subjects)
        connection.execute(traces.update().where(traces.c.id == trace["id"]).values(change))


def _change(stored: Row, row: Row, columns: Sequence[str]) -> Row:
    """Return the columns that `row` changes in a stored row: it fills in missing ones, a later time
    replaces an earlier one, and so do its owner's marks."""
    change = {}
    for column in columns:
        before, now = stored[column], row[column]
        if now is None:
            continue
        if before is None or (column == "occurred_at" and now > before):
            change[column] = now
    stored_metadata, row_metadata = stored["metadata"] or {}, row["metadata"] or {}
    marks = {key: row_metadata[key] for key in OWNER_MARKS if key in row_metadata}
    metadata = row_metadata | stored_metadata | marks
    if metadata != stored_metadata:
        change["metadata"] = metadata
    return change


def trace_metadata(connection: sa.Connection, trace_id: str) -> dict[str, Any]:
    """Return the metadata of a trace; empty if it has none, or is not there any more."""
    query = sa.select(traces.c.metadata).where(traces.c.id == trace_id)
    return dict(connection.execute(query).scalar() or {})


def set_metadata(connection: sa.Connection, trace_id: str, metadata: Mapping[str, Any]) -> None:
    """Replace the metadata of a trace."""
    row = {"metadata": dict(metadata) or None}
    connection.execute(traces.update().where(traces.c.id == trace_id).values(**row))


def _erased(connection: sa.Connection, prepared: PreparedLines) -> set[int]:
    """Return the positions of the lines that would restore erased data. Raises StorageError if the
    key of the tombstones is missing."""
    scope = prepared.scope
    of_agent = tombstones.c.agent_id == scope.agent_id
    if not connection.execute(sa.select(tombstones.c.id).where(of_agent).limit(1)).scalar():
        return set()
    if scope.seal is None:
        raise StorageError(
            "secret 'erased.key'",
            "it is missing, so erased data could come back unseen",
            "Restore it from a backup",
        )
    by_line = [candidate.references for candidate in prepared.candidates]
    all_references = list(chain.from_iterable(by_line))

    marks = {reference.mark for reference in all_references}
    keys = {key for _, key in marks}
    columns = tombstones.c.kind, tombstones.c.recorded_at, tombstones.c.agent_id
    erased: dict[Mark, datetime] = {}
    for row in _select(connection, tombstones.c.key, keys, *columns):
        if row.agent_id == scope.agent_id:
            erased[row.kind, row.key] = row.recorded_at

    # a name that a trace has today proves nothing
    names: set[str] = set()
    for reference in all_references:
        kind, _ = reference.mark
        if kind == NAME and reference.mark in erased:
            names.add(reference.name)
    trace_names = frozenset(
        row.external_id
        for row in _select(connection, traces.c.external_id, names, traces.c.agent_id)
        if row.agent_id == scope.agent_id
    )
    return {
        position
        for position, line_references in enumerate(by_line)
        if any_erased(line_references, erased, trace_names)
    }


def _stored(connection: sa.Connection, scope: Scope, everything: Sequence[NamedRecord]) -> _Stored:
    fingerprints: dict[str, str] = {}
    for record_type, table in TABLES.items():
        wanted = [named.id for named in everything if type(named.record) is record_type]
        for row in _select(connection, table.c.id, wanted, table.c.fingerprint):
            fingerprints[row.id] = row.fingerprint

    rater_ids: set[str] = set()
    feedback_ids: set[str] = set()
    case_ids: list[str] = []
    for named in everything:
        record = named.record
        if isinstance(record, FeedbackRecord):
            rater_id = _rater_id(scope, named, record)
            if rater_id is not None:
                rater_ids.add(rater_id)
            feedback_ids.update(_replaced_ids(scope, named, record))
        elif isinstance(record, CaseRecord) and scope.reviewer:
            case_ids.append(named.id)

    stored_raters = {
        row.id: (row.kind, row.weight)
        for row in _select(connection, raters.c.id, rater_ids, raters.c.kind, raters.c.weight)
    }
    unreviewed = {
        row.id
        for row in _select(connection, cases.c.id, case_ids, cases.c.basis)
        if row.basis != "gold"
    }
    columns = feedback.c.source, feedback.c.rater_id, feedback.c.sender
    givers = {
        row.id: Giver(row.source, row.rater_id, row.sender)
        for row in _select(connection, feedback.c.id, feedback_ids, *columns)
    }
    return _Stored(fingerprints, stored_raters, unreviewed, givers)


def _rater_id(scope: Scope, named: NamedRecord, record: FeedbackRecord) -> str | None:
    """Return the row id of the rater of this feedback, or None if no rater is named."""
    if record.rater is None:
        return None
    return row_id("rat", scope.agent, rater_source(scope, named, record), record.rater.id)


def _replaced_ids(scope: Scope, named: NamedRecord, record: FeedbackRecord) -> list[str]:
    """Return the row ids of the feedback that this feedback supersedes or retracts."""
    names = [name for name in (record.supersedes, record.retracts) if name is not None]
    return [scope.id_of("fbk", name, named.source) for name in names]


def model_versions_of(
    connection: sa.Connection, scope: Scope, lines: Iterable[Line]
) -> dict[str, str]:
    """Return name or id of a model version of the agent -> its id; read only if a step in `lines`
    names a version."""
    if next(named_versions(lines), None) is None:
        return {}
    query = sa.select(model_versions.c.id, model_versions.c.number).where(
        model_versions.c.agent_id == scope.agent_id
    )
    versions = {}
    for row in connection.execute(query):
        versions[row.id] = versions[f"v{row.number}"] = row.id
    return versions


def _objection(records: Sequence[NamedRecord], stored: _Stored, rows: Rows) -> str | None:
    """Return why this line contradicts stored data, or itself; None if it does not."""
    fingerprints: dict[str, str] = {}
    for named in records:
        record = named.record
        before = stored.fingerprints.get(named.id, named.fingerprint)
        before = fingerprints.setdefault(named.id, before)
        if before != named.fingerprint and record.identity is None:
            noun = NOUNS[type(record)]
            return f"{noun} {named.name!r} differs from what is stored under that id"
        if named.source == feedback_in_force.OWNER != rows.scope.source:
            return (
                f"source {feedback_in_force.OWNER!r} is the owner's command line; a line of "
                f"{rows.scope.source!r} cannot speak for it"
            )
        if isinstance(record, FeedbackRecord):
            reason = _rater_objection(named, record, stored, rows)
            reason = reason or _giver_objection(named, record, stored, rows)
            if reason:
                return reason
        if isinstance(record, TraceRecord):
            for step in record.steps:
                if step.model_version and step.model_version not in rows.versions:
                    return (
                        f"model_version {step.model_version!r} is no version of agent "
                        f"{rows.scope.agent!r}"
                    )
    return None


def _rater_objection(
    named: NamedRecord, record: FeedbackRecord, stored: _Stored, rows: Rows
) -> str | None:
    """Return why this line contradicts the stored rater, or the rater in the batch; None if it does
    not."""
    rater = record.rater
    rater_id = _rater_id(rows.scope, named, record)
    if rater is None or rater_id is None:
        return None
    new_row = rows.raters.get(rater_id)
    if new_row:
        kind, weight = new_row["kind"], new_row["weight"]
    elif rater_id in stored.raters:
        kind, weight = stored.raters[rater_id]
    else:
        return None
    if rater.kind in (None, kind) and rater.weight in (None, weight):
        return None
    line_weight = weight if rater.weight is None else rater.weight
    return (
        f"rater {rater.id!r} is stored as {kind}, weight {weight:g}; this line says "
        f"{rater.kind or kind}, weight {line_weight:g}"
    )


def _giver_objection(
    named: NamedRecord, record: FeedbackRecord, stored: _Stored, rows: Rows
) -> str | None:
    """Return why this line may not supersede or retract the feedback that it names: it is neither
    its rater's nor the owner's. Return None if it may.

    The named feedback may arrive later; then it stays in force, and this line changes nothing
    (`feedback_in_force.superseded_and_retracted`).
    """
    scope = rows.scope
    giver = Giver(named.source, _rater_id(scope, named, record), scope.sender_of(record))
    for feedback_id in _replaced_ids(scope, named, record):
        may = giver.may_take_back(stored.givers.get(feedback_id, giver))
        if named.source == scope.source and may:
            continue
        verb, name = "supersedes", record.supersedes
        if record.retracts:
            verb, name = "retracts", record.retracts
        who = f"rater {record.rater.id!r}" if record.rater else "nobody by name"
        return (
            f"it {verb} {name!r}, which is of another rater, sender or source, and it comes from "
            f"{who} of source {scope.source!r}; the owner can: thumbwheel feedback add --{verb}"
        )
    return None


def _dated(
    connection: sa.Connection, scope: Scope, candidates: Sequence[NamedLine]
) -> list[NamedLine]:
    """Return the same lines, but feedback without a time gets the time of its target if it is the
    first that its rater gives on it.

    Different feedback in another import was given since, so it keeps the time of that import.
    """
    slots = {}
    for named in all_records(candidates):
        record = named.record
        if isinstance(record, FeedbackRecord) and record.since and record.occurred_at is None:
            slots[named.id] = _slot_of(scope, named, record)
    if not slots:
        return list(candidates)
    for row in _select(connection, feedback.c.id, list(slots)):
        del slots[row.id]
    newest_values = _newest_values(connection, scope, set(slots.values()))
    first = {feedback_id for feedback_id, slot in slots.items() if slot not in newest_values}

    def dated(named: NamedRecord) -> NamedRecord:
        if named.id not in first or not isinstance(named.record, FeedbackRecord):
            return named
        time = {"occurred_at": named.record.since}
        return replace(named, record=named.record.model_copy(update=time))

    return [
        replace(candidate, records=list(map(dated, candidate.records))) for candidate in candidates
    ]


Slot = tuple[Any, ...]
"""Source, rater, kind and name of feedback, then its targets: the newest feedback of a slot is the
one in force."""


def _restated(
    connection: sa.Connection, scope: Scope, candidates: Sequence[NamedLine]
) -> list[NamedLine]:
    """Return the same lines, with a new name for feedback that repeats an earlier, no longer newest
    value of its rater or row: False, True, False ends with False, although the first and the third
    line are the same."""
    restatable: dict[str, tuple[NamedRecord, FeedbackRecord]] = {}
    for named in all_records(candidates):
        if isinstance(named.record, FeedbackRecord) and _may_be_restated(named.record):
            restatable[named.id] = (named, named.record)
    rows = _select(connection, feedback.c.id, restatable, feedback.c.recorded_at)
    earlier = [row.id for row in rows if row.recorded_at < scope.recorded_at]
    if not earlier:
        return list(candidates)
    slots = {row_id: _slot_of(scope, *restatable[row_id]) for row_id in earlier}
    newest_values = _newest_values(connection, scope, set(slots.values()))
    restated = set()
    for feedback_id, slot in slots.items():
        _, statement = restatable[feedback_id]
        if slot in newest_values and _value_key(statement.value) not in newest_values[slot]:
            restated.add(feedback_id)

    def renamed(record: NamedRecord) -> NamedRecord:
        if record.id not in restated:
            return record
        name = f"{record.name}@{scope.recorded_at.isoformat()}"
        new_id = row_id(PREFIXES[FeedbackRecord], scope.agent, record.source, name)
        return replace(record, id=new_id, name=name)

    return [
        replace(candidate, records=list(map(renamed, candidate.records)))
        for candidate in candidates
    ]


def _may_be_restated(record: FeedbackRecord) -> bool:
    """Return whether the name of the feedback is derived from its content, and it has a rater or
    names its target, and no time: then its newest import counts."""
    if record.id is not None or record.occurred_at is not None:
        return False
    if record.retracts or record.supersedes:
        return False
    by_content = any(
        target.id.startswith(feedback_in_force.BY_CONTENT) for target in record.targets
    )
    return record.rater is not None or not by_content


def _slot_of(scope: Scope, named: NamedRecord, record: FeedbackRecord) -> Slot:
    targets = sorted(
        (target.kind, target.source or named.source, target.id, target.step)
        for target in record.targets
    )
    return (named.source, _rater_id(scope, named, record), record.kind, record.name, *targets)


def _value_key(value: Any) -> str:
    """Return the key that distinguishes values. A whole number is one value however it is written:
    SQLite returns a lone 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ids.canonical(value)


def _newest_values(
    connection: sa.Connection, scope: Scope, slots: Collection[Slot]
) -> dict[Slot, set[str]]:
    """Return slot -> the values of its newest feedback before this import (several if one import
    has several)."""
    # all feedback of the same raters about the same targets, with its targets
    names: set[str] = set()
    rater_ids: set[str | None] = set()
    for _source, rater_id, _kind, _name, *slot_targets in slots:
        names.update(name for _, _, name, _ in slot_targets)
        rater_ids.add(rater_id)
    target = feedback_targets.c
    # thousands of others may have judged the same
    by_raters = [feedback.c.rater_id.in_(rater_ids - {None})]
    if None in rater_ids:
        by_raters.append(feedback.c.rater_id.is_(None))
    of_raters = sa.select(target.feedback_id).join(feedback, feedback.c.id == target.feedback_id)
    of_raters = of_raters.where(feedback.c.agent_id == scope.agent_id, sa.or_(*by_raters))
    feedback_ids: set[str] = set()
    for part in batches(names, MOST):
        about = of_raters.where(target.external_id.in_(part))
        feedback_ids.update(connection.execute(about).scalars())
    columns = target.kind, target.source, target.external_id, target.step
    targets: dict[str, list[tuple[Any, ...]]] = {}
    for row in _select(connection, target.feedback_id, feedback_ids, *columns):
        key = (row.kind, row.source, row.external_id, row.step)
        targets.setdefault(row.feedback_id, []).append(key)

    # the newest of each slot
    statement = feedback.c
    statement_columns = (
        statement.source,
        statement.rater_id,
        statement.kind,
        statement.name,
        statement.value,
        statement.recorded_at,
        feedback_in_force.STATED_AT.label("time"),
    )
    times: dict[Slot, Any] = {}
    values: dict[Slot, set[str]] = {}
    for row in _select(connection, statement.id, feedback_ids, *statement_columns):
        slot = (row.source, row.rater_id, row.kind, row.name, *sorted(targets[row.id]))
        if slot not in slots or row.recorded_at >= scope.recorded_at:
            continue
        if slot not in times or row.time > times[slot]:
            times[slot], values[slot] = row.time, set()
        if row.time == times[slot]:
            values[slot].add(_value_key(row.value))
    return values


def _insert(connection: sa.Connection, rows: Rows, vouched: Sequence[str]) -> None:
    reviewer = rows.reviewer() if vouched else None
    new_sessions = _insert_missing(connection, sessions, rows.sessions)
    _insert_missing(connection, subjects, rows.subjects)
    _insert_missing(connection, raters, rows.raters)
    _insert_messages(connection, rows.messages)
    insert_rows(connection, cases, rows.cases)
    insert_rows(connection, traces, rows.traces)
    insert_rows(connection, steps, rows.steps)
    if vouched:
        connection.execute(
            cases.update()
            .where(cases.c.id.in_(vouched))
            .values(basis=rows.scope.basis, reviewer_id=reviewer)
        )

    # feedback that waited for these, and the feedback of this batch
    arrived: dict[Target, str | None] = {}
    for row in rows.traces:
        arrived["trace", row["id"], None] = row["external_id"]
    for session_id in new_sessions:
        arrived["session", session_id, None] = rows.sessions[session_id]["external_id"]
    for row in rows.steps:
        arrived["step", row["trace_id"], row["position"]] = None
    _link_waiting(connection, rows.scope, arrived)
    insert_rows(connection, feedback, rows.feedback)
    _resolve_targets(connection, rows, arrived.keys())
    insert_rows(connection, feedback_targets, rows.targets)


def _insert_messages(connection: sa.Connection, rows: Mapping[str, Row]) -> None:
    """Insert the messages that do not exist yet. They belong to no agent, so another process may
    insert the same ones at this moment."""
    existing = {row.id for row in _select(connection, messages.c.id, rows)}
    missing = {message_id: row for message_id, row in rows.items() if message_id not in existing}
    insert_missing(connection, messages, missing)


def _insert_missing(
    connection: sa.Connection, table: sa.Table, rows: Mapping[str, Row]
) -> list[str]:
    """Insert the `rows` that do not exist yet, in the given order; return their ids."""
    existing = {row.id for row in _select(connection, table.c.id, rows)}
    missing = [row_id for row_id in rows if row_id not in existing]
    insert_rows(connection, table, [rows[row_id] for row_id in missing])
    return missing


def _select(
    connection: sa.Connection,
    key: sa.Column[Any],
    wanted: Iterable[str],
    *columns: sa.ColumnElement[Any] | sa.Table,
) -> Iterator[Any]:
    """Yield rows (key, columns) whose key is in `wanted`, however many keys there are."""
    for part in batches(list(wanted), MOST):
        is_wanted = among(connection, key, part)
        yield from connection.execute(sa.select(key, *columns).where(is_wanted))


def _resolve_targets(connection: sa.Connection, rows: Rows, arrived: Collection[Target]) -> None:
    """Set the id of each new target row's target, if that exists."""
    targets = [
        _target(rows.scope, row["kind"], row["external_id"], row["source"], row["step"])
        for row in rows.targets
    ]
    unsure = [target for target in targets if target not in arrived]
    existing = _existing(connection, rows.scope, unsure)
    for row, target in zip(rows.targets, targets, strict=True):
        _, target_id, _ = target
        row["target_id"] = target_id if target in arrived or target in existing else None


def _target(scope: Scope, kind: str, name: str, source: str, step: int | None) -> Target:
    return kind, scope.id_of(TARGET_PREFIX[kind], name, source), step


def _existing(connection: sa.Connection, scope: Scope, targets: Sequence[Target]) -> set[Target]:
    """Return the `targets` that exist for this agent."""
    existing: set[Target] = set()
    for kind, table in (("trace", traces), ("step", traces), ("session", sessions)):
        wanted = {target_id for target_kind, target_id, _ in targets if target_kind == kind}
        of_agent = [
            row.id
            for row in _select(connection, table.c.id, wanted, table.c.agent_id)
            if row.agent_id == scope.agent_id
        ]
        if kind == "step":
            # a trace may have thousands of steps beside these
            positions = {step for target_kind, _, step in targets if target_kind == kind}
            of_agent_ids = set(of_agent)
            for part in batches(positions, MOST):
                for trace_ids in batches(of_agent_ids, MOST):
                    query = sa.select(steps.c.trace_id, steps.c.position).where(
                        steps.c.trace_id.in_(trace_ids), steps.c.position.in_(part)
                    )
                    for row in connection.execute(query):
                        existing.add((kind, row.trace_id, row.position))
        else:
            existing.update((kind, row_id, None) for row_id in of_agent)
    return existing


_WAITING = (
    sa.select(feedback_targets)
    .join(feedback, feedback.c.id == feedback_targets.c.feedback_id)
    .where(feedback_targets.c.target_id.is_(None))
)


def _link_waiting(
    connection: sa.Connection, scope: Scope, arrived: Mapping[Target, str | None]
) -> None:
    """Set the target of this agent's feedback that waited for rows which have just arrived."""
    names = {name for name in arrived.values() if name is not None}
    names.update(target_id for _, target_id, _ in arrived)
    links: list[tuple[Any, str]] = []
    for part in batches(names, MOST):
        query = _WAITING.where(
            feedback.c.agent_id == scope.agent_id, feedback_targets.c.external_id.in_(part)
        )
        for row in connection.execute(query):
            target = _target(scope, row.kind, row.external_id, row.source, row.step)
            if target in arrived:
                _, target_id, _ = target
                links.append((row, target_id))
    _set_targets(connection, links)


def _set_targets(connection: sa.Connection, links: Sequence[tuple[Any, str]]) -> None:
    """Write the target ids; `links` are (row of feedback_targets, id)."""
    if not links:
        return
    statement = (
        feedback_targets.update()
        .where(
            feedback_targets.c.feedback_id == sa.bindparam("row_feedback_id"),
            feedback_targets.c.position == sa.bindparam("row_position"),
        )
        .values(target_id=sa.bindparam("new_target_id"))
    )
    parameters = [
        {
            "row_feedback_id": row.feedback_id,
            "row_position": row.position,
            "new_target_id": target_id,
        }
        for row, target_id in links
    ]
    connection.execute(statement, parameters)


def waiting_for_other_sources(
    connection: sa.Connection,
    scope: Scope,
    sources: Sequence[str],
    arrivals: UnlinkedRecords | None,
) -> list[str]:
    """Return the ids of feedback whose targets its own source never delivered: of all such
    feedback, or of that which these arrivals may link. `sources` is not empty."""
    waiting = _waiting_elsewhere(scope, sources).with_only_columns(feedback_targets.c.feedback_id)
    if arrivals is None:
        return sorted(set(connection.execute(waiting).scalars()))
    feedback_ids: set[str] = set()
    for part in batches(arrivals.feedback_ids, MOST):
        of_part = waiting.where(feedback_targets.c.feedback_id.in_(part))
        feedback_ids.update(connection.execute(of_part).scalars())
    # a name that several sources have links nothing, however much waits for it
    for part in batches(arrivals.names, MOST // len(sources) + 1):
        targets = [
            _target(scope, kind, name, source, None)
            for name in part
            for kind in ("trace", "session")
            for source in sources
        ]
        existing = _existing(connection, scope, targets)
        counts: Counter[str] = Counter()
        for name in part:
            for kind in ("trace", "session"):
                matches = {_target(scope, kind, name, source, None) for source in sources}
                counts[name] += len(matches & existing) == 1
        linkable = [name for name, count in counts.items() if count]
        of_part = waiting.where(feedback_targets.c.external_id.in_(linkable))
        feedback_ids.update(connection.execute(of_part).scalars())
    return sorted(feedback_ids)


def sources_of(connection: sa.Connection, scope: Scope) -> list[str]:
    """Return the sources of the agent's traces: those with the most, as an app may name any."""
    n_traces = sa.func.count()
    query = sa.select(traces.c.source).where(traces.c.agent_id == scope.agent_id)
    query = query.group_by(traces.c.source).order_by(n_traces.desc(), traces.c.source)
    return list(connection.execute(query.limit(MOST_SOURCES)).scalars())


def _waiting_elsewhere(scope: Scope, sources: Collection[str]) -> sa.Select[Any]:
    waiting = _WAITING.where(
        feedback.c.agent_id == scope.agent_id, feedback_targets.c.source == feedback.c.source
    )
    if len(sources) < 2:
        waiting = waiting.where(feedback_targets.c.source.not_in(sources))
    return waiting


def link_across_sources(
    connection: sa.Connection,
    scope: Scope,
    sources: Sequence[str],
    feedback_ids: Collection[str],
) -> None:
    """Link targets of this feedback that their own source never delivered to the one trace or
    session of that name in another source. If several sources have one, the target stays open."""
    waiting = _waiting_elsewhere(scope, sources)
    rows = list(connection.execute(waiting.where(feedback_targets.c.feedback_id.in_(feedback_ids))))
    candidates = {
        row: [_target(scope, row.kind, row.external_id, source, row.step) for source in sources]
        for row in rows
    }
    existing = _existing(connection, scope, list(chain.from_iterable(candidates.values())))
    links = []
    for row, targets in candidates.items():
        matches = {
            target_id for kind, target_id, step in targets if (kind, target_id, step) in existing
        }
        if len(matches) == 1:
            links.append((row, matches.pop()))
    _set_targets(connection, links)


def stored_names(
    connection: sa.Connection, scope: Scope, noun: str, names: Collection[str]
) -> set[str]:
    """Return the `names` (of traces, or of feedback) that the source of the scope has stored."""
    table, prefix = (traces, "trc") if noun == "trace" else (feedback, "fbk")
    names_by_id = {row_id(prefix, scope.agent, scope.source, name): name for name in names}
    return {names_by_id[row.id] for row in _select(connection, table.c.id, names_by_id)}


def recorded_answers(
    connection: sa.Connection, scope: Scope, records: Sequence[TraceRecord]
) -> list[tuple[Message, list[SourceAnswer]]]:
    """Return each of these traces as a message, with the answers of other sources in the session of
    the same name, and to the same input."""
    messages_of_client = []
    for record in records:
        *_, last = chain_of(record.input)
        messages_of_client.append(Message(record, last["id"]))

    # where else these sessions are
    query = sa.select(sessions.c.source).where(sessions.c.agent_id == scope.agent_id).distinct()
    other_sources = set(connection.execute(query).scalars()) - {scope.source}
    session_names: dict[str, str] = {}
    for record in records:
        if record.session is not None:
            for source in other_sources:
                session_id = row_id("ses", scope.agent, source, record.session)
                session_names[session_id] = record.session

    # their answers
    input_ids = {message.input_id for message in messages_of_client}
    of_others = (
        traces.c.agent_id == scope.agent_id,
        traces.c.source != scope.source,
        traces.c.output.is_not(None),
    )
    rows: dict[str, sa.Row[Any]] = {}
    for column, wanted in ((traces.c.session_id, session_names), (traces.c.input_id, input_ids)):
        for part in batches(list(wanted), MOST):
            query_part = sa.select(traces).where(*of_others, column.in_(part))
            rows |= {row.id: row for row in connection.execute(query_part)}
    questions = _questions(connection, {row.input_id for row in rows.values()})
    by_session: dict[str, list[SourceAnswer]] = {}
    by_input: dict[str, list[SourceAnswer]] = {}
    for row in rows.values():
        answer = SourceAnswer(
            source=row.source,
            name=row.external_id,
            session=session_names.get(row.session_id) or row.session_id,
            question=questions.get(row.input_id, ""),
            answer=row.output,
            occurred_at=row.occurred_at,
            metadata=row.metadata or {},
            input_id=row.input_id,
        )
        if row.session_id in session_names:
            by_session.setdefault(session_names[row.session_id], []).append(answer)
        else:
            by_input.setdefault(row.input_id, []).append(answer)
    return [
        (
            message,
            by_session.get(message.trace.session or "", []) + by_input.get(message.input_id, []),
        )
        for message in messages_of_client
    ]


def _questions(connection: sa.Connection, input_ids: Collection[str]) -> dict[str, str]:
    """Return id of an input -> the text of the user's last message in it."""
    texts: dict[str, str] = {}
    inputs_by_message = {input_id: [input_id] for input_id in input_ids}
    columns = messages.c.parent_id, messages.c.role, messages.c.content
    while inputs_by_message:  # mostly once: an input ends with the message of the user
        inputs_by_parent: dict[str, list[str]] = {}
        for row in _select(connection, messages.c.id, inputs_by_message, *columns):
            inputs = inputs_by_message[row.id]
            if row.role == "user":
                texts |= dict.fromkeys(inputs, question_of([{"role": "user", **row.content}]))
            elif row.parent_id is not None:
                inputs_by_parent.setdefault(row.parent_id, []).extend(inputs)
        inputs_by_message = inputs_by_parent
    return texts


def position_of(connection: sa.Connection, scope: Scope, server: str) -> dict[str, Any] | None:
    """Return the position up to which the source of the scope has read this server, or None if it
    never did."""
    position_id = _position_id(scope, server)
    query = sa.select(source_positions.c.position).where(source_positions.c.id == position_id)
    position = connection.execute(query).scalar()
    return dict(position) if position else None


def save_position(
    connection: sa.Connection, scope: Scope, server: str, position: Mapping[str, Any]
) -> None:
    """Store the position up to which the server was read."""
    position_id = _position_id(scope, server)
    values = {"position": dict(position), "recorded_at": datetime.now(UTC)}
    update = source_positions.update().where(source_positions.c.id == position_id)
    if not connection.execute(update.values(values)).rowcount:
        key = {
            "id": position_id,
            "agent_id": scope.agent_id,
            "source": scope.source,
            "server": server,
        }
        connection.execute(source_positions.insert().values(key | values))


def _position_id(scope: Scope, server: str) -> str:
    return row_id("pos", scope.agent, scope.source, server)


def named_targets(connection: sa.Connection, agent_id: str, name: str) -> list[sa.Row[Any]]:
    """Return (kind, id, source, external_id) of the traces and sessions with this id, ours or their
    source's."""
    rows: list[sa.Row[Any]] = []
    for kind, table in (("trace", traces), ("session", sessions)):
        columns = sa.literal(kind).label("kind"), table.c.id, table.c.source, table.c.external_id
        query = sa.select(*columns).where(
            table.c.agent_id == agent_id,
            sa.or_(has_id(table.c.id, name), table.c.external_id == name),
        )
        rows += connection.execute(query)
    return rows


def named_feedback(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """Return the ids of the feedback with this id, ours or its source's."""
    query = sa.select(feedback.c.id).where(
        feedback.c.agent_id == agent_id,
        sa.or_(has_id(feedback.c.id, name), feedback.c.external_id == name),
    )
    return list(connection.execute(query).scalars())


def latest_feedback(
    connection: sa.Connection, agent_id: str, kind: str | None, limit: int, after: str | None
) -> list[sa.RowMapping]:
    """Return a page of feedback, the newest first, starting after the row `after`, with the rater's
    name and kind and the sender's name. A page ends before its limit when its rows have as much
    content as a page may have. Raises InputError for an unknown `after`."""
    query = (
        sa.select(feedback.c.id)
        .where(feedback.c.agent_id == agent_id, *([feedback.c.kind == kind] if kind else []))
        .order_by(feedback.c.recorded_at.desc(), feedback.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(_is_behind(connection, feedback, agent_id, after))
    feedback_ids = connection.execute(query).scalars().all()
    length = content_length(feedback.c.value, feedback.c.comment, feedback.c.metadata)
    rows: list[sa.RowMapping] = []
    for part in batches(fitting(connection, feedback_ids, feedback.c.id, length), MOST):
        page = (
            sa.select(
                feedback,
                raters.c.external_id.label("rater"),
                raters.c.kind.label("rater_kind"),
                feedback_in_force.sender_name(),
            )
            .join(raters, raters.c.id == feedback.c.rater_id, isouter=True)
            .where(feedback.c.id.in_(part))
            .order_by(feedback.c.recorded_at.desc(), feedback.c.id)
        )
        rows += connection.execute(page).mappings()
    return rows


def _is_behind(
    connection: sa.Connection, table: sa.Table, agent_id: str, row_id: str
) -> sa.ColumnElement[bool]:
    """Return the condition for the rows that follow this one in a list of the agent's rows, newest
    first. Raises InputError if none of them has this id."""
    last = connection.execute(
        sa.select(table.c.recorded_at).where(table.c.id == row_id, table.c.agent_id == agent_id)
    ).scalar()
    if last is None:
        raise InputError(
            f"--after {row_id!r}",
            "no such row is in this list",
            "Give the id of the last row of a page, or leave it out",
        )
    same_time = sa.and_(table.c.recorded_at == last, table.c.id > row_id)
    return sa.or_(table.c.recorded_at < last, same_time)


def targets_of(connection: sa.Connection, feedback_ids: Sequence[str]) -> list[sa.RowMapping]:
    """Return all targets of these feedback rows, in order."""
    targets: list[sa.RowMapping] = []
    for part in batches(feedback_ids, MOST):
        query = sa.select(feedback_targets).where(feedback_targets.c.feedback_id.in_(part))
        in_order = query.order_by(feedback_targets.c.feedback_id, feedback_targets.c.position)
        targets += connection.execute(in_order).mappings()
    return targets


def signals(connection: sa.Connection, agent_id: str) -> Iterator[Any]:
    """Yield (id, kind, name, value, scale, rater, rater_kind, at, trace_id) of the feedback in
    force, each rater's newest.

    `trace_id` is the trace that the first target names, or whose step it is; None for sessions and
    for traces that have not arrived.
    """
    target = feedback_targets.c
    about_trace = sa.and_(
        target.feedback_id == feedback.c.id,
        target.position == 0,
        target.kind.in_(("trace", "step")),
    )
    query = (
        sa.select(
            feedback.c.id,
            feedback.c.kind,
            feedback.c.name,
            feedback.c.value,
            feedback.c.scale,
            raters.c.external_id.label("rater"),
            raters.c.kind.label("rater_kind"),
            feedback_in_force.STATED_AT.label("at"),
            target.target_id.label("trace_id"),
        )
        .select_from(
            feedback.outerjoin(raters, raters.c.id == feedback.c.rater_id).outerjoin(
                feedback_targets, about_trace
            )
        )
        .where(feedback.c.id.in_(feedback_in_force.newest_words(agent_id)))
    )
    yield from streamed(connection, query)


def feedback_count(connection: sa.Connection, agent_id: str) -> int:
    """Return the number of feedback rows, including those no longer in force; retractions do not
    count."""
    query = sa.select(sa.func.count()).where(
        feedback.c.agent_id == agent_id, feedback.c.retracts.is_(None)
    )
    return int(connection.execute(query).scalar_one())


def answering_models(connection: sa.Connection, agent_id: str) -> Iterator[Any]:
    """Yield (trace_id, number of the version, served_model, requested_model) of the last model call
    of every trace."""
    from_last = sa.func.row_number().over(
        partition_by=steps.c.trace_id, order_by=steps.c.position.desc()
    )
    calls = (
        sa.select(
            steps.c.trace_id,
            steps.c.model_version_id,
            steps.c.served_model,
            steps.c.requested_model,
            from_last.label("from_last"),
        )
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
        .where(calls.c.from_last == 1)
    )
    yield from streamed(connection, query)


def open_targets(connection: sa.Connection, agent_id: str) -> int:
    """Return the number of targets that have not arrived."""
    query = _WAITING.where(feedback.c.agent_id == agent_id).with_only_columns(sa.func.count())
    return int(connection.execute(query).scalar_one())


def case_rows(
    connection: sa.Connection, agent_id: str, basis: str | None, limit: int, after: str | None
) -> list[sa.RowMapping]:
    """Return a page of cases, the newest first, starting after the row `after`, with the last
    message of their input and the reviewer's name. Raises InputError for an unknown `after`."""
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
    if after is not None:
        query = query.where(_is_behind(connection, cases, agent_id, after))
    return list(connection.execute(query).mappings())


def case_row(connection: sa.Connection, agent_id: str, case_id: str) -> sa.RowMapping | None:
    """Return a case of the agent with the name of its reviewer, or None."""
    query = (
        sa.select(cases, raters.c.external_id.label("reviewer"))
        .join(raters, raters.c.id == cases.c.reviewer_id, isouter=True)
        .where(cases.c.agent_id == agent_id, cases.c.id == case_id)
    )
    return connection.execute(query).mappings().one_or_none()


def vouch(connection: sa.Connection, scope: Scope, case_ids: Collection[str]) -> None:
    """Make these cases gold; the reviewer of the scope vouches for them."""
    _update_vouched(connection, scope, case_ids, {})


def edit_case(connection: sa.Connection, scope: Scope, case_id: str, record: CaseRecord) -> None:
    """Replace what makes an answer to this case right by that of the record; the reviewer of the
    scope vouches for it."""
    content = {
        "reference": record.reference,
        "checker": record.checker,
        "checker_config": record.checker_config,
        "group_key": record.group,
        "fingerprint": record.name_and_fingerprint()[1],
    }
    _update_vouched(connection, scope, [case_id], content)


def _update_vouched(
    connection: sa.Connection, scope: Scope, case_ids: Collection[str], content: Row
) -> None:
    rows = Rows(scope, {})
    values = {**content, "basis": scope.basis, "reviewer_id": rows.reviewer()}
    _insert_missing(connection, raters, rows.raters)
    for part in batches(sorted(case_ids)):
        connection.execute(
            cases.update()
            .where(cases.c.agent_id == scope.agent_id, cases.c.id.in_(part))
            .values(**values)
        )


def withdraw_review(connection: sa.Connection, case_id: str) -> None:
    """Set the basis of a gold case to feedback, without a reviewer."""
    connection.execute(
        cases.update().where(cases.c.id == case_id).values(basis="feedback", reviewer_id=None)
    )


def gold_inputs(connection: sa.Connection, agent_id: str) -> set[str]:
    """Return the inputs of the agent's gold cases."""
    query = sa.select(cases.c.input_id).where(cases.c.agent_id == agent_id, cases.c.basis == "gold")
    return set(connection.execute(query).scalars())


def case_counts(connection: sa.Connection, agent_id: str) -> dict[str, int]:
    """Return basis -> number of cases."""
    query = (
        sa.select(cases.c.basis, sa.func.count())
        .where(cases.c.agent_id == agent_id)
        .group_by(cases.c.basis)
    )
    return dict(connection.execute(query).tuples().all())
