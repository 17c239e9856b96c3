"""Time and peak memory of a whole optimiser step, ours against TRL.

`make bench-training ARGS="--json FILE --methods dpo --sizes 26m,135m"`.

Each run is a process of its own; the runs of ours and of the peers alternate, so that a noisy neighbour meets all alike. The same model,
pairs, order, LoRA modules and learning rate; the first step of each run is left out of the time. Ratios above 1 are in our favour for
time (peer / ours); memory is ours / peer, from the peak resident size of the process. The reference log-probabilities of ours are
computed cold, inside the step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import material
import peers

HERE = Path(__file__).parent
CONTESTANTS = ("ours", "default", "tuned")


def main() -> None:
    """Parse, make the material, run the rounds, print the table."""
    arguments = parser().parse_args()
    folder = peers.BENCH / "material"
    material.make(folder)
    rows: list[dict[str, Any]] = []
    for method in arguments.methods.split(","):
        for size in arguments.sizes.split(","):
            rows += compare(method, size, folder, arguments)
    show(rows)
    if arguments.json:
        stamp = {"date": datetime.now(UTC).isoformat(), "threads": arguments.threads, "steps": arguments.steps, "rounds": arguments.rounds}
        Path(arguments.json).write_text(json.dumps({"versions": peers.PINS, **stamp, "rows": rows}, indent=1))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", help="write the rows to this file")
    found.add_argument("--methods", default="dpo", help="comma-separated; this version measures dpo")
    found.add_argument("--sizes", default="26m,135m", help=f"comma-separated: {', '.join(material.SIZES)}")
    found.add_argument("--steps", type=int, default=4, help="optimiser steps a run, the first not counted")
    found.add_argument("--rounds", type=int, default=3, help="interleaved runs of each contestant")
    found.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    return found


def compare(method: str, size: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one method and size: one a peer configuration."""
    if method != "dpo" or size not in material.SIZES:
        sys.exit(f"no benchmark for method {method!r} at size {size!r}; known: dpo at {', '.join(material.SIZES)}")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    for number in range(arguments.rounds):
        for name in CONTESTANTS:
            runs[name].append(measure(name, size, folder, arguments))
            last = runs[name][-1]["seconds"]
            sys.stderr.write(f"{size} round {number + 1}: {name:8} {statistics.median(last[1:]):.2f} s a step\n")
    ours = summary(runs["ours"])
    return [row(method, size, kind, ours, summary(runs[kind])) for kind in CONTESTANTS[1:]]


def row(method: str, size: str, kind: str, ours: dict[str, float], peer: dict[str, float]) -> dict[str, Any]:
    """One line of the table."""
    return {
        "method": method,
        "size": size,
        "cache": "cold",
        "peer": f"trl-1.16 {kind}",
        "time_ratio": peer["seconds"] / ours["seconds"],
        "memory_ratio": ours["peak"] / peer["peak"],
        "loss_ours": ours["loss"],
        "loss_peer": peer["loss"],
        "seconds_ours": ours["seconds"],
        "seconds_peer": peer["seconds"],
        "gigabytes_ours": ours["peak"] / 1e9,
        "gigabytes_peer": peer["peak"] / 1e9,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Median step over all runs (first steps out), median peak, last loss."""
    return {
        "seconds": statistics.median(second for run in runs for second in run["seconds"][1:]),
        "peak": statistics.median(run["peak_bytes"] for run in runs),
        "loss": statistics.median(run["losses"][-1] for run in runs),
    }


def measure(name: str, size: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in its own process."""
    python, script = (sys.executable, "ours_dpo.py") if name == "ours" else (str(peers.python_of("trl-1.16")), "peer_trl.py")
    kind = [] if name == "ours" else [name]
    command = [
        python,
        str(HERE / script),
        str(folder / size),
        str(folder / "pairs.json"),
        *kind,
        str(arguments.steps),
        str(material.PAIRS_A_STEP[size]),
    ]
    with tempfile.TemporaryDirectory() as out:
        threads = {"BENCH_THREADS": str(arguments.threads), "OMP_NUM_THREADS": str(arguments.threads)}
        environment = os.environ | threads | {"BENCH_OUT": out, "OMP_WAIT_POLICY": "PASSIVE"}  # for all alike, as our commands set it
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return dict(json.loads(found[-1].removeprefix("RESULT ")))


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    times, memory = f"{'ours s':>8}{'peer s':>8}{'times faster':>14}", f"{'ours GB':>9}{'peer GB':>9}{'memory':>8}"
    print(f"{'method':7}{'size':6}{'peer':18}{times}{memory}{'loss ours/peer':>18}")
    for one in rows:
        print(
            f"{one['method']:7}{one['size']:6}{one['peer']:18}{one['seconds_ours']:8.2f}{one['seconds_peer']:8.2f}{one['time_ratio']:14.1f}"
            f"{one['gigabytes_ours']:9.2f}{one['gigabytes_peer']:9.2f}{one['memory_ratio']:8.2f}{one['loss_ours']:10.4f}/{one['loss_peer']:.4f}"
        )


if __name__ == "__main__":
    main()
