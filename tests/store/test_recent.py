"""The share of good answers by week, and what an agent's use came to."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from tests.store.test_traces import store
from thumbwheel.capture.feedback import add_feedback
from thumbwheel.capture.recent import UNKNOWN, quality, use
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent

AGENT = Agent.named("desk")
NOW = datetime.now(UTC)
THIS_WEEK = (NOW - timedelta(days=NOW.weekday())).date()


def answered(week: date, number: int, **more: Any) -> dict[str, Any]:
    """An answer of the Monday of this week."""
    name = f"{week}-{number}"
    return {"id": name, "input": "?", "output": "!", "occurred_at": f"{week}T00:00:01Z", **more}


def rate(ws: Workspace, week: date, answers: int, good: int) -> None:
    store(ws, *(answered(week, number) for number in range(answers)))
    for number in range(answers):
        add_feedback(ws, "desk", f"{week}-{number}", "thumb", number < good, rater="ann")


def test_an_answer_is_good_where_more_people_say_so_than_not(empty_ws: Workspace) -> None:
    store(empty_ws, *(answered(THIS_WEEK, number) for number in range(4)))
    for number, thumbs in enumerate(([True, True, False], [False], [True, False])):
        for rater, thumb in enumerate(thumbs):
            name = f"{THIS_WEEK}-{number}"
            add_feedback(empty_ws, "desk", name, "thumb", thumb, rater=f"rater-{rater}")
    (share,) = quality(empty_ws, AGENT, NOW).by_week
    assert (share.week, share.good, share.rated) == (THIS_WEEK, 1, 2), "one tie, one unrated"
    assert share.interval.low < share.share < share.interval.high
    (of_version,) = quality(empty_ws, AGENT, NOW).by_version
    assert (of_version.version, of_version.rated) == (UNKNOWN, 2)


def test_a_fall_is_one_beyond_chance(empty_ws: Workspace) -> None:
    rate(empty_ws, THIS_WEEK - timedelta(days=7), 30, 27)
    assert quality(empty_ws, AGENT, NOW).fall() is None, "one week is no change"
    rate(empty_ws, THIS_WEEK, 12, 9)
    assert quality(empty_ws, AGENT, NOW).fall() is None
    store(empty_ws, *(answered(THIS_WEEK, number) for number in range(12, 40)))
    for number in range(12, 40):
        add_feedback(empty_ws, "desk", f"{THIS_WEEK}-{number}", "thumb", False, rater="ann")
    fall = quality(empty_ws, AGENT, NOW).fall()
    assert fall is not None
    before, after = fall
    assert (before.good, before.rated, after.good, after.rated) == (27, 30, 9, 40)


def test_older_weeks_are_left_out(empty_ws: Workspace) -> None:
    rate(empty_ws, THIS_WEEK - timedelta(weeks=8), 3, 3)
    rate(empty_ws, THIS_WEEK - timedelta(weeks=7), 2, 1)
    (share,) = quality(empty_ws, AGENT, NOW).by_week
    assert (share.week, share.rated) == (THIS_WEEK - timedelta(weeks=7), 2)


def test_use_says_volume_errors_and_how_long_calls_took(empty_ws: Workspace) -> None:
    began = NOW - timedelta(hours=1)

    def call(number: int, seconds: float, cost: float | None) -> dict[str, Any]:
        ended = began + timedelta(seconds=seconds)
        step = {"kind": "llm", "output": "!", "cost": cost}
        times = {"started_at": began.isoformat(), "ended_at": ended.isoformat()}
        status = "error" if number == 0 else "ok"
        return answered(THIS_WEEK, number, status=status, steps=[step | times])

    store(empty_ws, *(call(number, 1.0 + number, 0.25) for number in range(4)))
    current = use(empty_ws, AGENT, datetime.now(UTC) + timedelta(seconds=1))
    assert (current.answers, current.failed, current.failed_share) == (4, 1, 0.25)
    assert (current.typical_seconds, current.slow_seconds) == (3.0, 4.0)
    earlier = use(empty_ws, AGENT, NOW - timedelta(days=7))
    assert (earlier.answers, earlier.failed_share, earlier.cost) == (0, None, None)
