"""What came of the item that a decision was about, as the original's tracker computes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from thumbwheel.compat.ocd.decision_function import MINUTES, PRIORITIES
from thumbwheel.compat.ocd.leading_goals import AUTHORITY, INCOME
from thumbwheel.compat.received_rows import Text
from thumbwheel.importers.types import Time

USUAL_MINUTES = 480.0


class FinishedItem(BaseModel):
    """An item of the app, once it is done or put away."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore")

    id: Text = Field(min_length=1, max_length=512)
    status: Literal["DONE", "COLD_STORAGE"]
    cycle_count: int = Field(default=0, alias="cycleCount", ge=0, le=10**6)
    blocked_at: Time | None = Field(default=None, alias="blockedAt")
    total_time_in_create: float | None = Field(default=None, alias="totalTimeInCreate", ge=0)
    """Minutes."""
    started_at: Time | None = Field(default=None, alias="startedAt")
    completed_at: Time | None = Field(default=None, alias="completedAt")
    swimlane: Text | None = None
    priority: Text | None = None
    labels: list[Text] = []


def outcome_metrics(item: FinishedItem) -> dict[str, Any]:
    """Return the metrics of an item; unknown ones are left out."""
    expected = MINUTES.get(str(item.swimlane).upper(), USUAL_MINUTES)
    expected *= PRIORITIES.get(str(item.priority).upper(), 1.0)
    minutes = _minutes(item.started_at, item.completed_at)
    worked = item.total_time_in_create or minutes
    metrics: Mapping[str, Any] = {
        "completedSuccessfully": item.status == "DONE",
        "cycleCount": item.cycle_count,
        "blockedAt": None if item.blocked_at is None else item.blocked_at.isoformat(),
        "totalTimeInCreate": item.total_time_in_create,
        "timeToComplete": minutes,
        "expectedTime": expected,
        "timeEfficiency": expected / worked if worked else None,
        "wasBlocked": item.blocked_at is not None,
        "abandoned": item.status == "COLD_STORAGE",
        "strategicAlignment": _alignment(item.labels),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _minutes(begin: datetime | None, end: datetime | None) -> float | None:
    if begin is None or end is None or end < begin:
        return None
    return (end - begin).total_seconds() // 60


def _alignment(labels: list[str]) -> float:
    """Return how well the item served a goal: 1.0 by a goal's label, 0.5 by other labels, else
    0.0."""
    if {INCOME, AUTHORITY} & set(labels):
        return 1.0
    return 0.5 if labels else 0.0
