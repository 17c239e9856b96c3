"""How an agent does these days: the share of good answers by week and version, with intervals, and
how much it was used, what that cost, how long it took and how often it failed.

An answer is good where more people said so than not; one of which as many said the one as the
other is in no share, and votes between two answers count in none. The week is that of the answer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa

from thumbwheel.capture import trace_queries
from thumbwheel.capture.judged import Judged, meaning
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import Agent
from thumbwheel.stats.rates import wilson
from thumbwheel.stats.types import Interval

WEEKS = 8
"""Weeks that are looked back."""
MOST_OPINIONS = 20_000
"""Newest opinions that are read."""
MOST_CALLS = 5_000
"""Newest calls whose cost and time are read."""
UNKNOWN = "no version known"
"""In place of the version of answers that no model of this home gave."""
WEEK = timedelta(days=7)
LEVEL = 0.95


@dataclass(frozen=True)
class GoodShare:
    """Of the rated answers of one version (None: of all) in one week."""

    week: date
    """Its Monday."""
    version: str | None
    good: int
    rated: int

    @property
    def share(self) -> float:
        """Good answers in all rated ones."""
        return self.good / self.rated

    @property
    def interval(self) -> Interval:
        """Of the share, at 95 %."""
        return wilson(self.good, self.rated, LEVEL)


@dataclass(frozen=True)
class Quality:
    """The shares by week, oldest first: of all answers, and of each version."""

    by_week: Sequence[GoodShare]
    by_version: Sequence[GoodShare]
    is_partial: bool
    """Whether there were more opinions than are read."""

    def fall(self) -> tuple[GoodShare, GoodShare] | None:
        """Return the last two weeks with ratings if the newer one is worse beyond chance (their
        intervals do not overlap), else None."""
        if len(self.by_week) < 2:
            return None
        before, now = self.by_week[-2:]
        return (before, now) if now.interval.high < before.interval.low else None


@dataclass(frozen=True)
class Use:
    """The use of an agent in seven days."""

    answers: int
    failed: int
    cost: float | None
    """In the currency of the prices; None where no call has a known cost."""
    typical_seconds: float | None
    """The median of a call to a model; None where no time is known."""
    slow_seconds: float | None
    """What one call in twenty takes longer than."""
    is_partial: bool
    """Whether cost and times are those of the newest calls alone."""

    @property
    def failed_share(self) -> float | None:
        """Failed answers in all of them; None without any."""
        return self.failed / self.answers if self.answers else None


def quality(ws: Workspace, agent: Agent, now: datetime) -> Quality:
    """Return the share of good answers in the last `WEEKS` weeks, by week and by version."""
    first = _monday(now) - timedelta(weeks=WEEKS - 1)
    since = datetime(first.year, first.month, first.day, tzinfo=UTC)
    with ws.db.read() as connection:
        rows = trace_queries.judged_since(connection, agent.id, since, MOST_OPINIONS + 1)
    names = {version.id: version.name for version in versions.versions(ws, agent)}
    by_week, by_version = _counted(rows[:MOST_OPINIONS], first, names)
    return Quality(by_week, by_version, len(rows) > MOST_OPINIONS)


def _counted(
    rows: Sequence[sa.RowMapping], first: date, names: Mapping[str, str]
) -> tuple[list[GoodShare], list[GoodShare]]:
    """Count the opinions to answers, and the answers to shares by week and by version."""
    balance: Counter[str] = Counter()
    answers: dict[str, tuple[date, str]] = {}
    for row in rows:
        verdict = meaning(dict(row))
        week = _monday(row["answered_at"])
        if verdict is None or week < first:
            continue
        balance[row["trace_id"]] += 1 if verdict is Judged.GOOD else -1
        answers[row["trace_id"]] = week, names.get(row["version_id"], UNKNOWN)
    counts: dict[tuple[date, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for trace_id, (week, version) in answers.items():
        if balance[trace_id] == 0:
            continue
        for key in ((week, None), (week, version)):
            counts[key][0] += balance[trace_id] > 0
            counts[key][1] += 1
    shares = [
        GoodShare(week, version, good, rated)
        for (week, version), (good, rated) in sorted(
            counts.items(), key=lambda entry: (entry[0][0], entry[0][1] or "")
        )
    ]
    by_week = [share for share in shares if share.version is None]
    by_version = [share for share in shares if share.version is not None]
    return by_week, by_version


def use(ws: Workspace, agent: Agent, until: datetime) -> Use:
    """Return the numbers of answers and of failed ones, and cost and times of the calls, in the
    seven days before `until`."""
    since = until - WEEK
    with ws.db.read() as connection:
        answers, failed = trace_queries.counts_between(connection, agent.id, since, until)
        calls = trace_queries.call_figures(connection, agent.id, since, until, MOST_CALLS + 1)
    newest = calls[:MOST_CALLS]
    costs = [call["cost"] for call in newest if call["cost"] is not None]
    seconds = sorted(
        (call["ended_at"] - call["started_at"]).total_seconds()
        for call in newest
        if call["started_at"] is not None and call["ended_at"] is not None
    )
    return Use(
        answers,
        failed,
        math.fsum(costs) if costs else None,
        seconds[len(seconds) // 2] if seconds else None,
        seconds[min(len(seconds) - 1, math.ceil(0.95 * len(seconds)) - 1)] if seconds else None,
        len(calls) > MOST_CALLS,
    )


def _monday(moment: datetime) -> date:
    day = moment.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())
