"""Charts as inline SVG: before and after with intervals, training curves, counts. Data in, text
out; nothing is fetched or stored.

Text stays text, so that it can be searched and read aloud. Ink is `currentColor`, so that a dark
page works. Nothing is said by a style attribute, so that a page may forbid those.
Each chart says in words what it shows, and has direct labels instead of a legend.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from thumbwheel.core.errors import MissingExtra
from thumbwheel.report.formatting import visible
from thumbwheel.training.curves import extremes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, ACCENT, MUTED = "#010203", "#8a8f98", "#2f7ed8", "#9aa7b8"
"""Ink is replaced by the page's own colour; the others are readable on white and on black."""
WIDTH = 7.2
"""Inches of a chart over the whole column."""
ROW = 0.46
"""Inches of one row of a before-and-after chart."""
LONGEST = 56
"""Characters of a row's label."""
MOST_POINTS = 400
"""Of a curve: more are not seen."""
ALL_POINTS, FEWEST_POINTS = 6_000, 60
"""Of all curves of a crowd together, and of each of them."""
MOST_LABELS = 6
"""Curves that are drawn with a label and a colour of their own; beyond them they are a crowd."""
PALETTE = ("#2f7ed8", "#d9632e", "#2f9e62", "#a45bd0", "#b58900", "#d0487f")
"""Readable on white and on black."""
STYLE = re.compile(r'\sstyle="([^"]*)"')
_DRAWING = threading.Lock()
"""matplotlib's settings are those of the process."""


TIDY = {
    r"\s*<metadata>.*?</metadata>": "",
    r"\s*<style.*?</style>": "",
    r'<g id="[^"]*"': "<g",
    r' font-family: [^;"]*': " font-family: inherit",
    r'width="[\d.]+pt" height="[\d.]+pt"': 'class="chart"',
}
"""Pattern in matplotlib's SVG -> its replacement, so that a page can hold several charts: names of
groups repeat, and styles would apply to the whole page."""


