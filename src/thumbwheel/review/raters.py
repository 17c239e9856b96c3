"""How raters do: how much, how fast, how far they agree with the others, how that moved, and on
which items they differ.

What is compared is one verdict an item: the best answer of a comparison, else the thumb, else
whether a rating is above the middle, else the labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.review import store
from thumbwheel.review.agreement import Crowd, panel
from thumbwheel.review.types import Period, Queue, QueueReport, RaterReport

MIDDLE = 3.0


@dataclass(frozen=True)
class _Rating:
    item: str
    rater: str
    verdict: str
    good: bool | None
    seconds: float | None
    rated_at: datetime


def verdict_of(content: Mapping[str, Any], shown: Sequence[int]) -> tuple[str, bool | None]:
    """Return (the text to compare with the verdicts of others, whether it says good; None if it
    says neither)."""
    if "ranking" in content:
        best = sorted(shown[position] for position in content["ranking"][0])
        return f"best {best}", None
    if "thumb" in content:
        good = bool(content["thumb"])
        return str(good), good
    if "rating" in content:
        value = content["rating"]
        if value == MIDDLE:
            return "middle", None
        return str(value > MIDDLE), value > MIDDLE
    return ids.canonical(content.get("labels", {})), None


def report(ws: Workspace, queue: Queue) -> QueueReport:
    """Return a report on the work of a queue's raters."""
    with ws.db.read() as connection:
        ratings = []
        for row in store.current_ratings(connection, queue.id):
            verdict, good = verdict_of(row.content, row.shown)
            seconds = row.content.get("seconds")
            rating = _Rating(row.item_id, row.rater, verdict, good, seconds, row.recorded_at)
            ratings.append(rating)
        raters = store.raters_of(connection, queue.id)
        counts = store.action_counts(connection, queue.id)
    agreement = panel("verdicts", [(each.item, each.rater, each.verdict) for each in ratings])
    by_item: dict[str, list[str]] = defaultdict(list)
    by_rater: dict[str, list[_Rating]] = defaultdict(list)
    for rating in ratings:
        by_item[rating.item].append(rating.verdict)
        by_rater[rating.rater].append(rating)
    conflicts = [item for item, verdicts in by_item.items() if len(set(verdicts)) > 1]
    crowds = {item: Crowd.of(verdicts) for item, verdicts in by_item.items()}
    kappas = {each.rater: each.agreement.as_dict() for each in agreement.raters}
    reports = []
    for rater_row in raters:
        name = str(rater_row["rater"])
        reports.append(_of_rater(name, by_rater[name], crowds, counts, kappas.get(name)))
    alpha = agreement.people["nominal"].as_dict()
    return QueueReport(reports, alpha, conflicts)


def _of_rater(
    name: str,
    ratings: Sequence[_Rating],
    crowds: Mapping[str, Crowd],
    counts: Mapping[tuple[str, str], int],
    kappa: Mapping[str, Any] | None,
) -> RaterReport:
    """Return the report on the rater of these ratings."""
    times = [rating.seconds for rating in ratings if rating.seconds is not None]
    by_week: dict[str, list[_Rating]] = defaultdict(list)
    for rating in ratings:
        by_week[f"{rating.rated_at:%G-W%V}"].append(rating)
    weeks = [_period(week, of_week, crowds) for week, of_week in sorted(by_week.items())]
    return RaterReport(
        rater=name,
        rated=len(ratings),
        skipped=counts.get((name, "skip"), 0),
        undone=counts.get((name, "undo"), 0),
        seconds=median(times) if times else None,
        kappa=kappa,
        weeks=weeks,
    )


def _period(week: str, ratings: Sequence[_Rating], crowds: Mapping[str, Crowd]) -> Period:
    """Count the ratings of a week, and how many of them agree with the crowd of the others."""
    judged = [rating.good for rating in ratings if rating.good is not None]
    agreed = compared = 0
    for rating in ratings:
        _, crowd_verdict = crowds[rating.item].without(rating.verdict)
        if crowd_verdict is not None:
            compared += 1
            agreed += crowd_verdict == rating.verdict
    positive = sum(judged) / len(judged) if judged else None
    return Period(week, len(ratings), positive, agreed, compared)
