"""Draws docs/floor-plan.svg from the import graph: `python -m tests.floor_plan`.

A row is a layer of `[tool.importlinter]` in pyproject.toml, a box a stage with its lines of code. A
line joins two boxes where the upper stage imports the lower one and no way through a third stage
joins them already; of all imports this is the part that a reader needs.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from xml.sax.saxutils import escape

from tests.distributions import PACKAGE, ROOT, SOURCES, import_graph

PICTURE = ROOT / "docs" / "floor-plan.svg"
WIDTH, ROW = 900, 62
"""Of the picture, and from one layer to the next, in pixels."""
BOX_WIDTH, BOX_HEIGHT = 146, 30
STEP = 500
"""Lines of code are rounded to so many, so that the picture does not change with every commit."""


def layers() -> list[list[str]]:
    """Return the stages of each layer, from top to bottom."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    rows = [[name.strip() for name in row.split("|")] for row in contract["layers"]]
    return [row for row in rows if row != ["__main__"]]


def lines_of(stage: str) -> int:
    """Return how many lines of Python the stage has, rounded to STEP."""
    lines = 0
    for folder in SOURCES:
        for file in (ROOT / folder / PACKAGE / stage).rglob("*.py"):
            lines += len(file.read_text(encoding="utf-8").splitlines())
    return max(round(lines / STEP), 1) * STEP


def imports() -> Counter[tuple[str, str]]:
    """Return how many modules of a stage import another stage."""
    graph = import_graph()
    edges: set[tuple[str, str, str]] = set()
    for module in graph.modules:
        parts = module.split(".")
        if len(parts) < 2:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            target = imported.split(".")
            if len(target) > 1 and target[1] != parts[1]:
                edges.add((module, parts[1], target[1]))
    return Counter((upper, lower) for _, upper, lower in edges)


def without_implied(edges: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return the edges without those that a longer way of other edges implies."""
    below: dict[str, set[str]] = {}
    for upper, lower in edges:
        below.setdefault(upper, set()).add(lower)

    def reach(stage: str) -> set[str]:
        near = below.get(stage, set())
        return near.union(*(reach(lower) for lower in near))

    return Counter(
        {
            (upper, lower): count
            for (upper, lower), count in edges.items()
            if not any(lower in reach(other) for other in below[upper] - {lower})
        }
    )


def positions() -> dict[str, tuple[float, float]]:
    """Return the middle of each stage's box."""
    places = {}
    for number, row in enumerate(layers()):
        for index, stage in enumerate(row):
            x = WIDTH / 2 + (index - (len(row) - 1) / 2) * (BOX_WIDTH + 28)
            places[stage] = (x, 30 + number * ROW)
    return places


def drawn() -> str:
    """Return the picture as SVG."""
    places = positions()
    height = 30 + len(layers()) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img" '
        'aria-label="The stages of thumbwheel and the imports between them">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for (upper, lower), count in sorted(without_implied(imports()).items()):
        if upper in places and lower in places:
            parts.append(_line(places[upper], places[lower], count))
    for stage, middle in places.items():
        parts.append(_box(stage, middle))
    return "\n".join([*parts, "</svg>", ""])


def _line(upper: tuple[float, float], lower: tuple[float, float], count: int) -> str:
    # Few widths, so that one more import does not change the picture.
    width = 0.6 if count < 5 else 1.4 if count < 20 else 2.6
    begin, end = upper[1] + BOX_HEIGHT / 2, lower[1] - BOX_HEIGHT / 2
    return (
        f'<path d="M {upper[0]:.0f} {begin:.0f} C {upper[0]:.0f} {begin + 40:.0f}, '
        f'{lower[0]:.0f} {end - 40:.0f}, {lower[0]:.0f} {end:.0f}" fill="none" '
        f'stroke="#6b7a90" stroke-opacity="0.8" stroke-width="{width}"/>'
    )


def _box(stage: str, middle: tuple[float, float]) -> str:
    x, y = middle
    return (
        f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="5" fill="#eef3fb" stroke="#34507c"/>'
        f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="#10213f">'
        f'{escape(stage)} <tspan fill="#5a6b85" font-size="11">{lines_of(stage):,}</tspan></text>'
    )


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(drawn(), encoding="utf-8")


if __name__ == "__main__":
    main()
