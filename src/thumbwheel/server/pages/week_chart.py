"""The chart of the share of good answers by week and version, as points with intervals that a
template draws as SVG. It needs no library, so that a page costs nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from thumbwheel.capture.recent import GoodShare, Quality

COLUMN, LEFT, TOP, PLOT_HEIGHT, BOTTOM = 84, 44, 10, 150, 26
"""Pixels: a week, the labels beside, above, the plot, the labels below."""
APART = 16
"""Pixels between two versions of a week."""
HUES = 8
"""Colours of versions (operations.css)."""


@dataclass(frozen=True)
class WeekPoint:
    """The share of one version in a week: its place, and the ends of its interval."""

    x: int
    y: int
    high_y: int
    low_y: int
    hue: int
    words: str


@dataclass(frozen=True)
class WeekLabel:
    """A week below the plot."""

    x: int
    monday: date


@dataclass(frozen=True)
class WeekChart:
    """All that is drawn."""

    points: Sequence[WeekPoint]
    weeks: Sequence[WeekLabel]
    versions: Sequence[tuple[str, int]]
    """(version, its hue), in the order in which they came."""
    levels: Sequence[tuple[int, str]]
    """(y, label) of the lines across."""

    @property
    def width(self) -> int:
        """Of the drawing."""
        return LEFT + COLUMN * len(self.weeks)

    @property
    def height(self) -> int:
        """Of the drawing."""
        return TOP + PLOT_HEIGHT + BOTTOM

    @property
    def base(self) -> int:
        """Where the labels of the weeks stand."""
        return TOP + PLOT_HEIGHT + 18

    @property
    def words(self) -> str:
        """What it shows, read out."""
        return "; ".join(point.words for point in self.points)


def week_chart(quality: Quality) -> WeekChart | None:
    """Place each version's weekly shares on a chart; return None if there are no ratings."""
    mondays = [share.week for share in quality.by_week]
    if not mondays:
        return None
    hues: dict[str, int] = {}
    for share in quality.by_version:
        hues.setdefault(str(share.version), len(hues) % HUES)
    points = []
    for column, monday in enumerate(mondays):
        shares = [share for share in quality.by_version if share.week == monday]
        middle = LEFT + COLUMN * column + COLUMN // 2
        for number, share in enumerate(shares):
            x = middle + round(APART * (number - (len(shares) - 1) / 2))
            points.append(_point(share, x, hues[str(share.version)]))
    weeks = [
        WeekLabel(LEFT + COLUMN * column + COLUMN // 2, monday)
        for column, monday in enumerate(mondays)
    ]
    levels = [(_y(share), f"{round(100 * share)} %") for share in (1.0, 0.5, 0.0)]
    return WeekChart(points, weeks, list(hues.items()), levels)


def _point(share: GoodShare, x: int, hue: int) -> WeekPoint:
    interval = share.interval
    words = (
        f"week of {share.week:%d %b}, {share.version}: {100 * share.share:.0f} % of {share.rated} "
        f"rated answers good, between {100 * interval.low:.0f} and {100 * interval.high:.0f} %"
    )
    return WeekPoint(x, _y(share.share), _y(interval.high), _y(interval.low), hue, words)


def _y(share: float) -> int:
    return TOP + round(PLOT_HEIGHT * (1 - share))
