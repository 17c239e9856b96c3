"""Verbs for queues: create one from what is recorded, add to it, list, close.

Not here: who gets which item (`hand_out.py`), what raters say (`rate.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import sqlalchemy as sa

from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_queries import (
    answered_traces,
    having_metadata,
    trace_ids,
    without_answer,
)
from thumbwheel.capture.trace_types import REPLAY_SOURCE
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, DataError, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.batches import batches
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.types import Agent
from thumbwheel.review import store
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.order import by_telling_traces, conflicting, shuffled
from thumbwheel.review.raters import report
from thumbwheel.review.types import (
    CARD,
    LETTERS,
    ItemKind,
    ItemTargets,
    Origin,
    Queue,
    QueueConfig,
    QueueState,
)

MOST = 100_000
"""Items of a queue, where nobody says how many."""
PAGE = 5_000
"""Items of one transaction: other writers get their turn between two."""


@dataclass(frozen=True)
class QueueSelection:
    """Which of the agent's rows become items."""

    origin: Origin = Origin.TRACES
    traces: TraceFilter = field(default_factory=TraceFilter)
    most: int = MOST
    answers: int = 2
    """Of a comparison, at most."""
    replays: bool = False
    """Whether answers of replays, which no user of the app got, are taken too."""
    differing: Queue | None = None
    """The queue whose items on which raters differ become the items of this one."""

    @property
    def kind(self) -> ItemKind:
        """Of the items."""
        return self.origin.kind if self.differing is None else self.differing.kind

    @property
    def wanted(self) -> TraceFilter:
        """The traces that items are made of."""
        return self.traces if self.replays else replace(self.traces, without_source=REPLAY_SOURCE)


def create(
    ws: Workspace, agent: Agent, name: str, config: QueueConfig, selection: QueueSelection
) -> Queue:
    """Create a new queue with its items. Raises Conflict if the name is in use, DataError if
    nothing is selected."""
    ids.slug(name, "queue")
    _check(config, selection)
    with ws.db.read() as connection:
        if store.queues(connection, agent.id, name):
            raise Conflict(
                f"queue {name!r}",
                f"agent {agent.slug!r} has one of that name",
                f"Choose another name, or add to it: thumbwheel queue add {name} TRACE",
            )
        targets = _selected(connection, ws, agent, config, selection)
    if not targets:
        raise DataError(
            f"queue {name!r}",
            f"none of what is recorded for {agent.slug!r} is selected",
            "Import something, or select less strictly (thumbwheel queue create --help)",
        )
    return _opened(ws, agent, name, selection.kind, config, targets)


def _opened(
    ws: Workspace,
    agent: Agent,
    name: str,
    kind: ItemKind,
    config: QueueConfig,
    targets: Sequence[ItemTargets],
) -> Queue:
    """Store a new queue, fill it, open it, and return it."""
    queue = Queue(
        id=ids.new("rqu"),
        agent_id=agent.id,
        name=name,
        kind=kind,
        config=config,
        state=QueueState.FILLING,
        items=0,
        done=0,
        recorded_at=datetime.now(UTC),
    )
    ws.db.write(lambda connection: store.add_queue(connection, queue), of_agent(agent.id))
    _fill(ws, queue, targets)
    ws.db.write(
        lambda connection: store.set_state(connection, queue.id, QueueState.OPEN),
        of_agent(agent.id),
    )
    return require_queue(ws, agent, queue.id)


def _check(config: QueueConfig, selection: QueueSelection) -> None:
    if config.raters and len(set(config.raters)) < config.overlap:
        raise InputError(
            f"--overlap {config.overlap}",
            f"the queue has only {len(set(config.raters))} raters",
            "Name more raters, or want fewer",
        )
    if not 2 <= selection.answers <= len(LETTERS):
        raise InputError(
            f"--answers {selection.answers}",
            f"2 to {len(LETTERS)} answers can be compared",
            "Give a number between them",
        )


def _fill(ws: Workspace, queue: Queue, targets: Sequence[ItemTargets]) -> int:
    added = 0
    for part in batches(targets, PAGE):
        added += ws.db.write(partial(_add, queue=queue, targets=part), of_agent(queue.agent_id))
    return added


def _add(connection: sa.Connection, queue: Queue, targets: Sequence[ItemTargets]) -> int:
    return store.add_items(connection, queue, targets, datetime.now(UTC))


def _selected(
    connection: sa.Connection,
    ws: Workspace,
    agent: Agent,
    config: QueueConfig,
    selection: QueueSelection,
) -> list[ItemTargets]:
    """Return the targets that become items, in their order."""
    if selection.origin is Origin.CASES:
        case_ids = store.unreviewed_cases(connection, agent.id)
        if config.order == "random":
            case_ids = shuffled(case_ids, agent.id)
        return [ItemTargets(case=case_id) for case_id in case_ids[: selection.most]]
    if selection.differing is not None:
        targets = _of_conflicts(connection, report(ws, selection.differing).conflicts)
    elif selection.origin is Origin.COMPARISONS:
        targets = _comparisons(connection, agent, selection)
    elif selection.origin is Origin.CONFLICTS:
        targets = [ItemTargets((trace_id,)) for trace_id in conflicting(connection, agent)]
    else:
        most = MOST if config.layout == "cards" else selection.most
        rows = answered_traces(connection, agent.id, selection.wanted, most)
        targets = [ItemTargets((row.id,)) for row in rows]
        if config.layout == "cards":
            targets = _cards(connection, targets)
    by_key = {item.key: item for item in targets}
    keys = list(by_key)
    if config.order == "random":
        keys = shuffled(keys, agent.id)
    elif config.order == "active":
        settings = ws.settings(LearnConfig, "label")
        traces = {key: item.traces for key, item in by_key.items()}
        keys, _ = by_telling_traces(connection, agent, traces, settings)
    return [by_key[key] for key in keys[: selection.most]]


