"""SQL that finds and deletes everything that is stored about a subject.

A trace without a subject belongs to the erased subject where its session has no other subject, or
where its parent belongs to them. Their feedback as a rater is deleted too. Messages stay where
somebody else's trace or case has the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.batches import batches
from thumbwheel.db.schema import (
    cases,
    exposed_calls,
    exposures,
    feedback,
    feedback_targets,
    messages,
    quarantined_feedback,
    quarantines,
    raters,
    review_actions,
    review_assignments,
    review_items,
    review_queues,
    review_raters,
    review_targets,
    rewards,
    sessions,
    steps,
    subjects,
    suggestions,
    traces,
    users,
)
from thumbwheel.db.stored_rows import delete_rows, ids_of, rows_of_agent, select, set_null
from thumbwheel.erasure.types import SubjectRows

INSTRUCTIONS = ("system", "developer")
"""Roles of messages that are the owner's, not the subject's."""
NAMED_TABLES: Mapping[str, sa.Table] = {
    "feedback": feedback,
    "traces": traces,
    "subjects": subjects,
    "cases": cases,
    "sessions": sessions,
}


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


def delete(connection: sa.Connection, doomed: SubjectRows) -> None:
    """Delete the rows of `doomed` and what refers to them."""
    # Messages are deleted in batches, in any order, so their chains are taken apart first.
    set_null(connection, messages.c.parent_id, messages.c.id, doomed.messages)
    set_null(connection, cases.c.reviewer_id, cases.c.reviewer_id, doomed.raters)
    set_null(connection, traces.c.parent_id, traces.c.parent_id, doomed.traces)
    set_null(connection, quarantines.c.rater_id, quarantines.c.rater_id, doomed.raters)
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
        delete_rows(connection, table, key, wanted)


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
        delete_rows(connection, table, key, about)
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
