"""All SQL of rating queues.

`free` of an item is what its queue's overlap leaves after those who hold or rated it. An item is
handed out where `free` is above 0, to whoever does not have it already. Everything that changes it
happens under the lock of the agent, so two raters get the same item only where the overlap wants
both.

Behind a rater's `frontier` there is no item that they could take, so that the search for the next
one begins there, however long the queue is. Whatever sets an item free moves the frontiers of its
queue back before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.engine import streamed
from thumbwheel.db.schema import (
    cases,
    feedback,
    feedback_targets,
    review_actions,
    review_assignments,
    review_items,
    review_queues,
    review_raters,
    review_targets,
    steps,
    traces,
)
from thumbwheel.review.types import (
    AssignmentState,
    ItemKind,
    ItemTargets,
    Queue,
    QueueConfig,
    QueueState,
)

Row = dict[str, Any]
STEPS = 200
MOST_RELEASED = 1_000
"""Expired leases that end in one transaction, for which everybody's writes wait; the next request
ends more."""
"""Steps of one trace that a rater sees."""


# queues


def queues(
    connection: sa.Connection, agent_id: str, name: str | None = None, every: bool = True
) -> list[Queue]:
    """Return the agent's queues, newest first; with `name`, those of this name or id."""
    query = sa.select(review_queues).where(review_queues.c.agent_id == agent_id)
    if name is not None:
        query = query.where(sa.or_(review_queues.c.name == name, has_id(review_queues.c.id, name)))
    if not every:
        query = query.where(review_queues.c.state != QueueState.CLOSED)
    in_order = query.order_by(review_queues.c.recorded_at.desc(), review_queues.c.id)
    rows = connection.execute(in_order).mappings().all()
    raters: dict[str, list[str]] = {}
    listed = sa.select(review_raters.c.queue_id, review_raters.c.rater).where(
        review_raters.c.assigned, review_raters.c.queue_id.in_([row["id"] for row in rows])
    )
    for queue_id, rater in connection.execute(listed.order_by(review_raters.c.rater)):
        raters.setdefault(queue_id, []).append(rater)
    return [_queue(row, raters.get(row["id"], ())) for row in rows]


def _queue(row: sa.RowMapping, raters: Iterable[str]) -> Queue:
    stored = dict(row["config"])
    kind = ItemKind(stored.pop("kind"))
    return Queue(
        id=row["id"],
        agent_id=row["agent_id"],
        name=row["name"],
        kind=kind,
        config=QueueConfig.model_validate(stored | {"raters": tuple(raters)}),
        state=QueueState(row["state"]),
        items=row["items"],
        done=row["done"],
        recorded_at=row["recorded_at"],
        closed_at=row["closed_at"],
    )


def add_queue(connection: sa.Connection, queue: Queue) -> None:
    """Insert a new queue. The names of its raters are rows of their own, so that an erasure finds
    them."""
    config = queue.config.model_dump(mode="json", exclude={"raters"}, exclude_defaults=True)
    connection.execute(
        review_queues.insert().values(
            id=queue.id,
            agent_id=queue.agent_id,
            name=queue.name,
            config=config | {"kind": queue.kind.value},
            state=queue.state.value,
            items=0,
            done=0,
            recorded_at=queue.recorded_at,
        )
    )
    for rater in queue.config.raters:
        add_rater(connection, queue.id, rater, assigned=True)


def set_state(
    connection: sa.Connection, queue_id: str, state: QueueState, closed_at: datetime | None = None
) -> None:
    """Move a queue."""
    values = {"state": state.value, "closed_at": closed_at}
    connection.execute(
        review_queues.update().where(review_queues.c.id == queue_id).values(**values)
    )


