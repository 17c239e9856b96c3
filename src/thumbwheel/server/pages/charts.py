"""Charts of pages: those of the report (report/charts.py), which need matplotlib. Where it is not
installed, a page says so in place of the chart, and its tables have the same numbers.

Drawing takes a good part of a second, so no page waits for it: what is not drawn yet has a place,
and a script asks for the page once more with `draw=1` and fills the places (static/charts.js)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from thumbwheel.core import ids, present
from thumbwheel.core.errors import MissingExtra
from thumbwheel.server.pages.page import PageRequest

KEPT = 100
"""Drawings that the server keeps: what a page shows again costs nothing then."""


class Drawings:
    """The newest drawings, by what they show. Most of what is drawn never changes: evaluations,
    datasets and ended runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    def drawn(self, shown: Any) -> Mapping[str, str] | None:
        """Return the drawings of these values; None if they are not there."""
        return self._drawn(ids.fingerprint(present.json_text(shown)))

    def of(self, shown: Any, draw: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """Return the drawings of these values, drawn unless they are there."""
        key = ids.fingerprint(present.json_text(shown))
        if (earlier := self._drawn(key)) is not None:
            return earlier
        drawings = draw()
        with self._lock:
            self._kept[key] = drawings
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return drawings

    def _drawn(self, key: str) -> Mapping[str, str] | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]


_DRAWINGS = Drawings()
LATER = Markup('<p class="soft small"><a href="?draw=1">Draw the chart</a></p>')


@dataclass(frozen=True)
class Charts:
    """The charts of a page."""

    figures: Mapping[str, Markup] = field(default_factory=dict)
    """Name -> HTML figure."""
    missing: Markup | None = None
    """What is said in their place, because they cannot be drawn."""
    is_later: bool = False
    """They are not drawn yet."""

    def of(self, name: str) -> Markup:
        """Return the HTML of the place of the chart `name`, or of all whose name begins with this
        word; empty if there is no such chart."""
        if self.is_later:
            return Markup('<div data-charts="{}" data-later>{}</div>').format(name, LATER)
        drawn = [
            figure
            for title, figure in self.figures.items()
            if title == name or title.startswith(f"{name} ")
        ]
        content = Markup("").join(drawn) if drawn else self.missing or Markup("")
        return Markup('<div data-charts="{}">{}</div>').format(name, content)


def charts(asked: PageRequest, shown: Any, draw: Callable[[], Mapping[str, str]]) -> Charts:
    """Return the charts of `shown` that `draw` draws together, as HTML figures; they scroll on a
    narrow page, so that their text stays readable. They are drawn where the address asks for it."""
    try:
        drawings = _DRAWINGS.of(shown, draw) if "draw" in asked.query else _DRAWINGS.drawn(shown)
    except MissingExtra as error:
        return Charts(missing=Markup('<p class="empty">{}</p>').format(f"No chart: {error}"))
    if drawings is None:
        return Charts(is_later=True)
    return Charts({name: _figure(drawing) for name, drawing in drawings.items()})


def _figure(drawing: str) -> Markup:
    return Markup(f'<figure class="drawing" tabindex="0">{drawing}</figure>')
