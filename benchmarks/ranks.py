"""What several ranks of a run cost: processor time of the busiest one over that of one process.

    make bench-ranks
    make bench-ranks ARGS="--methods dpo --sizes 1m --ranks 2,3 --steps 2"

The optimiser steps of the product's own loop, after one that warms up, with a cold reference cache
and one thread a process. Loading the base is no part of it, since each rank loads it whole.
Processor time and not the clock, because ranks of one machine share it with others; two ranks that
shared out everything would need 0.5. The losses of all are compared, too.
"""

from __future__ import annotations

import os

import raw

from thumbwheel.training.children import PRIMITIVE_CACHES

os.environ |= PRIMITIVE_CACHES | {"OMP_WAIT_POLICY": "PASSIVE"}  # read when torch is loaded

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import material
import ours
import peers
from onerun import Spec
from training import Match, parser, stamp
from transformers import TrainerCallback

from thumbwheel.engine.ranks import Ranks
from thumbwheel.training.checkpoint import Checkpoints
from thumbwheel.training.loop import Loop
from thumbwheel.training.metrics import MetricsFile
from thumbwheel.training.optimizer import prepare
from thumbwheel.training.placement import free_listener, rank_variables

WARM_UP = 1
"""Steps before anything is counted."""


class Processor(TrainerCallback):
    """Processor seconds and losses of the steps that count."""

    def __init__(self) -> None:
        self.seconds = self.start = 0.0
        self.losses: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start behind the warm-up."""
        if state.global_step == WARM_UP:
            self.start = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count up to here."""
        self.seconds = time.process_time() - self.start

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep the loss."""
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        member(Spec.read())
        return
    options_parser = parser("ranks")
    options_parser.description = __doc__
    options_parser.add_argument("--ranks", default="2", help="numbers of ranks (default: 2)")
    options_parser.set_defaults(methods="dpo,sft", sizes="26m", steps=3, runs=1)
    arguments = options_parser.parse_args()
    material.make(peers.BENCH / "material", *arguments.sizes.split(","))
    rows = []
    for size in arguments.sizes.split(","):
        for method in arguments.methods.split(","):
            spec = Match(method, size, "pairs", "cold").spec(WARM_UP + arguments.steps)
            (alone,) = measured(spec, 1)
            for count in map(int, arguments.ranks.split(",")):
                row = compared(alone, measured(spec, count))
                rows.append({"method": method, "size": size, "ranks": count} | row)
                of_one = f"{row['busiest']:.2f} of the {alone['seconds']:.1f} s of one process"
                print(f"{method:6}{size:6}{count} ranks: the busiest needs {of_one}", flush=True)
                raw.write(arguments.json, **stamp(arguments), rows=rows)


def compared(alone: dict[str, Any], members: list[dict[str, Any]]) -> dict[str, Any]:
    """The busiest rank's share of what one process needs."""
    seconds = [member["seconds"] for member in members]
    losses = zip(alone["losses"], members[0]["losses"], strict=True)
    return {
        "busiest": max(seconds) / alone["seconds"],
        "one_process_seconds": alone["seconds"],
        "rank_seconds": seconds,
        "largest_difference_of_losses": max(abs(alone_loss - loss) for alone_loss, loss in losses),
    }


def measured(spec: Spec, count: int) -> list[dict[str, Any]]:
    """What each of so many ranks needs for the same steps."""
    with tempfile.TemporaryDirectory() as out, free_listener() as listener:
        inherited = os.environ | {"OMP_NUM_THREADS": "1", "BENCH_THREADS": "1", "BENCH_OUT": out}
        alone: list[dict[str, str]] = [{}]
        of_ranks = alone if count == 1 else rank_variables(count, "cpu", listener, inherited)
        members = [
            subprocess.Popen(
                [sys.executable, __file__, spec.text()],
                env=inherited | variables,
                pass_fds=() if rank else (listener.fileno(),),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, variables in enumerate(of_ranks)
        ]
        results = []
        for process in members:
            output, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"a rank ended with {process.returncode}")
            results.append(json.loads(output.splitlines()[-1]))
        return results


def member(spec: Spec) -> None:
    """Train as one of the ranks and print what it cost."""
    ranks = Ranks.join(os.environ)
    out = Path(os.environ["BENCH_OUT"])
    assembly = ours.prepared(spec, out, ranks)
    trained = prepare(assembly.model, assembly.config, spec.steps, assembly.runner.groups())
    processor = Processor()
    metrics = MetricsFile(out / f"metrics-{ranks.rank}.jsonl")
    parts = (assembly.train.items, (), metrics, Checkpoints(out, 1))
    loop = Loop(assembly.runner, trained, assembly.config, *parts, callbacks=[processor])
    order: Any = ours.InOrder(spec.a_step, spec.steps)
    loop.order = order
    loop.run()
    assembly.runner.close()
    print(json.dumps({"seconds": processor.seconds, "losses": processor.losses}), flush=True)
    ranks.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
