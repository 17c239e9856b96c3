"""All SQL of this stage: lineage and reports read the tables of the stages below; an erasure
deletes from them and owns `tombstones`.

A trace without a subject belongs to the erased subject where its session has no other subject, or
where its parent belongs to them. Their feedback as a rater is deleted too. Messages stay where
somebody else's trace or case has the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.batches import batches
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
    exposed_calls,
    exposures,
    feedback,
    feedback_targets,
    messages,
    model_versions,
    quarantined_feedback,
    quarantines,
    raters,
    request_keys,
    review_actions,
    review_assignments,
    review_items,
    review_queues,
    review_raters,
    review_targets,
    reward_models,
    rewards,
    runs,
    sessions,
    steps,
    subjects,
    suggestions,
    tombstones,
    traces,
    users,
)
from thumbwheel.loop.types import Record, SubjectRows
from thumbwheel.models.types import VersionState

ERASURE = "erasure"
"""Kind of tombstone that is the record of an erasure."""
INSTRUCTIONS = ("system", "developer")
"""Roles of messages that are the owner's, not the subject's."""
NAMED_TABLES: Mapping[str, sa.Table] = {
    "feedback": feedback,
    "traces": traces,
    "subjects": subjects,
    "cases": cases,
    "sessions": sessions,
}


def row_by_id(connection: sa.Connection, table: sa.Table, row_id: str | None) -> Record | None:
    """Return the row of `table` with this id, or None."""
    if not row_id:
        return None
    row = connection.execute(sa.select(table).where(table.c.id == row_id)).mappings().first()
    return _record(row) if row else None


def version(connection: sa.Connection, version_id: str | None) -> Record | None:
    """Return a model version's row, or None."""
    return row_by_id(connection, model_versions, version_id)


def run(connection: sa.Connection, run_id: str | None) -> Record | None:
    """Return a run's row, or None."""
    return row_by_id(connection, runs, run_id)


def dataset(connection: sa.Connection, dataset_id: str | None) -> Record | None:
    """Return a dataset's row, or None."""
    return row_by_id(connection, datasets, dataset_id)


def evaluations_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the evaluations in which the version was the candidate, oldest first."""
    return _all(connection, evaluations, evaluations.c.candidate_id == version_id)


def decisions_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the decisions about the version, oldest first."""
    return _all(connection, decisions, decisions.c.version_id == version_id)


def exports_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the exports of the version, oldest first."""
    return _all(connection, exports, exports.c.version_id == version_id)


def children_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the versions whose parent is this one, oldest first."""
    return _all(connection, model_versions, model_versions.c.parent_id == version_id)


def alias_names(connection: sa.Connection, version_id: str) -> list[str]:
    """Return the aliases that point at the version, sorted."""
    return list(
        connection.execute(
            sa.select(aliases.c.name)
            .where(aliases.c.version_id == version_id)
            .order_by(aliases.c.name)
        ).scalars()
    )


