"""Charts of pages: those of the report (report/charts.py), which need matplotlib. Where it is not
installed, a page says so in place of the chart, and its tables have the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from thumbwheel.core.errors import MissingExtra


def chart(draw: Callable[[], str]) -> Markup:
    """Return the chart as an HTML figure: `chart(lambda: series(lines, "Loss"))`. It scrolls on a
    narrow page, so that its text stays readable. Without matplotlib, return a note about it
    instead."""
    try:
        return _figure(draw())
    except MissingExtra as error:
        return _missing(error)


def charts(draw: Callable[[], Mapping[str, str]]) -> dict[str, Markup]:
    """Return name -> HTML figure for charts that are drawn together; without matplotlib, only
    `missing`."""
    try:
        drawings = draw()
    except MissingExtra as error:
        return {"missing": _missing(error)}
    return {name: _figure(drawing) for name, drawing in drawings.items()}


def _figure(drawing: str) -> Markup:
    return Markup(f'<figure class="drawing" tabindex="0">{drawing}</figure>')


def _missing(error: MissingExtra) -> Markup:
    return Markup('<p class="empty">{}</p>').format(f"No chart: {error}")
