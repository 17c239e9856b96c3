"""SQL of retention: the old traces and versions, and which of them nothing stands on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from thumbwheel.db.batches import batches
from thumbwheel.db.schema import (
    aliases,
    cases,
    decisions,
    deployments,
    experiments,
    exports,
    exposed_calls,
    exposures,
    feedback_targets,
    loop_decisions,
    model_versions,
    steps,
    traces,
)
from thumbwheel.db.stored_rows import ids_of, select
from thumbwheel.erasure.subject_data import (
    delete,
    feedback_of,
    related_messages,
    unneeded_cases_and_messages,
)
from thumbwheel.erasure.types import SubjectRows
from thumbwheel.models.types import VersionState

ALIAS, DEPLOYED, EXPERIMENT_ARM = "an alias", "a deployment", "an experiment"
ANSWERED, CHILD = "rows of a dataset", "a version that was trained from it"
WAITING = "a decision that waits"
DATASET, GOLD = "rows of a dataset", "a gold case"
EXPERIMENT, COMPARISON = "an experiment", "a comparison with a newer answer"


@dataclass(frozen=True)
class OldTrace:
    """What is looked at of a trace."""

    id: str
    recorded_at: datetime
    session_id: str | None
    input_id: str
    case_id: str | None


def old_traces(
    connection: sa.Connection, agent_id: str, before: datetime, after: OldTrace | None, limit: int
) -> list[OldTrace]:
    """Return up to `limit` traces of an agent recorded before a time and after the trace `after`,
    oldest first."""
    columns = (
        traces.c.id,
        traces.c.recorded_at,
        traces.c.session_id,
        traces.c.input_id,
        traces.c.case_id,
    )
    query = (
        sa.select(*columns)
        .where(traces.c.agent_id == agent_id, traces.c.recorded_at < before)
        .order_by(traces.c.recorded_at, traces.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(
            traces.c.recorded_at >= after.recorded_at,
            sa.or_(traces.c.recorded_at > after.recorded_at, traces.c.id > after.id),
        )
    return [OldTrace(*row) for row in connection.execute(query)]


def removable(
    connection: sa.Connection, agent_id: str, old: Sequence[OldTrace], used: Set[str]
) -> tuple[SubjectRows, dict[str, str]]:
    """Return (the rows to delete, trace -> the reason to keep it). `used` are the ids that rows of
    datasets refer to."""
    by_id = {trace.id: trace for trace in old}
    reasons = _direct_reasons(connection, by_id, used)
    while True:
        remaining = by_id.keys() - reasons.keys()
        doomed = SubjectRows(traces=set(remaining))
        doomed.sessions = _empty_sessions(connection, by_id, remaining) - used
        doomed.feedback = feedback_of(connection, agent_id, doomed)
        unneeded_cases_and_messages(connection, agent_id, doomed)
        more = _shared_feedback(connection, doomed, used) | _gold(connection, by_id, doomed)
        if not more:
            doomed.mates = set()  # nothing of them was computed from what goes
            return doomed, reasons
        reasons |= more


def remove(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete these rows and everything that refers to them, as part of a write."""
    delete(connection, doomed)


def _direct_reasons(
    connection: sa.Connection, by_id: dict[str, OldTrace], used: Set[str]
) -> dict[str, str]:
    reasons = {trace_id: DATASET for trace_id in by_id if trace_id in used}
    inputs = {trace.input_id for trace in by_id.values()}
    gold_inputs = ids_of(select(connection, [cases.c.input_id], cases.c.input_id, inputs))
    for trace in by_id.values():
        if trace.case_id is not None or trace.input_id in gold_inputs:
            reasons.setdefault(trace.id, GOLD)
    for table in (exposures, exposed_calls):
        for row in select(connection, [table.c.trace_id], table.c.trace_id, by_id):
            reasons.setdefault(row.trace_id, EXPERIMENT)
    return reasons


def _empty_sessions(
    connection: sa.Connection, by_id: dict[str, OldTrace], remaining: Set[str]
) -> set[str]:
    """Return the sessions that have no trace left."""
    sessions = {by_id[trace_id].session_id for trace_id in remaining} - {None}
    columns = [traces.c.session_id, traces.c.id]
    rows = select(connection, columns, traces.c.session_id, sessions)
    in_use = {row.session_id for row in rows if row.id not in remaining}
    return {session for session in sessions if session is not None} - in_use


