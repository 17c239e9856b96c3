"""What more data costs: `python benchmarks/scaling.py [--json FILE] [--chart FILE.svg]`.

One epoch of ours over 1, 4 and 16 times the same number of rows, each in a process of its own,
reference cache cold: seconds against tokens after truncation, and peak memory. Seconds a token
should stay what they are, and memory too.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import material
import peers
import raw
from training import Match, run, stamp

TIMES = (1, 4, 16)
METHODS = ("dpo", "kto", "sft")
STEPS = 1
"""Optimiser steps at 1x, after one that warms up."""


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "scaling")
    peers.option(parser)
    parser.add_argument("--chart", help="write a chart to this SVG file")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    parser.add_argument("--size", default="26m", choices=list(material.SIZES))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    arguments = parser.parse_args()
    arguments.steps, arguments.runs = STEPS, 1
    material.make(peers.BENCH / "material", arguments.size)
    print(
        f"{'method':8}{'data':>6}{'rows':>6}{'tokens':>9}"
        f"{'seconds':>9}{'us a token':>12}{'peak GB':>9}"
    )
    rows = [
        measure(method, times, arguments)
        for method in arguments.methods.split(",")
        for times in TIMES
    ]
    raw.write(arguments.json, **stamp(arguments), size=arguments.size, rows=rows)
    if arguments.chart:
        draw(rows, Path(arguments.chart))


def measure(method: str, times: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run, printed."""
    spec = Match(method, arguments.size, "pairs", "cold").spec(1)
    spec = replace(spec, steps=1 + STEPS * times)
    result = run(spec, "ours.py", arguments.threads, python=arguments.python)
    tokens, seconds = sum(result["tokens"][1:]), sum(result["seconds"][1:])
    row = {
        "method": method,
        "times": times,
        "rows": spec.a_step * STEPS * times,
        "tokens": tokens,
        "seconds": seconds,
    }
    row |= {"microseconds_a_token": 1e6 * seconds / tokens, "peak_bytes": result["peak_bytes"]}
    figures = f"{seconds:9.1f}{row['microseconds_a_token']:12.0f}{result['peak_bytes'] / 1e9:9.2f}"
    print(f"{method:8}{times:5}x{row['rows']:6}{tokens:9}{figures}", flush=True)
    return row


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Seconds against tokens, with the line that the smallest run promises."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(row["method"] for row in rows):
        points = [(row["tokens"], row["seconds"]) for row in rows if row["method"] == method]
        (line,) = axes.loglog(*zip(*points, strict=True), "o", label=method)
        rate = points[-1][1] / points[-1][0]
        ends = [points[0][0], points[-1][0]]
        axes.loglog(ends, [rate * end for end in ends], color=line.get_color(), linewidth=1)
    axes.set(
        xlabel="training tokens",
        ylabel="seconds",
        title="1, 4 and 16 times the data; lines: exactly linear",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