def _cards(connection: sa.Connection, targets: Sequence[ItemTargets]) -> list[ItemTargets]:
    """Return only the cards if some of the traces are cards of something that was shown, else all
    targets: everything else known about the same thing is rated with its card."""
    trace_ids = [item.traces[0] for item in targets]
    cards = having_metadata(connection, trace_ids, CARD)
    if not cards:
        return list(targets)
    return [item for item in targets if item.traces[0] in cards]


def _of_conflicts(connection: sa.Connection, item_ids: Sequence[str]) -> list[ItemTargets]:
    """Return targets about the same traces as these items of another queue."""
    rows = store.targets_of(connection, item_ids)
    return [ItemTargets(tuple(target["trace_id"] for target in rows[item])) for item in item_ids]


def _comparisons(
    connection: sa.Connection, agent: Agent, selection: QueueSelection
) -> list[ItemTargets]:
    """Return different answers to one prompt, of the newest prompts first."""
    answers: dict[str, dict[str, str]] = {}
    rows = answered_traces(connection, agent.id, selection.wanted, selection.most * 10)
    for row in rows:
        by_text = answers.setdefault(row.input_id, {})
        by_text.setdefault(ids.fingerprint(row.output), row.id)
    targets = []
    for by_text in answers.values():
        if len(by_text) >= 2:
            # which of many are compared, and in which order they stand, follows from their ids
            chosen = shuffled(by_text.values(), "compared")[: selection.answers]
            targets.append(ItemTargets(tuple(chosen)))
    return targets


def add_or_create(
    ws: Workspace, agent: Agent, name: str, trace_names: Sequence[str]
) -> tuple[Queue, int]:
    """Append traces to the queue of this name, which is created with the default settings if there
    is none; return it and how many were new. Raises the errors of `add`."""
    with ws.db.read() as connection:
        matches = store.queues(connection, agent.id, name)
    if matches:
        queue = require_queue(ws, agent, name)
        return queue, add(ws, agent, queue, trace_names)
    ids.slug(name, "queue")
    targets = _targets_of(ws, agent, trace_names)
    queue = _opened(ws, agent, name, ItemKind.ANSWER, QueueConfig(), targets)
    return queue, queue.items


def add(ws: Workspace, agent: Agent, queue: Queue, names: Iterable[str]) -> int:
    """Append traces, by their ids, to a queue of answers; return how many were new. Raises
    NotFound, Conflict, InputError, and DataError for a trace without an answer."""
    if queue.kind is not ItemKind.ANSWER:
        raise InputError(
            f"queue {queue.name!r}",
            f"its items are {queue.kind}s",
            "Add single traces to a queue of answers",
        )
    require_open(queue)
    return _fill(ws, queue, _targets_of(ws, agent, names))


def _targets_of(ws: Workspace, agent: Agent, names: Iterable[str]) -> list[ItemTargets]:
    """Return traces by their ids as targets. Raises NotFound, and DataError for a trace without an
    answer."""
    with ws.db.read() as connection:
        named = trace_ids(connection, agent, names)
        if silent := without_answer(connection, named):
            raise DataError(f"trace {silent[0]}", "it has no answer", "Choose another one")
    return [ItemTargets((trace_id,)) for trace_id in named]


def all_queues(ws: Workspace, agent: Agent, every: bool = False) -> list[Queue]:
    """Return the agent's queues, newest first; with `every` also the closed ones."""
    with ws.db.read() as connection:
        return store.queues(connection, agent.id, every=every)


def require_queue(ws: Workspace, agent: Agent, name: str) -> Queue:
    """Return the agent's queue of this name or id. Raises NotFound."""
    with ws.db.read() as connection:
        matches = store.queues(connection, agent.id, name)
        if not matches:
            names = [queue.name for queue in store.queues(connection, agent.id)]
    if not matches:
        raise NotFound(
            f"queue {name!r}",
            f"agent {agent.slug!r} has none of that name",
            f"Known: {', '.join(names) or 'none yet'}.{nearest(name, names)}",
        )
    ids.require_single(name, [queue.id for queue in matches])
    return matches[0]


def require_open(queue: Queue) -> None:
    """Raise Conflict for a queue that gives nothing out."""
    if queue.state is not QueueState.OPEN:
        why = "it is closed"
        if queue.state is QueueState.FILLING:
            why = "it is being filled, or was stopped while it was"
        raise Conflict(
            f"queue {queue.name!r}", why, "Make another one: thumbwheel queue create NAME"
        )


def close(ws: Workspace, agent: Agent, queue: Queue) -> Queue:
    """Close the queue: hand out no more items. Ratings stay, and items already handed out may still
    be rated."""
    if queue.state is not QueueState.CLOSED:
        now = datetime.now(UTC)

        def work(connection: sa.Connection) -> None:
            store.set_state(connection, queue.id, QueueState.CLOSED, now)

        ws.db.write(work, of_agent(agent.id))
    return require_queue(ws, agent, queue.id)
