"""Which goal led when: of the items that a user completed in the seven days before, the goal that
more of them were filed under.

The system that the decisions come from looks this up whenever it computes the reward of a FILER's
decision, and stores it nowhere. An import has the same facts in its rows: the labels that items
were filed under, and when they were seen to be completed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

INCOME, AUTHORITY = "Job 1 (Income)", "Job 2 (Authority)"
"""The labels of the two goals. Where as many items were completed for either, income leads."""
WINDOW = timedelta(days=7)


class Completion(NamedTuple):
    """An item that was completed, and the labels that it was filed under."""

    decision_id: str
    user: str | None
    time: datetime
    labels: tuple[str, ...]


class LeadingGoals:
    """The leading goal of every user at any time."""

    def __init__(self, completions: Iterable[Completion]) -> None:
        by_decision = {completion.decision_id: completion for completion in completions}
        self._times: dict[tuple[str | None, str], list[datetime]] = defaultdict(list)
        for completion in by_decision.values():
            for goal in (INCOME, AUTHORITY):
                if goal in completion.labels:
                    self._times[completion.user, goal].append(completion.time)
        for times in self._times.values():
            times.sort()

    def leading_goal(self, user: str | None, time: datetime) -> str | None:
        """Return the goal that leads for a user at a time; None if nothing was completed for either
        goal."""
        income = self._completed(user, INCOME, time)
        authority = self._completed(user, AUTHORITY, time)
        if not income and not authority:
            return None
        return AUTHORITY if authority > income else INCOME

    def _completed(self, user: str | None, goal: str, time: datetime) -> int:
        times = self._times.get((user, goal), [])
        return bisect_right(times, time) - bisect_left(times, time - WINDOW)


def instant(text: Any) -> datetime | None:
    """Return a time of a row in UTC; None if it is not a time.

    >>> instant("2026-01-05 08:30:00").isoformat()
    '2026-01-05T08:30:00+00:00'
    """
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
