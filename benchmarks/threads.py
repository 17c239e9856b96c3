"""What the cores of a processor gain when each has a micro-batch of its own, against sharing every
operation out among them.

`python benchmarks/threads.py [--sizes 26m,135m] [--runs 5] [--json FILE]`. The gradient of the same
sft rows by the product's own step: on one thread, with all threads in every operation, and with
micro-batches side by side. Medians of interleaved rounds, after one that is not counted.
"""

from __future__ import annotations

import os

import raw

from thumbwheel.training.children import PRIMITIVE_CACHES

os.environ |= PRIMITIVE_CACHES | {
    "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
}  # as in a run; read when torch is loaded

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import material
import ours
import peers
import torch
from floor import timed
from training import Match, parser, stamp

from thumbwheel.engine.score import ScoreEngine

BESIDE = ScoreEngine._can_run_replicas


def main() -> None:
    """Measure, print, write."""
    options_parser = parser("threads")
    options_parser.description = __doc__
    arguments = options_parser.parse_args()
    material.make(peers.BENCH / "material", *arguments.sizes.split(","))
    rows = [
        {"size": size} | measure(size, arguments.threads, arguments.runs)
        for size in arguments.sizes.split(",")
    ]
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.2f}" if isinstance(value, float) else str(value)
                for name, value in row.items()
            )
        )
    raw.write(arguments.json, **stamp(arguments), rows=rows)


def measure(size: str, threads: int, runs: int) -> dict[str, float]:
    """Median seconds by how the cores are used."""
    spec = Match("sft", size, "pairs", "cold").spec(2)
    with tempfile.TemporaryDirectory() as out:
        assembly = ours.prepared(spec, Path(out))
        ways: dict[str, tuple[int, Any]] = {
            "one thread": (1, BESIDE),
            f"{threads} threads in every operation": (threads, property(lambda _: False)),
            "side by side": (threads, BESIDE),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(runs + 1):
            for name, (count, replicas) in ways.items():
                torch.set_num_threads(count)
                ScoreEngine._can_run_replicas = replicas  # type: ignore[method-assign]
                seconds[name].append(timed(stepped(assembly, spec.a_step)))
        assembly.runner.close()
    return {name: statistics.median(several[1:]) for name, several in seconds.items()}


def stepped(assembly: Any, rows: int) -> Callable[[], None]:
    """The gradient of the first rows."""

    def step() -> None:
        assembly.runner.run(assembly.train.items[:rows], grad=True)
        assembly.engine.zero_grad()

    return step


if __name__ == "__main__":
    main()