def add_items(
    connection: sa.Connection, queue: Queue, targets: Sequence[ItemTargets], now: datetime
) -> int:
    """Append items in this order; those that the queue has already are left out. Returns how many
    are new."""
    by_id = {ids.derived("rit", queue.id, item.key): item for item in targets}
    known_ids: set[str] = set()
    for part in batches(list(by_id)):
        known_ids.update(
            connection.execute(
                sa.select(review_items.c.id).where(review_items.c.id.in_(part))
            ).scalars()
        )
    fresh = {item_id: item for item_id, item in by_id.items() if item_id not in known_ids}
    if not fresh:
        return 0
    last = connection.execute(
        sa.select(sa.func.max(review_items.c.rank)).where(review_items.c.queue_id == queue.id)
    ).scalar()
    first_rank = 0 if last is None else int(last) + 1
    items: list[Row] = []
    target_rows: list[Row] = []
    for rank, (item_id, item) in enumerate(fresh.items(), first_rank):
        items.append(
            {
                "id": item_id,
                "queue_id": queue.id,
                "rank": rank,
                "free": queue.config.overlap,
                "done": 0,
                "recorded_at": now,
            }
        )
        for position, trace_id in enumerate(item.traces):
            target = {"item_id": item_id, "position": position, "trace_id": trace_id}
            target_rows.append(target | {"case_id": None})
        if item.case is not None:
            target = {"item_id": item_id, "position": 0, "trace_id": None}
            target_rows.append(target | {"case_id": item.case})
    connection.execute(review_items.insert(), items)
    connection.execute(review_targets.insert(), target_rows)
    count_items(connection, queue.id, len(items), 0)
    return len(items)


def count_items(connection: sa.Connection, queue_id: str, items: int, done: int) -> None:
    """Add to the counts of a queue."""
    if items or done:
        connection.execute(
            review_queues.update()
            .where(review_queues.c.id == queue_id)
            .values(items=review_queues.c["items"] + items, done=review_queues.c.done + done)
        )


def set_ranks(connection: sa.Connection, queue_id: str, item_ids: Sequence[str]) -> None:
    """Put the items into this order, and begin every search anew."""
    update = (
        review_items.update()
        .where(review_items.c.id == sa.bindparam("item"))
        .values(rank=sa.bindparam("new_rank"))
    )
    ranks = [{"item": item_id, "new_rank": rank} for rank, item_id in enumerate(item_ids)]
    if ranks:
        connection.execute(update, ranks)
    move_frontiers(connection, queue_id, -1)


def open_items(connection: sa.Connection, queue_id: str) -> dict[str, list[str]]:
    """Return items that somebody can still take -> their traces, in the order of their ranks."""
    query = (
        sa.select(review_items.c.id, review_targets.c.trace_id)
        .join(review_targets, review_targets.c.item_id == review_items.c.id)
        .where(review_items.c.queue_id == queue_id, review_items.c.free > 0)
        .order_by(review_items.c.rank, review_targets.c.position)
    )
    items: dict[str, list[str]] = {}
    for item_id, trace_id in streamed(connection, query):
        items.setdefault(item_id, []).append(trace_id)
    return items


def other_items(connection: sa.Connection, queue_id: str) -> list[str]:
    """Return the items that nobody can take now, in the order of their ranks."""
    query = sa.select(review_items.c.id).where(
        review_items.c.queue_id == queue_id, review_items.c.free <= 0
    )
    return list(connection.execute(query.order_by(review_items.c.rank)).scalars())


# raters


def add_rater(
    connection: sa.Connection, queue_id: str, rater: str, *, assigned: bool = False
) -> None:
    """Insert a rater of a queue, from its beginning."""
    connection.execute(
        review_raters.insert().values(
            queue_id=queue_id, rater=rater, assigned=assigned, frontier=-1, rated=0
        )
    )


def rater(connection: sa.Connection, queue_id: str, name: str) -> sa.RowMapping | None:
    """Return the row of a rater in a queue, or None."""
    query = sa.select(review_raters).where(
        review_raters.c.queue_id == queue_id, review_raters.c.rater == name
    )
    return connection.execute(query).mappings().first()


def raters_of(connection: sa.Connection, queue_id: str) -> list[sa.RowMapping]:
    """Return the rows of all raters of a queue, including assigned ones, by name."""
    query = sa.select(review_raters).where(review_raters.c.queue_id == queue_id)
    return list(connection.execute(query.order_by(review_raters.c.rater)).mappings())


