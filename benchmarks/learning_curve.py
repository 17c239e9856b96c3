"""Draws what quality.py measured: success on gold over the number of ratings, a line for each
contestant.

    python benchmarks/learning_curve.py --world desk --chart docs/desk.svg [--json FILE]

A point is the mean over the seeds that have it; the bar goes from the least to the most of them.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import raw


def main() -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "quality")
    parser.add_argument("--world", required=True)
    parser.add_argument("--chart", type=Path, required=True, help="the SVG file to write")
    parser.add_argument(
        "--contestants", default="", help="comma-separated; without them all that were measured"
    )
    arguments = parser.parse_args()
    rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    names = arguments.contestants.split(",") if arguments.contestants else None
    of_world = [row for row in rows if row["world"] == arguments.world and not row["options"]]
    draw(
        [row for row in of_world if names is None or row["contestant"] in names],
        arguments.world,
        arguments.chart,
    )


def draw(rows: Sequence[dict[str, Any]], world: str, file: Path) -> None:
    """Write the chart."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    base = 100 * mean(row["before"] for row in rows)
    axes.axhline(base, color="0.6", linewidth=1, linestyle="dotted", label="base")
    for name in dict.fromkeys(row["contestant"] for row in rows):
        by_ratings: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            if row["contestant"] == name:
                by_ratings[row["ratings"]].append(100 * row["after"])
        ratings = sorted(by_ratings)
        means = [mean(by_ratings[count]) for count in ratings]
        below = [mean(by_ratings[count]) - min(by_ratings[count]) for count in ratings]
        above = [max(by_ratings[count]) - mean(by_ratings[count]) for count in ratings]
        axes.errorbar(
            ratings,
            means,
            yerr=[below, above],
            marker="o",
            markersize=4,
            linewidth=1.2,
            capsize=2,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_xticks(
        ticks := sorted({row["ratings"] for row in rows}), [f"{count:,}" for count in ticks]
    )
    axes.minorticks_off()
    axes.set(
        xlabel="ratings",
        ylabel="right on gold, %",
        title=f"{world}: what the same feedback teaches",
    )
    axes.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
