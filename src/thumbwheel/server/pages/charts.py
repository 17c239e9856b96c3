"""Charts of pages: those of the report (report/charts.py), which need matplotlib. Where it is not
installed, a page says so in place of the chart, and its tables have the same numbers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from thumbwheel.core import ids, present
from thumbwheel.core.errors import MissingExtra

KEPT = 100
"""Drawings that the server keeps: what a page shows again costs nothing then."""


class Drawings:
    """The newest drawings, by what they show. Drawing takes a good part of a second, and most of
    what is drawn never changes: evaluations, datasets and ended runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    def of(self, shown: Any, draw: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """Return the drawings of these values, drawn unless they are kept."""
        key = ids.fingerprint(present.json_text(shown))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        drawings = draw()
        with self._lock:
            self._kept[key] = drawings
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return drawings


_DRAWINGS = Drawings()


def chart(shown: Any, draw: Callable[[], str]) -> Markup:
    """Return the chart of `shown` as an HTML figure: `chart(lines, lambda: series(lines, "Loss"))`.
    It scrolls on a narrow page, so that its text stays readable. Without matplotlib, return a note
    about it instead."""
    try:
        return _figure(_DRAWINGS.of(shown, lambda: {"": draw()})[""])
    except MissingExtra as error:
        return _missing(error)


def charts(shown: Any, draw: Callable[[], Mapping[str, str]]) -> dict[str, Markup]:
    """Return name -> HTML figure for charts of `shown` that are drawn together; without matplotlib,
    only `missing`."""
    try:
        drawings = _DRAWINGS.of(shown, draw)
    except MissingExtra as error:
        return {"missing": _missing(error)}
    return {name: _figure(drawing) for name, drawing in drawings.items()}


def _figure(drawing: str) -> Markup:
    return Markup(f'<figure class="drawing" tabindex="0">{drawing}</figure>')


def _missing(error: MissingExtra) -> Markup:
    return Markup('<p class="empty">{}</p>').format(f"No chart: {error}")