def move_frontiers(
    connection: sa.Connection, queue_id: str, rank: int, name: str | None = None
) -> None:
    """Search from `rank` on again, everybody or the rater of this name."""
    update = review_raters.update().where(
        review_raters.c.queue_id == queue_id, review_raters.c.frontier > rank
    )
    if name is not None:
        update = update.where(review_raters.c.rater == name)
    connection.execute(update.values(frontier=rank))


def set_frontier(connection: sa.Connection, queue_id: str, name: str, rank: int) -> None:
    """Store where the search of a rater goes on."""
    connection.execute(
        review_raters.update()
        .where(review_raters.c.queue_id == queue_id, review_raters.c.rater == name)
        .values(frontier=rank)
    )


def count_rating(connection: sa.Connection, queue_id: str, name: str, change: int) -> None:
    """Add to how many items a rater has rated."""
    connection.execute(
        review_raters.update()
        .where(review_raters.c.queue_id == queue_id, review_raters.c.rater == name)
        .values(rated=review_raters.c.rated + change)
    )


# handing out


def release_expired(connection: sa.Connection, queue_id: str, now: datetime) -> None:
    """Release items that raters held and did not rate in time, at most MOST_RELEASED of them."""
    query = (
        sa.select(review_assignments.c.item_id, review_assignments.c.rater, review_items.c.rank)
        .join(review_items, review_items.c.id == review_assignments.c.item_id)
        .where(
            review_assignments.c.queue_id == queue_id,
            review_assignments.c.state == AssignmentState.LEASED,
            review_assignments.c.leased_until < now,
        )
        .order_by(review_assignments.c.leased_until)
        .limit(MOST_RELEASED)
    )
    rows = list(connection.execute(query))
    if not rows:
        return
    expire = (
        review_assignments.update()
        .where(
            review_assignments.c.item_id == sa.bindparam("item"),
            review_assignments.c.rater == sa.bindparam("name"),
        )
        .values(state=AssignmentState.EXPIRED.value)
    )
    connection.execute(expire, [{"item": row.item_id, "name": row.rater} for row in rows])
    free = (
        review_items.update()
        .where(review_items.c.id == sa.bindparam("item"))
        .values(free=review_items.c.free + sa.bindparam("released"))
    )
    counts = Counter(row.item_id for row in rows)
    connection.execute(free, [{"item": item, "released": n} for item, n in counts.items()])
    move_frontiers(connection, queue_id, min(row.rank for row in rows) - 1)


def leased(connection: sa.Connection, queue_id: str, rater: str) -> list[sa.RowMapping]:
    """Return the items that a rater holds, in their order."""
    query = (
        sa.select(review_assignments, review_items.c.rank)
        .join(review_items, review_items.c.id == review_assignments.c.item_id)
        .where(
            review_assignments.c.queue_id == queue_id,
            review_assignments.c.rater == rater,
            review_assignments.c.state == AssignmentState.LEASED,
        )
        .order_by(review_items.c.rank)
    )
    return list(connection.execute(query).mappings())