@dataclass(frozen=True)
class Change:
    """One row of a before-and-after chart, in percent. The interval is that of the gain, in
    points."""

    label: str
    before: float
    after: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class ChartLine:
    """One curve: (step, value) pairs in order."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Band:
    """An interval over time: (step, low, high) in order."""

    points: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Rung:
    """One precision: nats of KL from the trained model, its other figures in words, and whether
    parity held."""

    label: str
    kl: float
    text: str
    good: bool


def changes(rows: Sequence[Change], title: str) -> str:
    """Draw a row for each change as SVG: its name and figures, below them a hollow dot for before,
    a full dot for after, and a bar for the interval of the gain."""
    height = 0.3 + ROW * len(rows)
    with _figure(WIDTH, height) as figure:
        axes = figure.add_axes((0.03, 0.28 / height, 0.94, 1 - 0.3 / height))
        ends = []
        for row in rows:
            ends += [row.before, row.after, row.before + row.low, row.before + row.high]
        margin = max(3.0, 0.06 * (max(ends) - min(ends)))
        axes.set_xlim(max(-2.0, min(ends) - margin), min(102.0, max(ends) + margin))
        axes.set_ylim(len(rows) - 0.55, -0.72)
        for y, row in enumerate(rows):
            _change(axes, y, row)
        axes.set_yticks([])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        axes.spines["left"].set_visible(False)
        return _svg(figure, title, "; ".join(_in_words(row) for row in rows))


def _change(axes: Axes, y: int, row: Change) -> None:
    low, high = row.before + row.low, row.before + row.high
    axes.plot([low, high], [y, y], color=ACCENT, alpha=0.28, linewidth=7, solid_capstyle="butt")
    axes.plot([row.before, row.after], [y, y], color=INK, linewidth=1)
    axes.plot(
        [row.before],
        [y],
        "o",
        markersize=6,
        markerfacecolor="none",
        markeredgecolor=INK,
        markeredgewidth=1.2,
    )
    axes.plot([row.after], [y], "o", markersize=6.5, color=ACCENT)
    gain = f"{row.after - row.before:+.1f} [{row.low:+.1f}, {row.high:+.1f}]".replace("-", "−")
    figures = f"{row.before:.1f} → {row.after:.1f} %  ·  {gain}  ·  n {row.n:,}"
    _row_text(axes, y, row.label, figures)


def _row_text(axes: Axes, y: int, label: str, figures: str) -> None:
    """Draw the text above a row: its label on the left, its figures on the right."""
    style: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "color": INK}
    axes.annotate(_short(label), (0.0, y - 0.45), fontsize=9, fontweight="bold", **style)
    axes.annotate(figures, (1.0, y - 0.45), ha="right", fontsize=8.5, **style)


def _in_words(row: Change) -> str:
    return (
        f"{row.label}: {row.before:.1f} to {row.after:.1f} percent, gain {row.low:+.1f} to "
        f"{row.high:+.1f} points, n {row.n}"
    )


def curves(
    panels: Mapping[str, Sequence[ChartLine]],
    best_step: int | None,
    shares: Collection[str],
    title: str,
) -> str:
    """Draw small multiples over the optimiser step as SVG, two per row. `best_step` is the step
    whose adapter is the candidate; panels in `shares` run from 0 to 1."""
    rows = (len(panels) + 1) // 2
    with _figure(WIDTH, 1.75 * rows) as figure:
        all_axes = list(figure.subplots(rows, 2, squeeze=False).flat)
        for axes, (name, lines) in zip(all_axes, panels.items(), strict=False):
            _panel(axes, name, lines, best_step, name in shares)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        figure.subplots_adjust(
            left=0.08,
            right=0.945,
            top=1 - 0.28 / (1.75 * rows),
            bottom=0.3 / (1.75 * rows),
            hspace=0.52,
            wspace=0.4,
        )
        return _svg(figure, title, "; ".join(_ends(name, lines) for name, lines in panels.items()))


def _panel(
    axes: Axes, name: str, lines: Sequence[ChartLine], best_step: int | None, is_share: bool
) -> None:
    axes.set_title(_short(name), loc="left", fontsize=9, color=INK, pad=6)
    for line in lines:
        style: dict[str, Any] = {"color": MUTED, "linewidth": 1.0}
        if line.label == "dev":
            style = {"color": ACCENT, "linewidth": 1.8}
        steps = [step for step, _ in line.points]
        values = [value for _, value in line.points]
        marker = "o" if len(steps) < 3 else None
        axes.plot(steps, values, marker=marker, markersize=4, **style)
    if is_share:
        axes.set_ylim(0, 1.05)
    if best_step is not None:
        axes.axvline(best_step, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    last_values = [line.points[-1][1] for line in lines]
    for line, height in zip(lines, _apart(last_values, axes.get_ylim()), strict=True):
        color = ACCENT if line.label == "dev" else FAINT
        axes.annotate(
            f"\u00a0{line.label}",
            (1.0, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=color,
        )
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.margins(x=0.01)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)


def _apart(heights: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """Return two `heights` moved so far apart that their labels do not overlap; any other number of
    heights unchanged."""
    least = 0.13 * (limits[1] - limits[0])
    if len(heights) != 2 or abs(heights[0] - heights[1]) >= least:
        return list(heights)
    middle, sign = sum(heights) / 2, 1 if heights[0] >= heights[1] else -1
    return [middle + sign * least / 2, middle - sign * least / 2]


def _ends(name: str, lines: Sequence[ChartLine]) -> str:
    return f"{name}: " + ", ".join(
        f"{line.label} from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in lines
    )


def series(
    lines: Sequence[ChartLine],
    title: str,
    *,
    band: Band | None = None,
    level: float | None = None,
    x_label: str = "",
) -> str:
    """Draw curves in one chart as SVG, thinned to the visible detail. A few curves each have a
    colour and a label; many are drawn as a crowd in which the last is marked. `level` is a
    horizontal line to compare with, `band` the interval around the first curve."""
    drawn = [line for line in lines if line.points]
    most = min(MOST_POINTS, max(FEWEST_POINTS, ALL_POINTS // max(1, len(drawn))))
    shown = [ChartLine(line.label, thinned(line.points, most)) for line in drawn]
    is_crowd = len(shown) > MOST_LABELS
    with _figure(WIDTH, 2.6) as figure:
        axes = figure.add_axes((0.08, 0.15, 0.75, 0.81))
        if band is not None:
            steps = [step for step, _, _ in band.points]
            lows = [low for _, low, _ in band.points]
            highs = [high for _, _, high in band.points]
            axes.fill_between(steps, lows, highs, color=ACCENT, alpha=0.16, linewidth=0)
        if level is not None:
            axes.axhline(level, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
        for number, line in enumerate(shown):
            is_marked = not is_crowd or number == len(shown) - 1
            style = _curve_style(number, is_crowd=is_crowd, is_marked=is_marked)
            axes.plot([x for x, _ in line.points], [y for _, y in line.points], **style)
        labelled = shown[-1:] if is_crowd else shown
        low, high = axes.get_ylim()
        heights = spread([line.points[-1][1] for line in labelled], 0.07 * (high - low))
        for number, (line, height) in enumerate(zip(labelled, heights, strict=True)):
            axes.annotate(
                f"\u00a0{_short(line.label)}",
                (1.0, height),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8,
                color=ACCENT if is_crowd else PALETTE[number],
            )
        axes.locator_params(axis="x", nbins=8)
        axes.margins(x=0.01)
        axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
        axes.set_xlabel(x_label, fontsize=8, color=FAINT)
        return _svg(figure, title, _ends(title, shown))


def _curve_style(number: int, *, is_crowd: bool, is_marked: bool) -> dict[str, Any]:
    if not is_crowd:
        return {"color": PALETTE[number], "linewidth": 1.5}
    if is_marked:
        return {"color": ACCENT, "linewidth": 1.8}
    return {"color": MUTED, "linewidth": 0.7, "alpha": 0.5}


def thinned(
    points: Sequence[tuple[float, float]], most: int = MOST_POINTS
) -> list[tuple[float, float]]:
    """Return at most `most` of the points, with the lowest and the highest of every stretch, so
    that no spike disappears.

    >>> len(thinned([(step, 0.0) for step in range(5000)])) <= MOST_POINTS
    True
    """
    indices = extremes(np.array([value for _, value in points], float), most)
    return [points[index] for index in indices]


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Return the heights in their order, moved up where two labels would overlap.

    >>> spread([1.0, 1.0, 5.0], 0.5)
    [1.0, 1.5, 5.0]
    """
    moved = list(heights)
    previous = -math.inf
    for index in sorted(range(len(moved)), key=lambda index: moved[index]):
        moved[index] = previous = max(moved[index], previous + least)
    return moved


