"""What the page of runs costs the server: the curves of 100 runs of 5,000 steps over each other.

    make bench-curves
    make bench-curves ARGS="--runs 20 --steps 50000"

CPU is that of this process, for the first time (the files are parsed and sampled) and for the next
(they are remembered); bytes are those of the answers that the browser gets. A run that goes on is
sampled anew, alone.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import raw

from thumbwheel.core import present
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.pages.training import METRICS
from thumbwheel.training.curves import curves
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Run, RunState

ALL_POINTS, FEWEST_POINTS, MOST_POINTS = 24_000, 40, 400
"""As static/curves.js asks."""


def write_run(ws: Workspace, name: str, steps: int, draw: random.Random) -> Run:
    folder = RunDir(ws.home.runs / name)
    folder.path.mkdir(parents=True)
    with folder.metrics.open("w") as stream:
        for step in range(1, steps + 1):
            line = {"step": step, "epoch": step / 500, "seconds": step * 0.7, "tokens": step * 900}
            for metric in (*METRICS, "learning_rate", "grad_norm"):
                line[metric] = draw.random()
            stream.write(json.dumps(line) + "\n")
    return Run(name, "a", "dpo", "dst_1", "base", None, {}, RunState.FINISHED, None, None)


def answer(ws: Workspace, runs: list[Run], points: int) -> tuple[float, int]:
    """(CPU seconds, bytes) of the answer with the curves of these runs."""
    begin = time.process_time()
    rows = [asdict(curves(ws, run, points, METRICS)) for run in runs]
    content = present.json_text(rows, indent=None)
    return time.process_time() - begin, len(content)


def main() -> None:
    """Measure, print the figures, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5000)
    raw.option(parser, "curves")
    arguments = parser.parse_args()
    points = ALL_POINTS // (arguments.runs * len(METRICS))
    points = min(MOST_POINTS, max(FEWEST_POINTS, points))
    draw = random.Random(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home(Path(folder) / "home"), Sources({}, "none", {})) as ws,
    ):
        runs = [
            write_run(ws, f"run_{number}", arguments.steps, draw)
            for number in range(arguments.runs)
        ]
        stored = sum(RunDir(ws.home.runs / run.id).metrics.stat().st_size for run in runs)
        first, size = answer(ws, runs, points)
        again, _ = answer(ws, runs, points)
        single, single_size = answer(ws, runs[:1], MOST_POINTS)
    figures = {
        "runs": arguments.runs,
        "steps": arguments.steps,
        "points_a_curve": points,
        "metrics_mb": round(stored / 1e6, 1),
        "first_cpu_seconds": round(first, 3),
        "again_cpu_seconds": round(again, 3),
        "answer_kb": round(size / 1e3, 1),
        "single_run_cpu_seconds": round(single, 4),
        "single_run_kb": round(single_size / 1e3, 1),
    }
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):26} {value:>10}")
    raw.write(arguments.json, **figures)


if __name__ == "__main__":
    main()