def free_items(
    connection: sa.Connection, queue_id: str, rater: str, frontier: int, limit: int
) -> list[sa.RowMapping]:
    """Return the next items behind the frontier that the rater can take."""
    has_it = sa.exists().where(
        review_assignments.c.item_id == review_items.c.id,
        review_assignments.c.rater == rater,
        review_assignments.c.state != AssignmentState.EXPIRED,
    )
    query = (
        sa.select(review_items)
        .where(
            review_items.c.queue_id == queue_id,
            review_items.c.free > 0,
            review_items.c.rank > frontier,
            sa.not_(has_it),
        )
        .order_by(review_items.c.rank)
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def count_skipped(connection: sa.Connection, queue_id: str, rater: str) -> int:
    """Count the items the rater skipped that somebody can still take."""
    query = (
        sa.select(sa.func.count())
        .select_from(review_assignments.join(review_items))
        .where(*_skipped(queue_id, rater), review_items.c.free > 0)
    )
    return int(connection.execute(query).scalar_one())


def return_skipped(connection: sa.Connection, queue_id: str, rater: str) -> None:
    """Let the rater take the skipped items again."""
    update = review_assignments.update().where(*_skipped(queue_id, rater))
    connection.execute(update.values(state=AssignmentState.EXPIRED))
    move_frontiers(connection, queue_id, -1, rater)


def _skipped(queue_id: str, rater: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        review_assignments.c.queue_id == queue_id,
        review_assignments.c.rater == rater,
        review_assignments.c.state == AssignmentState.SKIPPED,
    )


def last_rank(connection: sa.Connection, queue_id: str) -> int:
    """Return the rank of the last item that somebody can take; -1 if there is none."""
    query = sa.select(sa.func.max(review_items.c.rank)).where(
        review_items.c.queue_id == queue_id, review_items.c.free > 0
    )
    last = connection.execute(query).scalar()
    return -1 if last is None else int(last)


def change_item(connection: sa.Connection, item_id: str, free: int = 0, done: int = 0) -> None:
    """Add to the counts of an item."""
    if free or done:
        connection.execute(
            review_items.update()
            .where(review_items.c.id == item_id)
            .values(free=review_items.c.free + free, done=review_items.c.done + done)
        )


def item(connection: sa.Connection, queue_id: str, item_id: str) -> sa.RowMapping | None:
    """Return an item of a queue, or None."""
    query = sa.select(review_items).where(
        review_items.c.id == item_id, review_items.c.queue_id == queue_id
    )
    return connection.execute(query).mappings().first()


def assignment(connection: sa.Connection, item_id: str, rater: str) -> sa.RowMapping | None:
    """Return a rater's assignment of an item, or None."""
    query = sa.select(review_assignments).where(
        review_assignments.c.item_id == item_id, review_assignments.c.rater == rater
    )
    return connection.execute(query).mappings().first()


def set_assignment(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Write a rater's assignment of an item, new or changed."""
    key = sa.and_(
        review_assignments.c.item_id == row["item_id"], review_assignments.c.rater == row["rater"]
    )
    values = {name: row[name] for name in ("state", "shown", "action", "leased_until")}
    if not connection.execute(review_assignments.update().where(key).values(**values)).rowcount:
        connection.execute(review_assignments.insert().values(**row))


def extend_leases(connection: sa.Connection, queue_id: str, rater: str, until: datetime) -> None:
    """Extend the leases of the items that a rater holds."""
    connection.execute(
        review_assignments.update()
        .where(
            review_assignments.c.queue_id == queue_id,
            review_assignments.c.rater == rater,
            review_assignments.c.state == AssignmentState.LEASED,
        )
        .values(leased_until=until)
    )


# actions


def action(connection: sa.Connection, action_id: str) -> sa.RowMapping | None:
    """Return the action that was recorded under a key, or None."""
    query = sa.select(review_actions).where(review_actions.c.id == action_id)
    return connection.execute(query).mappings().first()


def add_action(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Record a rater's action."""
    connection.execute(review_actions.insert().values(**row))


def current_ratings(connection: sa.Connection, queue_id: str) -> Iterator[sa.Row[Any]]:
    """Yield (item_id, rater, content, feedback, recorded_at, shown) of the ratings that count,
    oldest first."""
    query = (
        sa.select(
            review_actions.c.item_id,
            review_actions.c.rater,
            review_actions.c.content,
            review_actions.c.feedback,
            review_actions.c.recorded_at,
            review_assignments.c.shown,
        )
        .join(review_assignments, review_assignments.c.action == review_actions.c.id)
        .where(
            review_actions.c.queue_id == queue_id,
            review_assignments.c.state == AssignmentState.RATED,
        )
        .order_by(review_actions.c.recorded_at, review_actions.c.id)
    )
    yield from streamed(connection, query)


def senders_of(connection: sa.Connection, feedback_ids: Iterable[str]) -> dict[str, str | None]:
    """Return feedback id -> its sender, for those that exist."""
    senders: dict[str, str | None] = {}
    for part in batches(list(feedback_ids)):
        query = sa.select(feedback.c.id, feedback.c.sender).where(feedback.c.id.in_(part))
        senders.update((row.id, row.sender) for row in connection.execute(query))
    return senders


def action_counts(connection: sa.Connection, queue_id: str) -> dict[tuple[str, str], int]:
    """Return (rater, kind of action) -> how often."""
    query = (
        sa.select(review_actions.c.rater, review_actions.c.kind, sa.func.count())
        .where(review_actions.c.queue_id == queue_id)
        .group_by(review_actions.c.rater, review_actions.c.kind)
    )
    return {(rater, kind): count for rater, kind, count in connection.execute(query)}


# what items are about


def targets_of(
    connection: sa.Connection, item_ids: Collection[str]
) -> dict[str, list[sa.RowMapping]]:
    """Return item -> its targets, in their order."""
    targets: dict[str, list[sa.RowMapping]] = {}
    for part in batches(list(item_ids)):
        query = sa.select(review_targets).where(review_targets.c.item_id.in_(part))
        in_order = query.order_by(review_targets.c.item_id, review_targets.c.position)
        for row in connection.execute(in_order).mappings():
            targets.setdefault(row["item_id"], []).append(row)
    return targets


def trace_rows(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, sa.RowMapping]:
    """Return trace -> the columns that a rater may see, and its source."""
    columns = (traces.c.id, traces.c.input_id, traces.c.output, traces.c.metadata)
    rows: dict[str, sa.RowMapping] = {}
    for part in batches(list(trace_ids)):
        query = sa.select(*columns, traces.c.source, traces.c.external_id)
        for row in connection.execute(query.where(traces.c.id.in_(part))).mappings():
            rows[row["id"]] = row
    return rows


def step_rows(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, list[sa.RowMapping]]:
    """Return trace -> its steps besides calls of models, in their order."""
    rows: dict[str, list[sa.RowMapping]] = {}
    columns = (steps.c.trace_id, steps.c.kind, steps.c.name, steps.c.input, steps.c.output)
    for part in batches(list(trace_ids)):
        query = (
            sa.select(*columns, steps.c.status)
            .where(steps.c.trace_id.in_(part), steps.c.kind != "llm", steps.c.position < STEPS)
            .order_by(steps.c.trace_id, steps.c.position)
        )
        for row in connection.execute(query).mappings():
            rows.setdefault(row["trace_id"], []).append(row)
    return rows


def case_rows(connection: sa.Connection, case_ids: Collection[str]) -> dict[str, sa.RowMapping]:
    """Return case -> its row."""
    rows: dict[str, sa.RowMapping] = {}
    for part in batches(list(case_ids)):
        for row in connection.execute(sa.select(cases).where(cases.c.id.in_(part))).mappings():
            rows[row["id"]] = row
    return rows


def unreviewed_cases(connection: sa.Connection, agent_id: str) -> list[str]:
    """Return the ids of the cases that are not gold, newest first."""
    query = (
        sa.select(cases.c.id)
        .where(cases.c.agent_id == agent_id, cases.c.basis != "gold")
        .order_by(cases.c.recorded_at.desc(), cases.c.id)
    )
    return list(connection.execute(query).scalars())


def thumbs_of(connection: sa.Connection, agent_id: str, among: sa.Select[Any]) -> Iterator[Any]:
    """Yield (trace_id, rater_id, kind, value, scale) of judgements of single answers among these
    ids."""
    query = (
        sa.select(
            feedback_targets.c.target_id,
            feedback.c.rater_id,
            feedback.c.kind,
            feedback.c.value,
            feedback.c.scale,
        )
        .join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
        .where(
            feedback.c.agent_id == agent_id,
            feedback.c.kind.in_(("thumb", "rating")),
            feedback_targets.c.kind == "trace",
            feedback_targets.c.target_id.is_not(None),
            feedback.c.id.in_(among),
        )
        .order_by(feedback_targets.c.target_id)
    )
    yield from streamed(connection, query)