def _shared_feedback(
    connection: sa.Connection, doomed: SubjectRows, used: Set[str]
) -> dict[str, str]:
    """Return trace -> reason, for traces whose feedback is in a dataset or is also about a trace or
    session that stays."""
    target = feedback_targets.c
    columns = [target.feedback_id, target.target_id]
    about: dict[str, set[str]] = {}
    for row in select(connection, columns, target.feedback_id, doomed.feedback):
        if row.target_id is not None:
            about.setdefault(row.feedback_id, set()).add(row.target_id)
    reasons = {}
    for feedback_id, targets in about.items():
        reason = DATASET if feedback_id in used else None
        if targets - doomed.traces - doomed.sessions:
            reason = reason or COMPARISON
        if reason is not None:
            reasons.update(dict.fromkeys(targets & doomed.traces, reason))
    return reasons


def _gold(
    connection: sa.Connection, by_id: dict[str, OldTrace], doomed: SubjectRows
) -> dict[str, str]:
    """Return trace -> reason, for traces of the same conversation as a case that would be deleted;
    for all traces if none of them matches."""
    if not doomed.cases:
        return {}
    inputs = ids_of(select(connection, [cases.c.input_id], cases.c.id, doomed.cases))
    related = related_messages(connection, inputs)
    of_case = {name for name in doomed.traces if by_id[name].input_id in related}
    return dict.fromkeys(of_case or doomed.traces, GOLD)


@dataclass(frozen=True)
class RetiredVersion:
    """A version whose files are not needed any more."""

    id: str
    run_id: str | None
    files: Sequence[str]
    """Hashes of its adapter."""


def old_versions(connection: sa.Connection, agent_id: str, before: datetime) -> dict[str, str]:
    """Return id -> name of the versions with files of their own that were recorded, and last
    decided on, before this time."""
    decided_since = sa.select(decisions.c.version_id).where(decisions.c.recorded_at >= before)
    query = (
        sa.select(model_versions.c.id, model_versions.c.number, model_versions.c.adapter)
        .where(
            model_versions.c.agent_id == agent_id,
            model_versions.c.recorded_at < before,
            model_versions.c.state != VersionState.RETIRED,
            model_versions.c.id.not_in(decided_since),
        )
        .order_by(model_versions.c.number)
    )
    return {row.id: f"v{row.number}" for row in connection.execute(query) if row.adapter}


def needed_versions(
    connection: sa.Connection, agent_id: str, names: Iterable[str], used: Set[str]
) -> dict[str, str]:
    """Return version -> the reason to keep it, for the needed ones of `names`."""
    reasons: dict[str, str] = {}

    def add(reason: str, version_ids: Iterable[str | None]) -> None:
        for version_id in version_ids:
            if version_id in wanted:
                reasons.setdefault(version_id, reason)

    wanted = set(names)
    add(ALIAS, ids_of(select(connection, [aliases.c.version_id], aliases.c.version_id, wanted)))
    is_deployed = deployments.c.state.in_(("applying", "warm"))
    of_version = deployments.c.version_id
    add(DEPLOYED, ids_of(select(connection, [of_version], of_version, wanted, is_deployed)))
    plans = sa.select(experiments.c.plan).where(experiments.c.agent_id == agent_id)
    for plan in connection.execute(plans).scalars():
        add(EXPERIMENT_ARM, [arm["version_id"] for arm in plan["arms"]])
    for batch in batches(sorted(used)):
        answered = sa.select(steps.c.model_version_id).where(steps.c.trace_id.in_(batch)).distinct()
        add(ANSWERED, connection.execute(answered).scalars())
    parent = model_versions.c.parent_id
    add(CHILD, ids_of(select(connection, [parent], parent, wanted)))
    waits = loop_decisions.c.state == "waiting"
    decided = loop_decisions.c.version_id
    add(WAITING, ids_of(select(connection, [decided], decided, wanted, waits)))
    return reasons


def retire(connection: sa.Connection, version_ids: Iterable[str]) -> None:
    """Mark versions as retired, before their files are deleted."""
    for batch in batches(sorted(version_ids)):
        connection.execute(
            model_versions.update()
            .where(model_versions.c.id.in_(batch))
            .values(state=VersionState.RETIRED)
        )


def retired_versions(connection: sa.Connection, agent_id: str) -> list[RetiredVersion]:
    """Return the retired versions of an agent."""
    columns = (model_versions.c.id, model_versions.c.run_id, model_versions.c.adapter)
    query = sa.select(*columns).where(
        model_versions.c.agent_id == agent_id, model_versions.c.state == VersionState.RETIRED
    )
    return [
        RetiredVersion(row.id, row.run_id, list((row.adapter or {}).values()))
        for row in connection.execute(query)
    ]


def exports_of(connection: sa.Connection, version_ids: Sequence[str]) -> list[str]:
    """Return the folders of the versions' exports, sorted."""
    rows = select(connection, [exports.c.path], exports.c.version_id, version_ids)
    return sorted(ids_of(rows))
