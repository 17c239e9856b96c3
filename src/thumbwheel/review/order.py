"""In which order items come: newest, random, or active: what would teach a judge most.

That is, in this order: answers that people judged differently; then answers of which a
classifier of people's labels is least sure, each unlike those before it (`review/suggest`); while
there are too few labels for a classifier, answers that are least like what came before. Only the
first `SORTED` places are worked out so; the rest follows by how unsure the classifier is. Of more
answers than `LOOKED_AT` a part that stays the same is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from thumbwheel.capture.judged import Judged, meaning
from thumbwheel.core.errors import DataError
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.types import Agent
from thumbwheel.review import store
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.learn import check_enough, fitted, labelled
from thumbwheel.review.suggest import order
from thumbwheel.review.types import Queue
from thumbwheel.rewards.cases import stored_cases
from thumbwheel.rewards.classifier import Classifier, design
from thumbwheel.rewards.features import READS, Features, features

SORTED = 200
LOOKED_AT = 20_000


@dataclass(frozen=True)
class Ordered:
    """Traces, the most telling first, and what decided."""

    trace_ids: list[str]
    rule: str


def shuffled(names: Collection[str], seed: str) -> list[str]:
    """Return the names in an order that only the seed decides."""
    return sorted(names, key=lambda name: sha256(f"{seed}:{name}".encode()).digest())


def conflicting(connection: sa.Connection, agent: Agent) -> list[str]:
    """Return the traces that one person called good and another one bad."""
    verdicts: dict[str, set[Judged]] = {}
    for row in store.thumbs_of(connection, agent.id, newest_words(agent.id)):
        verdict = meaning(row._mapping)
        if verdict is not None:
            verdicts.setdefault(row.target_id, set()).add(verdict)
    return [trace_id for trace_id, sides in verdicts.items() if len(sides) > 1]


def most_telling(
    connection: sa.Connection, agent: Agent, trace_ids: Collection[str], config: LearnConfig
) -> Ordered:
    """Order these traces of the agent, beginning with those whose rating would tell most."""
    wanted = shuffled(trace_ids, "looked at")
    looked_at = set(wanted[:LOOKED_AT])
    disputed = [trace_id for trace_id in conflicting(connection, agent) if trace_id in looked_at]
    names: list[str] = []
    rows: list[Features] = []
    for batch in stored_cases(connection, agent, READS):
        for stored in batch:
            trace_id = str(stored.case.target_id)
            if stored.answered and trace_id in looked_at and trace_id not in disputed:
                names.append(trace_id)
                rows.append(features(stored.case))

    labels = labelled(connection, agent)
    try:
        check_enough(agent.slug, labels, config)
    except DataError:
        rule = "unlike those before"
        by_worth = _unlike(labels.rows, rows)
    else:
        rule = "a classifier is unsure, and unlike those before"
        by_worth = _unsure(fitted(labels, config, {"agent": agent.slug}), rows)
    first = [*disputed, *(names[position] for position in by_worth)]
    placed = set(first)
    return Ordered([*first, *(name for name in wanted if name not in placed)], rule)


def _unsure(classifier: Classifier, rows: Sequence[Features]) -> list[int]:
    """Return positions of the rows by how much a label would tell the classifier."""
    chances = classifier.chances(rows)
    first = order(classifier, rows, chances, min(SORTED, len(rows)))
    placed = set(first)
    doubts = np.argsort(-(1 - np.abs(2 * chances - 1)), kind="stable")
    return [*first, *(int(row) for row in doubts if int(row) not in placed)]


def _unlike(labelled_rows: Sequence[Features], rows: Sequence[Features]) -> list[int]:
    """Return positions of the rows, each of the first ones as far as possible from the labelled
    rows and from those before it."""
    if not rows:
        return []
    numbers = np.array([row.numbers for row in (*labelled_rows, *rows)])
    scale = numbers.std(0)
    scale[scale == 0] = 1.0
    matrix = design([*labelled_rows, *rows], numbers.mean(0), scale)
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    unit = matrix.multiply(1 / np.where(lengths > 0, lengths, 1.0)[:, None]).tocsr()
    candidates = unit[len(labelled_rows) :]
    nearest = np.full(len(rows), 2.0)
    for labelled_row in range(len(labelled_rows)):
        nearest = np.minimum(nearest, _distances(candidates, unit[[labelled_row]]))
    chosen: list[int] = []
    while len(chosen) < min(SORTED, len(rows)):
        position = int(nearest.argmax())
        chosen.append(position)
        nearest = np.minimum(nearest, _distances(candidates, candidates[[position]]))
        nearest[chosen] = -1
    placed = set(chosen)
    return [*chosen, *(row for row in range(len(rows)) if row not in placed)]


def _distances(matrix: object, row: object) -> NDArray[np.float64]:
    likeness = np.asarray((matrix @ row.T).todense()).ravel()  # type: ignore[operator,attr-defined]
    return np.asarray(np.sqrt(np.maximum(0.0, 2 - 2 * likeness)))


def reorder(ws: Workspace, agent: Agent, queue: Queue) -> str:
    """Put the remaining items of a queue in the order that its settings want, by everything known
    now; return the rule that decided."""
    with ws.db.read() as connection:
        items = store.open_items(connection, queue.id)
        rest = store.other_items(connection, queue.id)
        item_ids, rule = list(items), str(queue.config.order)
        if queue.config.order == "active":
            config = ws.settings(LearnConfig, "label")
            item_ids, rule = by_telling_traces(connection, agent, items, config)
        elif queue.config.order == "random":
            item_ids = shuffled(item_ids, queue.id)
    ws.db.write(
        lambda connection: store.set_ranks(connection, queue.id, [*item_ids, *rest]),
        of_agent(agent.id),
    )
    return rule


def by_telling_traces(
    connection: sa.Connection, agent: Agent, items: Mapping[str, Sequence[str]], config: LearnConfig
) -> tuple[list[str], str]:
    """Return (items in the order of their most telling trace, the rule that decided)."""
    trace_ids = {trace_id for traces in items.values() for trace_id in traces}
    ordered = most_telling(connection, agent, trace_ids, config)
    places = {trace_id: rank for rank, trace_id in enumerate(ordered.trace_ids)}

    def place_of(item_id: str) -> int:
        return min(places[trace_id] for trace_id in items[item_id])

    return sorted(items, key=place_of), ordered.rule
