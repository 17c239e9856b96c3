"""How raters do: how much, how fast, how far they agree with the others, how that moved, and on
which items they differ.

What is compared is one verdict an item: the best answer of a comparison, else the thumb, else
whether a rating is above the middle, else the labels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.review import store
from thumbwheel.review.types import Period, Queue, QueueReport, RaterReport
from thumbwheel.rewards.aggregate import plurality
from thumbwheel.rewards.agreement import Panel, panel

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
    by_item: dict[str, dict[str, str]] = defaultdict(dict)
    for rating in ratings:
        by_item[rating.item][rating.rater] = rating.verdict
    conflicts = [item for item, verdicts in by_item.items() if len(set(verdicts.values())) > 1]
    reports = [_of_rater(row["rater"], ratings, by_item, counts, agreement) for row in raters]
    alpha = agreement.people["nominal"].as_dict()
    return QueueReport(reports, alpha, conflicts)


def _of_rater(
    name: str,
    ratings: Sequence[_Rating],
    by_item: Mapping[str, Mapping[str, str]],
    counts: Mapping[tuple[str, str], int],
    agreement: Panel,
) -> RaterReport:
    own_ratings = [rating for rating in ratings if rating.rater == name]
    times = [rating.seconds for rating in own_ratings if rating.seconds is not None]
    kappas = [each.agreement.as_dict() for each in agreement.raters if each.rater == name]
    by_week: dict[str, list[_Rating]] = defaultdict(list)
    for rating in own_ratings:
        by_week[f"{rating.rated_at:%G-W%V}"].append(rating)
    weeks = [_period(week, of_week, by_item) for week, of_week in sorted(by_week.items())]
    return RaterReport(
        rater=name,
        rated=len(own_ratings),
        skipped=counts.get((name, "skip"), 0),
        undone=counts.get((name, "undo"), 0),
        seconds=median(times) if times else None,
        kappa=kappas[0] if kappas else None,
        weeks=weeks,
    )


def _period(
    week: str, ratings: Sequence[_Rating], by_item: Mapping[str, Mapping[str, str]]
) -> Period:
    judged = [rating.good for rating in ratings if rating.good is not None]
    agreed = compared = 0
    for rating in ratings:
        others = Counter(
            verdict for rater, verdict in by_item[rating.item].items() if rater != rating.rater
        )
        crowd = plurality(others)
        if crowd is not None:
            compared += 1
            agreed += crowd == rating.verdict
    positive = sum(judged) / len(judged) if judged else None
    return Period(week, len(ratings), positive, agreed, compared)