def bars(counts: Mapping[str, int], title: str) -> str:
    """Draw one horizontal bar per name as SVG, with its count beside it."""
    height = 0.1 + 0.27 * len(counts)
    with _figure(WIDTH, height) as figure:
        axes = figure.add_axes((0.17, 0.05 / height, 0.72, 1 - 0.1 / height))
        for y, (name, count) in enumerate(counts.items()):
            axes.barh(y, count, height=0.62, color=ACCENT, alpha=0.75)
            axes.annotate(f"\u00a0{count:,}", (count, y), va="center", fontsize=8.5, color=INK)
            axes.annotate(
                _short(name),
                (-0.015, y),
                xycoords=("axes fraction", "data"),
                va="center",
                ha="right",
                fontsize=9,
                color=INK,
            )
        axes.set_ylim(len(counts) - 0.5, -0.5)
        axes.set_axis_off()
        return _svg(figure, title, "; ".join(f"{name}: {count}" for name, count in counts.items()))


def ladder(rungs: Sequence[Rung], title: str) -> str:
    """Draw a row for each export as SVG, on a logarithmic scale: its name and figures, below them
    its distance from the trained model; hollow if it failed."""
    height = 0.3 + ROW * len(rungs)
    with _figure(WIDTH, height) as figure:
        axes = figure.add_axes((0.03, 0.28 / height, 0.94, 1 - 0.3 / height))
        kls = [rung.kl for rung in rungs]
        left = max(1e-9, min(kls)) / 3
        axes.set_xscale("log")
        axes.set_xlim(left, 3 * max(left, *kls))
        axes.set_ylim(len(rungs) - 0.55, -0.72)
        for y, rung in enumerate(rungs):
            kl = max(rung.kl, left)
            bar: dict[str, Any] = {"alpha": 0.28, "linewidth": 7, "solid_capstyle": "butt"}
            axes.plot([left, kl], [y, y], color=ACCENT, **bar)
            axes.plot(
                [kl],
                [y],
                "o",
                markersize=6.5,
                markerfacecolor=ACCENT if rung.good else "none",
                markeredgecolor=ACCENT,
            )
            _row_text(axes, y, rung.label, f"KL {rung.kl:.2g}  ·  {rung.text}")
        axes.set_yticks([])
        axes.minorticks_off()
        axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        axes.spines["left"].set_visible(False)
        words = "; ".join(f"{rung.label}: KL {rung.kl:.2g}, {rung.text}" for rung in rungs)
        return _svg(figure, title, words)


def _short(text: str) -> str:
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 1] + "…"


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("charts", "matplotlib", "train") from None
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.6,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 8,
        "ytick.labelsize": 9,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }
    with _DRAWING, mpl.rc_context(settings):
        yield Figure(figsize=(width, height))


def _svg(figure: Figure, title: str, words: str) -> str:
    """Return the figure as an <svg> element for a page: without header and metadata, with unique
    ids, and with its meaning in words."""
    import io

    import matplotlib as mpl

    out = io.StringIO()
    # The ids of two charts on one page must differ, and stay the same from run to run.
    with mpl.rc_context({"svg.hashsalt": title}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    drawing = out.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    for pattern, plain in TIDY.items():
        drawing = re.sub(pattern, plain, drawing, flags=re.DOTALL)
    drawing = STYLE.sub(_attributes, drawing)
    head, body = drawing.split(">", 1)
    meaning = f"<title>{escape(visible(title))}</title>\n<desc>{escape(visible(words))}</desc>"
    return f'{head} role="img">\n{meaning}{body}'


def _attributes(style: re.Match[str]) -> str:
    """Return a style as the equivalent SVG attributes: matplotlib uses no other properties."""
    attributes = []
    for declaration in style[1].split(";"):
        name, colon, value = declaration.partition(":")
        if colon:
            attributes.append(f' {name.strip()}="{value.strip()}"')
    return "".join(attributes)
