"""Whether a frozen dataset still says what the ledger of rewards says: found out when it is read, from the ledger alone.

A row is stale where a component judged one of its traces anew after the dataset was built, because of late feedback or a changed case,
or where an older judgement stands again, because feedback was taken back.
Where its values are combined rewards, all rows are stale once rewards are combined by other components, weights or settings.
Nothing is marked anywhere, so nothing has to be told when a reward changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards.ledger import moved, settings


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
    if dataset.manifest.get("reward") not in (None, settings(ws, dataset.agent).fingerprint()):
        return Stale(total, total)
    changed = moved(ws, dataset.agent, dataset.recorded_at)
    if not changed:
        return None
    count = sum(not changed.isdisjoint(row.trace_ids) for split in SPLITS for row in load_rows(ws, dataset.id, split))
    return Stale(count, total) if count else None
