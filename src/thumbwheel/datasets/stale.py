"""Whether a frozen dataset still says what it was built from: found out when it is read.

Of what people said, a row is stale where something was said about one of its traces, or taken back,
after the dataset was built, or built again with the same result. Where its values are combined
rewards, it is stale where a component of the reward has judged one of its traces anew since then,
and all rows are once rewards are combined by other components, weights or settings. Nothing is
marked anywhere, so nothing has to be told when a reward changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from thumbwheel.core.errors import NotFound
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards.ledger import settings, traces_with_new_feedback, traces_with_new_rewards


@dataclass(frozen=True)
class Stale:
    """How many rows rest on rewards that have changed."""

    rows: int
    of: int

    def __str__(self) -> str:
        return f"stale: {self.rows} of {self.of} rows' rewards changed since it was built"


def stale(ws: Workspace, dataset: Dataset) -> Stale | None:
    """What has changed under `dataset`; None where nothing has."""
    total = sum(dataset.counts.values())
    reward, confirmed = dataset.manifest.get("reward"), dataset.manifest.get("confirmed_at")
    if reward not in (None, settings(ws, dataset.agent).fingerprint()):
        return Stale(total, total)
    since = datetime.fromisoformat(confirmed) if confirmed else dataset.recorded_at
    changed = traces_with_new_feedback(ws, dataset.agent, since)
    if reward:
        try:
            changed |= traces_with_new_rewards(ws, dataset.agent, since)
        except NotFound:  # a model or classifier of the reward is gone
            return Stale(total, total)
    if not changed:
        return None
    count = sum(
        not changed.isdisjoint(row.trace_ids)
        for split in SPLITS
        for row in load_rows(ws, dataset.id, split)
    )
    return Stale(count, total) if count else None
