"""All SQL of this stage: lineage and reports read the tables of the stages below, an erasure
deletes from them and owns `tombstones`.

A trace without a subject is the erased subject's where its session knows no other one, and where it
stands below one of theirs. What they said as a rater goes too. Messages stay where somebody else's
trace or case has the same content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import (
    agents,
    aliases,
    answers,
    artifacts,
    cases,
    datasets,
    decisions,
    evaluations,
    exports,
    feedback,
    feedback_targets,
    messages,
    model_versions,
    raters,
    reward_models,
    rewards,
    runs,
    sessions,
    steps,
    subjects,
    suggestions,
    tombstones,
    traces,
)
from thumbwheel.loop.types import Record, SubjectRows

MOST = 900
"""Values in one IN (...): SQLite takes at least 999 variables."""
ERASURE = "erasure"
"""Kind of tombstone that is the record of an erasure."""
INSTRUCTIONS = ("system", "developer")
"""Roles of messages that are the owner's, not the subject's."""
OWNERS: Mapping[str, sa.Table] = {
    "feedback": feedback,
    "traces": traces,
    "subjects": subjects,
    "cases": cases,
    "sessions": sessions,
}


def one(connection: sa.Connection, table: sa.Table, key: str | None) -> Record | None:
    """The row of `table` with id `key`."""
    row = (
        connection.execute(sa.select(table).where(table.c.id == key)).mappings().first()
        if key
        else None
    )
    return _plain(row) if row else None


def version(connection: sa.Connection, version_id: str | None) -> Record | None:
    """A model version's row."""
    return one(connection, model_versions, version_id)


def run(connection: sa.Connection, run_id: str | None) -> Record | None:
    """A run's row."""
    return one(connection, runs, run_id)


def dataset(connection: sa.Connection, dataset_id: str | None) -> Record | None:
    """A dataset's row."""
    return one(connection, datasets, dataset_id)


def evaluations_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Evaluations in which the version was the candidate, oldest first."""
    return _all(connection, evaluations, evaluations.c.candidate_id == version_id)


def decisions_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Decisions about the version, oldest first."""
    return _all(connection, decisions, decisions.c.version_id == version_id)


def exports_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Exports of the version, oldest first."""
    return _all(connection, exports, exports.c.version_id == version_id)


def children_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Versions whose parent it is, oldest first."""
    return _all(connection, model_versions, model_versions.c.parent_id == version_id)


def alias_names(connection: sa.Connection, version_id: str) -> list[str]:
    """Aliases that point at the version."""
    return list(
        connection.execute(
            sa.select(aliases.c.name)
            .where(aliases.c.version_id == version_id)
            .order_by(aliases.c.name)
        ).scalars()
    )


