"""Graphs of where versions come from, as boxes and lines that a template draws as SVG: versions by
their parents, and one version back to the feedback that it learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.figures import gain
from thumbwheel.models.types import ModelVersion

BOX_WIDTH, BOX_HEIGHT = 138, 46
GAP_X, GAP_Y = 34, 14
LONGEST = 18
"""Characters of a line in a box."""


@dataclass(frozen=True)
class GraphBox:
    """Something in a graph, with two lines of text; `x` and `y` are its upper left corner."""

    title: str
    detail: str
    column: int
    row: int
    link: str | None = None
    """The address of its page."""
    tone: str = ""
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT

    @property
    def x(self) -> int:
        return self.column * (BOX_WIDTH + GAP_X) + 1

    @property
    def y(self) -> int:
        return self.row * (BOX_HEIGHT + GAP_Y) + 1


@dataclass(frozen=True)
class Graph:
    """Boxes, and the lines between them as (from, to) indices."""

    boxes: Sequence[GraphBox]
    lines: Sequence[tuple[int, int]]
    words: str
    """What it shows, read out."""

    @property
    def width(self) -> int:
        """Of the drawing."""
        return max(box.x for box in self.boxes) + BOX_WIDTH + 1

    @property
    def height(self) -> int:
        """Of the drawing."""
        return max(box.y for box in self.boxes) + BOX_HEIGHT + 1

    @property
    def paths(self) -> list[str]:
        """The lines as SVG paths, from the right side of a box to the left side of the next."""
        middle = BOX_HEIGHT / 2
        drawn = []
        for begin, end in self.lines:
            source, target = self.boxes[begin], self.boxes[end]
            x, y = source.x + BOX_WIDTH, source.y + middle
            far_x, far_y = target.x, target.y + middle
            bend = x + GAP_X / 2
            drawn.append(f"M{x} {y}C{bend} {y} {bend} {far_y} {far_x} {far_y}")
        return drawn


def version_graph(
    versions: Sequence[tuple[ModelVersion, Sequence[str]]], pages: str
) -> Graph | None:
    """Return the graph of all versions with their aliases, each a column to the right of its
    parent; None without versions. `pages` is the prefix of the agent's page addresses."""
    if not versions:
        return None
    boxes: list[GraphBox] = []
    lines = []
    index_of: dict[str, int] = {}
    next_row: dict[int, int] = {}
    for version, aliases in versions:
        parent = index_of.get(version.parent_id or "")
        column = 0 if parent is None else boxes[parent].column + 1
        row = next_row.get(column, 0)
        if parent is not None:
            row = max(row, boxes[parent].row)
        next_row[column] = row + 1
        index_of[version.id] = len(boxes)
        if parent is not None:
            lines.append((parent, len(boxes)))
        detail = ", ".join(aliases) if aliases else str(version.state)
        tone = "live" if "live" in aliases else ""
        link = f"{pages}/models/{version.name}"
        boxes.append(GraphBox(version.name, _short(detail), column, row, link, tone))
    words = "; ".join(f"{boxes[end].title} from {boxes[begin].title}" for begin, end in lines)
    return Graph(boxes, lines, words or "no version descends from another one")


def origin_graph(report: Mapping[str, Any], aliases: Sequence[str], pages: str) -> Graph:
    """Return the graph of a version, from its feedback on the left to its aliases on the right.
    `report` is a result of `report.report.collect`."""
    steps: list[tuple[str, str, str | None]] = []
    data, training, summary = report["data"], report["training"], report["summary"]
    lineage = report["lineage"]
    if data:
        feedback = sum(data["feedback"].values())
        users = "1 user" if data["subjects"] == 1 else f"{data['subjects']:,} users"
        steps.append((f"{feedback:,} feedback", f"of {users}", None))
        steps.append(
            (
                data["shape"],
                f"{sum(data['rows'].values()):,} rows",
                f"{pages}/datasets/{data['id']}",
            )
        )
    base = lineage["version"]["base"]
    if training:
        steps.append((training["algorithm"], training["state"], f"{pages}/runs/{training['id']}"))
    steps.append((report["version"], _short(base.rpartition("/")[2]), None))
    if summary:
        link = f"{pages}/evaluations/{report['version']}"
        steps.append(("evaluation", f"{gain(summary['gain'])}, {summary['basis']}", link))
        if summary["decision"]:
            steps.append((summary["decision"].replace("_", " "), "the gate", None))
    if aliases:
        steps.append((", ".join(aliases), "alias", f"{pages}/deployments"))
    boxes = [
        GraphBox(_short(title), _short(detail), column, 0, link)
        for column, (title, detail, link) in enumerate(steps)
    ]
    lines = [(column, column + 1) for column in range(len(boxes) - 1)]
    return Graph(boxes, lines, ", then ".join(f"{box.title} ({box.detail})" for box in boxes))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