def trained_versions(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the agent's versions that came from a run, oldest first, each with its dataset_id."""
    joined = sa.select(model_versions, runs.c.dataset_id).join(
        runs, runs.c.id == model_versions.c.run_id
    )
    rows = connection.execute(
        joined.where(model_versions.c.agent_id == agent_id).order_by(model_versions.c.number)
    ).mappings()
    return [_record(row) for row in rows]


def trained_reward_models(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the agent's reward models, oldest first, each with its dataset_id."""
    joined = sa.select(reward_models, runs.c.dataset_id).join(
        runs, runs.c.id == reward_models.c.run_id
    )
    rows = connection.execute(
        joined.where(reward_models.c.agent_id == agent_id).order_by(reward_models.c.number)
    ).mappings()
    return [_record(row) for row in rows]


def source_ids(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """Return the ids of the agent's feedback, traces and subjects with this id (or beginning of
    one), or with this external id in any source."""
    row_ids: list[str] = []
    for table in (feedback, traces, subjects):
        has_name = has_id(table.c.id, name) | (table.c.external_id == name)
        query = sa.select(table.c.id).where(table.c.agent_id == agent_id, has_name)
        row_ids += connection.execute(query).scalars()
    return row_ids


def feedback_on(connection: sa.Connection, target_id: str) -> list[str]:
    """Return the ids of the feedback about a target."""
    query = (
        sa.select(feedback_targets.c.feedback_id)
        .where(feedback_targets.c.target_id == target_id)
        .distinct()
    )
    return list(connection.execute(query).scalars())


def target_ids(connection: sa.Connection, feedback_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return feedback id -> ids of its targets; unknown targets are left out."""
    target = feedback_targets.c
    by_feedback: dict[str, list[str]] = {}
    columns = [target.feedback_id, target.target_id]
    for row in select(connection, columns, target.feedback_id, feedback_ids):
        if row.target_id is not None:
            by_feedback.setdefault(row.feedback_id, []).append(row.target_id)
    return by_feedback


def _all(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> list[Record]:
    """Return the rows of `table` that meet the condition, oldest first."""
    rows = connection.execute(
        sa.select(table).where(where).order_by(table.c.recorded_at, table.c.id)
    ).mappings()
    return [_record(row) for row in rows]


def select(
    connection: sa.Connection, columns: Iterable[Any], key: Any, wanted: Iterable[Any], *where: Any
) -> Iterator[Any]:
    """Yield the rows of `columns` whose `key` is among `wanted`, in batches, so that there may be
    many."""
    for batch in batches(list(wanted)):
        yield from connection.execute(sa.select(*columns).where(key.in_(batch), *where))


def rows_of_agent(connection: sa.Connection, table: sa.Table, agent_id: str | None) -> list[Record]:
    """Return all rows of `table` that belong to the agent, oldest first; None selects all
    agents."""
    return _all(connection, table, sa.true() if agent_id is None else table.c.agent_id == agent_id)


def agent_slug(connection: sa.Connection, row_id: str) -> str | None:
    """Return the name of the agent that has a piece of feedback, a trace or a subject with this
    Thumbwheel id, or None."""
    for table in (feedback, traces, subjects):
        query = (
            sa.select(agents.c.slug)
            .join(table, table.c.agent_id == agents.c.id)
            .where(has_id(table.c.id, row_id))
        )
        slug = connection.execute(query).scalar()
        if slug:
            return str(slug)
    return None


def dataset_ids(connection: sa.Connection) -> list[str]:
    """Return the ids of all datasets of the home, newest first."""
    return list(
        connection.execute(
            sa.select(datasets.c.id).order_by(datasets.c.recorded_at.desc(), datasets.c.id)
        ).scalars()
    )


def rows_by_id(connection: sa.Connection, table: sa.Table, wanted: Iterable[str]) -> list[Record]:
    """Return the rows of `table` with these ids, in order of the ids."""
    return sorted(
        (_record(row._mapping) for row in select(connection, table.c, table.c.id, wanted)),
        key=lambda row: str(row["id"]),
    )


def erased_at(connection: sa.Connection, agent_id: str, keys: Iterable[str]) -> str | None:
    """Return when something with one of these keys was erased, as ISO text; None if nothing was."""
    of_agent = tombstones.c.agent_id == agent_id
    for row in select(connection, [tombstones.c.recorded_at], tombstones.c.key, keys, of_agent):
        return str(row.recorded_at.isoformat())
    return None


def rewards_of(connection: sa.Connection, target_ids: Iterable[str]) -> list[Record]:
    """Return the ledger's rewards for these targets."""
    return [
        _record(row._mapping)
        for row in select(connection, rewards.c, rewards.c.target_id, sorted(target_ids))
    ]


def aliases_at(connection: sa.Connection, version_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Return (alias, name of the version) for the aliases that point at one of these."""
    joined = sa.select(aliases.c.name, model_versions.c.number).join(
        model_versions, model_versions.c.id == aliases.c.version_id
    )
    rows = connection.execute(
        joined.where(aliases.c.version_id.in_(sorted(version_ids))).order_by(aliases.c.name)
    )
    return [(row.name, f"v{row.number}") for row in rows]


def record_tombstones(
    connection: sa.Connection, agent_id: str, keys: Iterable[tuple[str, str]], erased_at: datetime
) -> None:
    """Record (kind, key) as erased at this time; an existing tombstone gets the later time."""
    for kind, key in keys:
        same = (
            (tombstones.c.agent_id == agent_id)
            & (tombstones.c.kind == kind)
            & (tombstones.c.key == key)
        )
        update = tombstones.update().where(same).values(recorded_at=erased_at)
        if not connection.execute(update).rowcount:
            row = {
                "id": ids.new("tmb"),
                "agent_id": agent_id,
                "kind": kind,
                "key": key,
                "recorded_at": erased_at,
            }
            connection.execute(tombstones.insert().values(**row))


def erasures(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the records of the agent's erasures, oldest first."""
    return _all(
        connection, tombstones, (tombstones.c.agent_id == agent_id) & (tombstones.c.kind == ERASURE)
    )


def begin_erasure(
    connection: sa.Connection, agent_id: str, key: str, report: Mapping[str, Any], began: datetime
) -> str:
    """Add a record of an erasure; return its id."""
    erasure = ids.new("ers")
    row = {
        "id": erasure,
        "agent_id": agent_id,
        "kind": ERASURE,
        "key": key,
        "report": dict(report),
        "recorded_at": began,
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
    """Store a dataset's new manifest and fingerprint, and record its new files."""
    values = {"manifest": dict(manifest), "fingerprint": fingerprint}
    set_values(connection, datasets, dataset_id, values)
    for sha256, size in sizes.items():
        recorded = sa.select(artifacts.c.sha256).where(artifacts.c.sha256 == sha256)
        if connection.execute(recorded).scalar() is None:
            row = {
                "sha256": sha256,
                "kind": "dataset",
                "size": size,
                "recorded_at": datetime.now(UTC),
            }
            connection.execute(artifacts.insert().values(**row))


def files_in_use(connection: sa.Connection) -> set[str]:
    """Return the hashes of all files that a dataset, a reward model or a version that is not
    retired refers to."""
    in_use: set[str] = set()
    for manifest in connection.execute(sa.select(datasets.c.manifest)).scalars():
        in_use |= set(manifest["files"].values())
    # of a retired version the names of its files are all that is left
    adapters = sa.select(model_versions.c.adapter).where(
        model_versions.c.state != VersionState.RETIRED
    )
    for query in (adapters, sa.select(reward_models.c.files)):
        for files in connection.execute(query).scalars():
            in_use |= set((files or {}).values())
    return in_use


def artifact_kinds(connection: sa.Connection) -> dict[str, str]:
    """Return hash -> kind of every recorded blob."""
    return dict(connection.execute(sa.select(artifacts.c.sha256, artifacts.c.kind)).tuples().all())


def forget_artifacts(connection: sa.Connection, gone: Iterable[str]) -> None:
    """Delete the records of blobs that no longer exist."""
    _delete(connection, artifacts, artifacts.c.sha256, gone)


def subject_rows(
    connection: sa.Connection, agent_id: str, asked_names: Collection[str]
) -> SubjectRows:
    """Return everything stored about the subject with one of these names (in the sources, or the
    Thumbwheel id); empty if there is nothing."""
    doomed = SubjectRows()
    all_subjects = rows_of_agent(connection, subjects, agent_id)
    same_name = [
        row for row in all_subjects if row["id"] in asked_names or row["external_id"] in asked_names
    ]
    names = {row["external_id"] for row in same_name} | set(asked_names)
    doomed.subjects = {row["id"] for row in same_name}
    doomed.traces = ids_of(select(connection, [traces.c.id], traces.c.subject_id, doomed.subjects))
    _add_traces_and_sessions(connection, doomed)
    of_agent = raters.c.agent_id == agent_id
    doomed.named_raters = ids_of(
        select(connection, [raters.c.id], raters.c.external_id, names, of_agent)
    )
    doomed.senders = ids_of(select(connection, [users.c.id], users.c.name, names))
    doomed.feedback = feedback_of(connection, agent_id, doomed)
    unneeded_cases_and_messages(connection, agent_id, doomed)
    doomed.judged = doomed.mates | (_judged_traces(connection, doomed) - doomed.traces)
    doomed.raters = _raters_of(connection, doomed) | doomed.named_raters
    for kind, table in NAMED_TABLES.items():
        row_ids = getattr(doomed, kind)
        doomed.names[kind] = ids_of(select(connection, [table.c.external_id], table.c.id, row_ids))
    doomed.names["named_raters"] = ids_of(
        select(connection, [raters.c.external_id], raters.c.id, doomed.named_raters)
    )
    return doomed


def ids_of(rows: Iterable[Any]) -> set[str]:
    """Return the values of the first column, without duplicates."""
    return {row[0] for row in rows}


def _add_traces_and_sessions(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Add traces without a subject that belong to the subject all the same, and sessions that have
    no other trace."""
    columns = [traces.c.id, traces.c.session_id, traces.c.subject_id]
    no_subject = traces.c.subject_id.is_(None)
    session_ids: set[str] = set()
    in_sessions: list[Any] = []
    new = set(doomed.traces)
    while new:
        # each trace and each session is looked at once, as an app can make chains of thousands
        of_new = ids_of(select(connection, [traces.c.session_id], traces.c.id, new))
        new_sessions = of_new - session_ids - {None}
        rows = list(select(connection, columns, traces.c.session_id, new_sessions))
        shared_sessions = set()
        for row in rows:
            if row.subject_id is not None and row.subject_id not in doomed.subjects:
                shared_sessions.add(row.session_id)
        more = {row.id for row in rows if row.session_id not in shared_sessions}
        more |= ids_of(select(connection, columns, traces.c.parent_id, new, no_subject))
        session_ids |= new_sessions
        in_sessions += rows
        new = more - doomed.traces
        doomed.traces |= new
    in_use = {row.session_id for row in in_sessions if row.id not in doomed.traces}
    doomed.sessions = session_ids - in_use


def feedback_of(connection: sa.Connection, agent_id: str, doomed: SubjectRows) -> set[str]:
    """Return the feedback about these traces and sessions, the feedback by the subject, and all
    that supersedes or retracts such feedback."""
    target = feedback_targets.c
    id_column, of_agent = [feedback.c.id], feedback.c.agent_id == agent_id
    about = doomed.traces | doomed.sessions
    feedback_ids = ids_of(select(connection, [target.feedback_id], target.target_id, about))
    feedback_ids |= ids_of(select(connection, id_column, feedback.c.rater_id, doomed.named_raters))
    feedback_ids |= ids_of(
        select(connection, id_column, feedback.c.sender, doomed.senders, of_agent)
    )

    # Feedback that waits for a trace by its external id, unless somebody else's trace has that id.
    external_ids = ids_of(select(connection, [traces.c.external_id], traces.c.id, doomed.traces))
    same_external_id = select(
        connection,
        [traces.c.external_id, traces.c.id],
        traces.c.external_id,
        external_ids,
        traces.c.agent_id == agent_id,
    )
    external_ids -= {row.external_id for row in same_external_id if row.id not in doomed.traces}
    waiting = ids_of(
        select(
            connection,
            [target.feedback_id],
            target.external_id,
            external_ids | about,
            target.target_id.is_(None),
        )
    )
    of_agent = feedback.c.agent_id == agent_id
    feedback_ids |= ids_of(select(connection, id_column, feedback.c.id, waiting, of_agent))

    new = feedback_ids
    while new:
        more = ids_of(select(connection, id_column, feedback.c.supersedes, new))
        more |= ids_of(select(connection, id_column, feedback.c.retracts, new))
        new = more - feedback_ids
        feedback_ids = feedback_ids | new
    return feedback_ids


def _judged_traces(connection: sa.Connection, doomed: SubjectRows) -> set[str]:
    """Return the targets of the subject's feedback, and the traces of sessions among them."""
    target = feedback_targets.c
    targets = ids_of(select(connection, [target.target_id], target.feedback_id, doomed.feedback))
    targets -= {None}
    return targets | ids_of(select(connection, [traces.c.id], traces.c.session_id, targets))


def _raters_of(connection: sa.Connection, doomed: SubjectRows) -> set[str]:
    """Return the raters that gave this feedback, gave no other, and reviewed no case."""
    rater_ids = ids_of(select(connection, [feedback.c.rater_id], feedback.c.id, doomed.feedback))
    rater_ids -= {None}
    columns = [feedback.c.rater_id, feedback.c.id]
    with_other_feedback = set()
    for row in select(connection, columns, feedback.c.rater_id, rater_ids):
        if row.id not in doomed.feedback:
            with_other_feedback.add(row.rater_id)
    reviewers = ids_of(select(connection, [cases.c.reviewer_id], cases.c.reviewer_id, rater_ids))
    return rater_ids - with_other_feedback - reviewers


def unneeded_cases_and_messages(
    connection: sa.Connection, agent_id: str, doomed: SubjectRows
) -> None:
    """Add to `doomed` the cases whose prompt is a part or a continuation of one that only these
    traces have, and the messages that nothing else uses."""
    inputs = ids_of(select(connection, [traces.c.input_id], traces.c.id, doomed.traces))
    parents = related_messages(connection, inputs)
    trace_columns = [traces.c.input_id, traces.c.id]
    users = list(select(connection, trace_columns, traces.c.input_id, parents))
    doomed.mates = {row.id for row in users if row.input_id in inputs} - doomed.traces

    # Messages that somebody else's trace or conversation needs.
    columns = [messages.c.id, messages.c.parent_id]
    replies = select(connection, columns, messages.c.parent_id, parents)
    needed = {row.parent_id for row in replies if row.id not in parents}
    needed |= {row.input_id for row in users if row.id not in doomed.traces}
    needed = _with_ancestors(needed, parents)

    # Cases about messages that only the subject has.
    roles = [messages.c.id, messages.c.role]
    unneeded = select(connection, roles, messages.c.id, parents.keys() - needed)
    of_subject = {row.id for row in unneeded if row.role not in INSTRUCTIONS}
    of_agent = cases.c.agent_id == agent_id
    doomed.cases = ids_of(select(connection, [cases.c.id], cases.c.input_id, of_subject, of_agent))

    # Messages that no other case needs either.
    case_columns = [cases.c.input_id, cases.c.id]
    case_rows = select(connection, case_columns, cases.c.input_id, parents)
    inputs_of_cases = {row.input_id for row in case_rows if row.id not in doomed.cases}
    needed |= _with_ancestors(inputs_of_cases, parents)
    doomed.messages = parents.keys() - needed


def related_messages(connection: sa.Connection, inputs: set[str]) -> dict[str, str | None]:
    """Return message -> its parent, for `inputs` and all their ancestors and descendants."""
    columns = [messages.c.id, messages.c.parent_id]
    parents: dict[str, str | None] = {}
    wanted = inputs
    while wanted:
        above = set()
        for row in select(connection, columns, messages.c.id, wanted):
            parents[row.id] = row.parent_id
            above.add(row.parent_id)
        wanted = above - parents.keys() - {None}
    level = inputs
    while level:
        next_level = set()
        for row in select(connection, columns, messages.c.parent_id, level):
            if row.id not in parents:
                next_level.add(row.id)
                parents[row.id] = row.parent_id
        level = next_level
    return parents


def _with_ancestors(message_ids: Iterable[str], parents: Mapping[str, str | None]) -> set[str]:
    """Return the messages and all their ancestors."""
    ancestors: set[str] = set()
    for message_id in message_ids:
        ancestor: str | None = message_id
        while ancestor is not None and ancestor not in ancestors:
            ancestors.add(ancestor)
            ancestor = parents.get(ancestor)
    return ancestors


def forget_requests(connection: sa.Connection, agent: str) -> None:
    """Delete the stored answers to requests with idempotency keys, except for requests about
    another agent."""
    about = request_keys.c.agent
    connection.execute(request_keys.delete().where((about == agent) | about.is_(None)))


def forget_replies(connection: sa.Connection, agent_id: str) -> None:
    """Delete the stored model replies in the agent's evaluations."""
    connection.execute(answers.delete().where(answers.c.agent_id == agent_id))


def delete(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete the rows of `doomed` and what refers to them."""
    # Messages are deleted in batches, in any order, so their chains are taken apart first.
    _set_null(connection, messages.c.parent_id, messages.c.id, doomed.messages)
    _set_null(connection, cases.c.reviewer_id, cases.c.reviewer_id, doomed.raters)
    _set_null(connection, traces.c.parent_id, traces.c.parent_id, doomed.traces)
    _set_null(connection, quarantines.c.rater_id, quarantines.c.rater_id, doomed.raters)
    _delete_review(connection, doomed)
    for table, key, wanted in (
        (suggestions, suggestions.c.trace_id, doomed.traces),
        (suggestions, suggestions.c.feedback_id, doomed.feedback),
        (rewards, rewards.c.target_id, doomed.traces | doomed.cases | doomed.judged),
        (quarantined_feedback, quarantined_feedback.c.feedback_id, doomed.feedback),
        (feedback_targets, feedback_targets.c.feedback_id, doomed.feedback),
        (feedback, feedback.c.id, doomed.feedback),
        (exposures, exposures.c.trace_id, doomed.traces),
        (exposed_calls, exposed_calls.c.trace_id, doomed.traces),
        (steps, steps.c.trace_id, doomed.traces),
        (traces, traces.c.id, doomed.traces),
        (cases, cases.c.id, doomed.cases),
        (messages, messages.c.id, doomed.messages),
        (sessions, sessions.c.id, doomed.sessions),
        (subjects, subjects.c.id, doomed.subjects),
        (raters, raters.c.id, doomed.raters),
    ):
        _delete(connection, table, key, wanted)


def _delete_review(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete the items of rating queues about the subject's traces and cases, and the subject's
    acts as a rater."""
    about = ids_of(
        select(connection, [review_targets.c.item_id], review_targets.c.trace_id, doomed.traces)
    )
    about |= ids_of(
        select(connection, [review_targets.c.item_id], review_targets.c.case_id, doomed.cases)
    )
    columns = [review_items.c.queue_id, review_items.c.id]
    in_queues = list(select(connection, columns, review_items.c.id, about))
    for table, key in (
        (review_actions, review_actions.c.item_id),
        (review_assignments, review_assignments.c.item_id),
        (review_targets, review_targets.c.item_id),
        (review_items, review_items.c.id),
    ):
        _delete(connection, table, key, about)
    _forget_rater(connection, doomed)
    _recount_queues(connection, {row.queue_id for row in in_queues})


def _forget_rater(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete the subject's acts, leases and assignments as a rater in queues of the same agent."""
    names = sorted(doomed.names.get("named_raters", set()) | doomed.names.get("subjects", set()))
    agent_ids = ids_of(select(connection, [subjects.c.agent_id], subjects.c.id, doomed.subjects))
    agent_ids |= ids_of(select(connection, [raters.c.agent_id], raters.c.id, doomed.named_raters))
    queues = sa.select(review_queues.c.id).where(review_queues.c.agent_id.in_(sorted(agent_ids)))
    for batch in batches(names):
        held = sa.select(review_assignments.c.item_id).where(
            review_assignments.c.rater.in_(batch),
            review_assignments.c.queue_id.in_(queues),
            review_assignments.c.state == "leased",
        )
        free_again = review_items.update().where(review_items.c.id.in_(held))
        connection.execute(free_again.values(free=review_items.c.free + 1))
        for table in (review_actions, review_assignments, review_raters):
            of_rater = (table.c.rater.in_(batch), table.c.queue_id.in_(queues))
            connection.execute(table.delete().where(*of_rater))


def _recount_queues(connection: sa.Connection, queue_ids: Iterable[str]) -> None:
    """Count the items of these queues again."""
    for queue_id in sorted(queue_ids):
        config = connection.execute(
            sa.select(review_queues.c.config).where(review_queues.c.id == queue_id)
        ).scalar_one()
        of_queue = review_items.c.queue_id == queue_id
        is_done = review_items.c.done >= config.get("overlap", 1)
        count = sa.select(sa.func.count()).select_from(review_items)
        values = {
            "items": connection.execute(count.where(of_queue)).scalar_one(),
            "done": connection.execute(count.where(of_queue, is_done)).scalar_one(),
        }
        update = review_queues.update().where(review_queues.c.id == queue_id)
        connection.execute(update.values(**values))


def _delete(
    connection: sa.Connection, table: sa.Table, column: sa.Column[Any], values: Iterable[str]
) -> None:
    """Delete the rows whose `column` is among `values`."""
    for batch in batches(sorted(values)):
        connection.execute(table.delete().where(column.in_(batch)))


def _set_null(
    connection: sa.Connection, column: sa.Column[Any], key: sa.Column[Any], values: Iterable[str]
) -> None:
    """Set `column` to null where `key` is among `values`."""
    for batch in batches(sorted(values)):
        update = column.table.update().where(key.in_(batch))
        connection.execute(update.values({column.name: None}))


def _record(row: sa.RowMapping) -> dict[str, Any]:
    """Return the row as a JSON value."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
    }
