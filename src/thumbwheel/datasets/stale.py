"""Tells whether a frozen dataset is stale: whether its evidence has changed since it was built.

A row is stale if feedback about one of its traces was given or retracted after the dataset was
built (or built again with the same result). If its values are combined rewards, it is also stale if
a component of the reward has judged one of its traces anew since then; and all rows are stale once
rewards are combined by other components, weights or settings. Staleness is computed when a dataset
is read, not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from thumbwheel.core.errors import NotFound
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.rewards.ledger import settings, traces_with_new_feedback, traces_with_new_rewards


@dataclass(frozen=True)
class Stale:
    """How many rows are based on feedback or rewards that have changed."""

    rows: int
    of: int

    def __str__(self) -> str:
        return f"stale: {self.rows} of {self.of} rows' rewards changed since it was built"


def stale(ws: Workspace, dataset: Dataset) -> Stale | None:
    """Return the stale rows of `dataset`; None if there are none."""
    total = sum(dataset.counts.values())
    reward, confirmed = dataset.manifest.get("reward"), dataset.manifest.get("confirmed_at")
    if reward not in (None, settings(ws, dataset.agent).fingerprint()):
        return Stale(total, total)
    since = datetime.fromisoformat(confirmed) if confirmed else dataset.recorded_at
    agent = Agent.named(dataset.agent)
    changed = traces_with_new_feedback(ws, agent, since)
    if reward:
        try:
            changed |= traces_with_new_rewards(ws, agent, since)
        except NotFound:  # a model or classifier of the reward is gone
            return Stale(total, total)
    if not changed:
        return None
    count = 0
    for split in SPLITS:
        rows = load_rows(ws, dataset.id, split)
        count += sum(not changed.isdisjoint(row.trace_ids) for row in rows)
    return Stale(count, total) if count else None