def trained_versions(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Versions of the agent that came from a run, oldest first, each with its dataset_id."""
    joined = sa.select(model_versions, runs.c.dataset_id).join(
        runs, runs.c.id == model_versions.c.run_id
    )
    rows = connection.execute(
        joined.where(model_versions.c.agent_id == agent_id).order_by(model_versions.c.number)
    ).mappings()
    return [_plain(row) for row in rows]


def trained_reward_models(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Reward models of the agent, oldest first, each with its dataset_id."""
    joined = sa.select(reward_models, runs.c.dataset_id).join(
        runs, runs.c.id == reward_models.c.run_id
    )
    rows = connection.execute(
        joined.where(reward_models.c.agent_id == agent_id).order_by(reward_models.c.number)
    ).mappings()
    return [_plain(row) for row in rows]


def source_ids(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """The ids of feedback, traces or subjects of the agent that `name` means: an id, or an external
    id of any source."""
    found = []
    for table in (feedback, traces, subjects):
        named = (table.c.agent_id == agent_id) & (
            has_id(table.c.id, name) | (table.c.external_id == name)
        )
        found += list(connection.execute(sa.select(table.c.id).where(named)).scalars())
    return found


def feedback_on(connection: sa.Connection, target_id: str) -> list[str]:
    """Ids of the feedback about a target."""
    query = (
        sa.select(feedback_targets.c.feedback_id)
        .where(feedback_targets.c.target_id == target_id)
        .distinct()
    )
    return list(connection.execute(query).scalars())


def _all(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> list[Record]:
    rows = connection.execute(
        sa.select(table).where(where).order_by(table.c.recorded_at, table.c.id)
    ).mappings()
    return [_plain(row) for row in rows]


def select(
    connection: sa.Connection, columns: Iterable[Any], key: Any, wanted: Iterable[Any], *where: Any
) -> Iterator[Any]:
    """Rows of `columns` whose `key` is among `wanted`, however many these are."""
    values = list(wanted)
    for start in range(0, len(values), MOST):
        yield from connection.execute(
            sa.select(*columns).where(key.in_(values[start : start + MOST]), *where)
        )


def rows_of_agent(connection: sa.Connection, table: sa.Table, agent_id: str | None) -> list[Record]:
    """All rows of `table` of the agent, or of every one, oldest first."""
    return _all(connection, table, sa.true() if agent_id is None else table.c.agent_id == agent_id)


def agent_slug(connection: sa.Connection, row_id: str) -> str | None:
    """The name of the agent that has a piece of feedback, a trace or a subject with this id of
    ours."""
    for table in (feedback, traces, subjects):
        query = (
            sa.select(agents.c.slug)
            .join(table, table.c.agent_id == agents.c.id)
            .where(has_id(table.c.id, row_id))
        )
        if found := connection.execute(query).scalar():
            return str(found)
    return None


def dataset_ids(connection: sa.Connection) -> list[str]:
    """All datasets of the home, newest first."""
    return list(
        connection.execute(
            sa.select(datasets.c.id).order_by(datasets.c.recorded_at.desc(), datasets.c.id)
        ).scalars()
    )


def rows_by_id(connection: sa.Connection, table: sa.Table, wanted: Iterable[str]) -> list[Record]:
    """The rows of `table` with these ids, in order of the ids."""
    return sorted(
        (_plain(row._mapping) for row in select(connection, table.c, table.c.id, wanted)),
        key=lambda row: str(row["id"]),
    )


def erased_at(connection: sa.Connection, agent_id: str, keys: Iterable[str]) -> str | None:
    """When something with one of these keys was erased."""
    found = select(
        connection,
        [tombstones.c.recorded_at],
        tombstones.c.key,
        keys,
        tombstones.c.agent_id == agent_id,
    )
    return next((row.recorded_at.isoformat() for row in found), None)


def chain(connection: sa.Connection, message_id: str) -> list[Record]:
    """The messages that end at this one, oldest first."""
    found: list[Record] = []
    at: str | None = message_id
    while at is not None and (row := one(connection, messages, at)):
        found.append({"role": row["role"], **row["content"]})
        at = row["parent_id"]
    return found[::-1]


def rewards_of(connection: sa.Connection, target_ids: Iterable[str]) -> list[Record]:
    """What the ledger holds about targets."""
    return [
        _plain(row._mapping)
        for row in select(connection, rewards.c, rewards.c.target_id, sorted(target_ids))
    ]


def run_ids(connection: sa.Connection) -> set[str]:
    """All runs of the home."""
    return _ids(connection.execute(sa.select(runs.c.id)))


def aliases_at(connection: sa.Connection, version_ids: Iterable[str]) -> list[tuple[str, str]]:
    """(alias, name of the version) for the aliases that point at one of these."""
    joined = sa.select(aliases.c.name, model_versions.c.number).join(
        model_versions, model_versions.c.id == aliases.c.version_id
    )
    rows = connection.execute(
        joined.where(aliases.c.version_id.in_(sorted(version_ids))).order_by(aliases.c.name)
    )
    return [(row.name, f"v{row.number}") for row in rows]


def record_tombstones(
    connection: sa.Connection, agent_id: str, keys: Iterable[tuple[str, str]], at: datetime
) -> None:
    """Remember (kind, key) as erased at `at`; those that are known get the later time."""
    for kind, key in keys:
        same = (
            (tombstones.c.agent_id == agent_id)
            & (tombstones.c.kind == kind)
            & (tombstones.c.key == key)
        )
        if not connection.execute(tombstones.update().where(same).values(recorded_at=at)).rowcount:
            row = {
                "id": ids.new("tmb"),
                "agent_id": agent_id,
                "kind": kind,
                "key": key,
                "recorded_at": at,
            }
            connection.execute(tombstones.insert().values(**row))


def erasures(connection: sa.Connection, agent_id: str) -> list[Record]:
    """The records of erasures of the agent, oldest first."""
    return _all(
        connection, tombstones, (tombstones.c.agent_id == agent_id) & (tombstones.c.kind == ERASURE)
    )


def begin_erasure(
    connection: sa.Connection, agent_id: str, key: str, report: Mapping[str, Any], at: datetime
) -> str:
    """A new record of an erasure; returns its id."""
    erasure = ids.new("ers")
    row = {
        "id": erasure,
        "agent_id": agent_id,
        "kind": ERASURE,
        "key": key,
        "report": dict(report),
        "recorded_at": at,
    }
    connection.execute(tombstones.insert().values(**row))
    return erasure


def note_erasure(connection: sa.Connection, erasure: str, report: Mapping[str, Any]) -> None:
    """Replace the report of an erasure."""
    connection.execute(
        tombstones.update().where(tombstones.c.id == erasure).values(report=dict(report))
    )


def set_values(
    connection: sa.Connection, table: sa.Table, row_id: str, values: Mapping[str, Any]
) -> None:
    """Change columns of one row."""
    connection.execute(table.update().where(table.c.id == row_id).values(**values))


def replace_dataset(
    connection: sa.Connection,
    dataset_id: str,
    manifest: Mapping[str, Any],
    fingerprint: str,
    sizes: Mapping[str, int],
) -> None:
    """A dataset's new files."""
    set_values(
        connection, datasets, dataset_id, {"manifest": dict(manifest), "fingerprint": fingerprint}
    )
    for sha256, size in sizes.items():
        if (
            connection.execute(
                sa.select(artifacts.c.sha256).where(artifacts.c.sha256 == sha256)
            ).scalar()
            is None
        ):
            row = {
                "sha256": sha256,
                "kind": "dataset",
                "size": size,
                "recorded_at": datetime.now(UTC),
            }
            connection.execute(artifacts.insert().values(**row))


def files_in_use(connection: sa.Connection) -> set[str]:
    """Hashes of all files that a dataset, a version or a reward model names."""
    found: set[str] = set()
    for manifest in connection.execute(sa.select(datasets.c.manifest)).scalars():
        found |= set(manifest["files"].values())
    for column in (model_versions.c.adapter, reward_models.c.files):
        for files in connection.execute(sa.select(column)).scalars():
            found |= set((files or {}).values())
    return found


def artifact_kinds(connection: sa.Connection) -> dict[str, str]:
    """Hash -> kind of every recorded blob."""
    return dict(connection.execute(sa.select(artifacts.c.sha256, artifacts.c.kind)).tuples().all())


def forget_artifacts(connection: sa.Connection, gone: Iterable[str]) -> None:
    """Blobs that are gone."""
    _change(connection, artifacts, artifacts.c.sha256, gone, None)


def subject_rows(connection: sa.Connection, agent_id: str, name: str) -> SubjectRows:
    """Everything stored about the subject `name` (its own name or our id); empty where there is
    nothing."""
    found = SubjectRows()
    mine = [
        row
        for row in rows_of_agent(connection, subjects, agent_id)
        if name in (row["id"], row["external_id"])
    ]
    called = {row["external_id"] for row in mine} or {name}
    found.subjects = {row["id"] for row in mine}
    found.traces = _ids(select(connection, [traces.c.id], traces.c.subject_id, found.subjects))
    _widen(connection, found)
    found.own_raters = _ids(
        select(
            connection, [raters.c.id], raters.c.external_id, called, raters.c.agent_id == agent_id
        )
    )
    found.feedback = _said(connection, agent_id, found)
    _cases_and_messages(connection, agent_id, found)
    aimed = _ids(
        select(
            connection,
            [feedback_targets.c.target_id],
            feedback_targets.c.feedback_id,
            found.feedback,
        )
    ) - {None}
    aimed |= _ids(select(connection, [traces.c.id], traces.c.session_id, aimed))
    found.judged = found.mates | (aimed - found.traces)
    heard = _ids(select(connection, [feedback.c.rater_id], feedback.c.id, found.feedback)) - {None}
    others = {
        row.rater_id
        for row in select(
            connection, [feedback.c.rater_id, feedback.c.id], feedback.c.rater_id, heard
        )
        if row.id not in found.feedback
    }
    vouching = _ids(select(connection, [cases.c.reviewer_id], cases.c.reviewer_id, heard))
    found.raters = (heard - others - vouching) | found.own_raters
    for kind, table in OWNERS.items():
        found.names[kind] = _ids(
            select(connection, [table.c.external_id], table.c.id, getattr(found, kind))
        )
    found.names["own_raters"] = _ids(
        select(connection, [raters.c.external_id], raters.c.id, found.own_raters)
    )
    return found


def _ids(rows: Iterable[Any]) -> set[str]:
    return {row[0] for row in rows}


def _widen(connection: sa.Connection, found: SubjectRows) -> None:
    """Traces without a subject that are the subject's all the same, and sessions that have no trace
    left."""
    columns = [traces.c.id, traces.c.session_id, traces.c.subject_id]
    while True:
        inside = _ids(select(connection, [traces.c.session_id], traces.c.id, found.traces)) - {None}
        rows = list(select(connection, columns, traces.c.session_id, inside))
        shared = {
            row.session_id
            for row in rows
            if row.subject_id is not None and row.subject_id not in found.subjects
        }
        more = {row.id for row in rows if row.session_id not in shared}
        more |= _ids(
            select(
                connection, columns, traces.c.parent_id, found.traces, traces.c.subject_id.is_(None)
            )
        )
        if more <= found.traces:
            break
        found.traces |= more
    found.sessions = inside - {row.session_id for row in rows if row.id not in found.traces}


def _said(connection: sa.Connection, agent_id: str, found: SubjectRows) -> set[str]:
    """Feedback about these traces and sessions, by the subject, and what replaces or takes back
    such feedback."""
    aim, own = feedback_targets.c, [feedback.c.id]
    said = _ids(select(connection, [aim.feedback_id], aim.target_id, found.traces | found.sessions))
    said |= _ids(select(connection, own, feedback.c.rater_id, found.own_raters))
    called = _ids(select(connection, [traces.c.external_id], traces.c.id, found.traces))
    known = select(
        connection,
        [traces.c.external_id, traces.c.id],
        traces.c.external_id,
        called,
        traces.c.agent_id == agent_id,
    )
    called -= {row.external_id for row in known if row.id not in found.traces}
    waiting = _ids(
        select(
            connection,
            [aim.feedback_id],
            aim.external_id,
            called | found.traces | found.sessions,
            aim.target_id.is_(None),
        )
    )
    said |= _ids(select(connection, own, feedback.c.id, waiting, feedback.c.agent_id == agent_id))
    while True:
        more = {
            row[0]
            for column in (feedback.c.supersedes, feedback.c.retracts)
            for row in select(connection, own, column, said)
        }
        if more <= said:
            return said
        said |= more


def _cases_and_messages(connection: sa.Connection, agent_id: str, found: SubjectRows) -> None:
    """Cases whose question is a part or a continuation of one that only these traces asked, and
    messages that nobody else uses."""
    inputs = _ids(select(connection, [traces.c.input_id], traces.c.id, found.traces))
    parents = _threads(connection, inputs)
    used = list(select(connection, [traces.c.input_id, traces.c.id], traces.c.input_id, parents))
    found.mates = {row.id for row in used if row.input_id in inputs} - found.traces
    alive = {
        row.parent_id
        for row in select(
            connection, [messages.c.id, messages.c.parent_id], messages.c.parent_id, parents
        )
        if row.id not in parents
    }
    alive = _upwards(alive | {row.input_id for row in used if row.id not in found.traces}, parents)
    roles = [messages.c.id, messages.c.role]
    lonely = {
        row.id
        for row in select(connection, roles, messages.c.id, parents.keys() - alive)
        if row.role not in INSTRUCTIONS
    }
    found.cases = _ids(
        select(connection, [cases.c.id], cases.c.input_id, lonely, cases.c.agent_id == agent_id)
    )
    asked = select(connection, [cases.c.input_id, cases.c.id], cases.c.input_id, parents)
    alive |= _upwards({row.input_id for row in asked if row.id not in found.cases}, parents)
    found.messages = parents.keys() - alive


def _threads(connection: sa.Connection, inputs: set[str]) -> dict[str, str | None]:
    """Message -> the one before it, for everything that leads to `inputs` or goes on from them."""
    columns, found, wanted = [messages.c.id, messages.c.parent_id], dict[str, str | None](), inputs
    while wanted:
        found |= {
            row.id: row.parent_id for row in select(connection, columns, messages.c.id, wanted)
        }
        wanted = {parent for parent in found.values() if parent is not None} - found.keys()
    below = inputs
    while below:
        level = {
            row.id: row.parent_id
            for row in select(connection, columns, messages.c.parent_id, below)
            if row.id not in found
        }
        found, below = found | level, set(level)
    return found


def _upwards(some: Iterable[str], parents: Mapping[str, str | None]) -> set[str]:
    """`some` and everything that leads to them."""
    found: set[str] = set()
    for one_ in some:
        at: str | None = one_
        while at is not None and at not in found:
            found.add(at)
            at = parents.get(at)
    return found


def forget_replies(connection: sa.Connection, agent_id: str) -> None:
    """Delete what models answered in evaluations of the agent; whatever is asked again is computed
    again."""
    connection.execute(answers.delete().where(answers.c.agent_id == agent_id))


def delete(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete the rows of `doomed` and what hangs on them."""
    connection.exec_driver_sql("PRAGMA secure_delete=ON")
    connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
    _change(connection, cases, cases.c.reviewer_id, doomed.raters, {"reviewer_id": None})
    _change(connection, traces, traces.c.parent_id, doomed.traces, {"parent_id": None})
    for table, key, wanted in (
        (suggestions, suggestions.c.trace_id, doomed.traces),
        (suggestions, suggestions.c.feedback_id, doomed.feedback),
        (rewards, rewards.c.target_id, doomed.traces | doomed.cases | doomed.judged),
        (feedback_targets, feedback_targets.c.feedback_id, doomed.feedback),
        (feedback, feedback.c.id, doomed.feedback),
        (steps, steps.c.trace_id, doomed.traces),
        (traces, traces.c.id, doomed.traces),
        (cases, cases.c.id, doomed.cases),
        (messages, messages.c.id, doomed.messages),
        (sessions, sessions.c.id, doomed.sessions),
        (subjects, subjects.c.id, doomed.subjects),
        (raters, raters.c.id, doomed.raters),
    ):
        _change(connection, table, key, wanted, None)


def _change(
    connection: sa.Connection,
    table: sa.Table,
    key: Any,
    wanted: Iterable[str],
    values: Mapping[str, Any] | None,
) -> None:
    """Give the rows whose `key` is among `wanted` these values; None deletes them."""
    some = sorted(wanted)
    for start in range(0, len(some), MOST):
        where = key.in_(some[start : start + MOST])
        connection.execute(
            table.delete().where(where)
            if values is None
            else table.update().where(where).values(**values)
        )


def _plain(row: sa.RowMapping) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
    }
