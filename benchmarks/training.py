"""Time and peak memory of a whole optimiser step, ours against TRL.

`make bench-training ARGS="--json FILE --methods dpo,kto,sft,reward,grpo,ppo --sizes 26m,135m"`,
everything, hours on two cores; with `--quick` one run of each contestant and no real-length rows.
On a machine with CUDA both sides compute there: `--sizes 494m`.

Each run is a process of its own; the runs of ours and of the peers alternate, so that a noisy
neighbour meets all alike. The same model, rows, order, LoRA modules, first adapter and learning
rate; the first step of each run is left out of the time. Ratios above 1 are in our favour for time
(peer / ours, medians over all measured steps); memory is ours / peer, from the peak resident size
of the processes: those that judge answers are counted, and both of `tuned-2proc`, but not their
launcher. Losses are those of the last step in fp32.

`default` is TRL's configuration as it comes, with its batch of 8, accumulated where an update has
more rows. `tuned` is in peer_trl.py; `tuned-2proc` is the same in two processes under accelerate
(gloo), half of the threads each: what batches side by side are for ours. `cold`: the reference is
computed inside the step by all; `warm`: it was computed before the clock started, by all. On a CPU
that does not multiply in bf16, TRL's defaults (bf16) are emulated and slow: they are measured once,
and again in fp32 as `default-fp32`, which is the figure to look at there. Results so far are
written after every comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import material
import peers
import raw
from onerun import DEVICE, Spec, has_bf16

from thumbwheel.training.children import PRIMITIVE_CACHES

HERE = Path(__file__).parent
A_STEP = {
    "dpo": 8,
    "kto": 16,
    "kto-siblings": 16,
    "sft": 8,
    "reward": 8,
    "grpo": 2,
    "ppo": 16,
    "ppo-shared": 16,
}
"""Rows an update; grpo samples 8 answers to each."""
FEWER = {("dpo", "135m"): 4, ("kto", "135m"): 8, ("kto-siblings", "135m"): 8}
BOTH = {"kto": ("kto", "kto-siblings"), "ppo": ("ppo", "ppo-shared")}
"""Without and with rows that share a prompt; the critic as an adapter of its own and on the
policy's trunk."""
PEERS = ("default", "default-fp32", "tuned", "tuned-2proc")
TWO = "2proc"
"""Behind a peer's name: two processes under accelerate, each with half of the threads and rows."""
METHODS = ("dpo", "kto", "sft", "reward", "grpo", "ppo")
WARM = ("dpo",)
"""Methods compared with a warm reference cache too."""
NEAR = 1e-3
"""Most by which the losses of both sides may differ in fp32."""
REAL = ("dpo", "kto-siblings", "sft", "reward")
"""Methods compared on hh-rlhf's rows too, at the smallest size."""


@dataclass(frozen=True)
class Match:
    """One comparison; `data` is pairs or hh."""

    method: str
    size: str
    data: str
    cache: str

    def spec(self, steps: int) -> Spec:
        """What a run of ours is told, the rows written to a file."""
        folder = peers.BENCH / "material"
        file = folder / f"{self.data}.{self.method}.json"
        file.write_text(
            json.dumps(
                material.rows(json.loads((folder / f"{self.data}.json").read_text()), self.method)
            )
        )
        method = self.method.split("-", maxsplit=1)[0]
        a_step = FEWER.get((self.method, self.size), A_STEP[self.method])
        group = 8 if method == "grpo" else 1
        kind = "shared" if self.method == "ppo-shared" else "ours"
        return Spec(
            method,
            str(folder / self.size),
            str(file),
            kind,
            precision(),
            self.cache,
            steps,
            a_step,
            group=group,
        )


class Runs:
    """Measured runs by what they were told; a contestant whose run took longer than `patience`
    seconds is not asked again; `python` is the interpreter of all, by peers.option."""

    def __init__(self, threads: int, patience: float, python: str | None = None) -> None:
        self._threads, self._patience, self._python = threads, patience, python
        self.done: dict[str, list[dict[str, Any]]] = {}
        self._slow: set[str] = set()

    def measure(self, spec: Spec, script: str, label: str) -> None:
        """One more run of `spec`."""
        key = script + spec.text()
        if key in self._slow:
            return
        started = time.monotonic()
        result = run(spec, script, self._threads, python=self._python)
        seconds = time.monotonic() - started
        self.done.setdefault(key, []).append(result)
        if seconds > self._patience:
            self._slow.add(key)
        steps = " ".join(f"{second:.2f}" for second in result["seconds"])
        peak = result["peak_bytes"] / 1e9
        sys.stderr.write(
            f"{datetime.now(UTC):%H:%M:%S} {label:44} steps {steps} s, {peak:.2f} GB, "
            f"{seconds:.0f} "
            "s in all\n"
        )

    def of(self, spec: Spec, script: str) -> list[dict[str, Any]]:
        """The runs of `spec`; one is made where there is none."""
        if script + spec.text() not in self.done:
            self.measure(spec, script, f"{spec.method} {spec.kind} {spec.precision}, for its loss")
        return self.done[script + spec.text()]


def main() -> None:
    """Parse, make the material, run the matches, print the table."""
    arguments = parser().parse_args()
    if arguments.quick:
        arguments.runs, arguments.steps, arguments.data = 1, 2, "pairs"
    runs = Runs(arguments.threads, arguments.patience, arguments.python)
    asked, rows = matches(arguments), []
    material.make(peers.BENCH / "material", *arguments.sizes.split(","))
    for match in asked:
        rows += compare(match, runs, arguments)
        raw.write(arguments.json, **stamp(arguments), rows=rows)
    show(rows)
    apart = [
        row
        for row in rows
        if row["loss_ours"] is not None and not abs(row["loss_ours"] - row["loss_peer"]) <= NEAR
    ]
    if apart:
        sys.exit(
            "losses differ: "
            + ", ".join(
                f"{row['method']} {row['size']} {row['data']} against {row['peer']}"
                for row in apart
            )
        )


def parser(name: str = "training") -> argparse.ArgumentParser:
    """The options of the benchmark `name`."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(arguments, name)
    peers.option(arguments)
    arguments.add_argument(
        "--methods",
        default=",".join(METHODS),
        help="comma-separated; kto means kto and kto-siblings, ppo also ppo-shared",
    )
    arguments.add_argument(
        "--sizes", default="26m,135m", help=f"comma-separated: {', '.join(material.SIZES)}"
    )
    arguments.add_argument(
        "--peers", default="default,tuned,tuned-2proc", help=f"comma-separated: {', '.join(PEERS)}"
    )
    arguments.add_argument(
        "--cache", default="cold,warm", help="comma-separated: cold, warm (dpo only)"
    )
    arguments.add_argument(
        "--data",
        default="pairs,hh",
        help="comma-separated: pairs (random text), hh (hh-rlhf, at 26m)",
    )
    arguments.add_argument(
        "--steps", type=int, default=3, help="optimiser steps a run, the first not counted"
    )
    arguments.add_argument(
        "--runs", type=int, default=5, help="interleaved runs of each contestant"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="one run of two steps, random text only"
    )
    arguments.add_argument(
        "--patience",
        type=float,
        default=150.0,
        help="a contestant whose run takes more seconds is run once",
    )
    arguments.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    return arguments


def matches(arguments: argparse.Namespace) -> list[Match]:
    """All comparisons that were asked for."""
    asked = arguments.methods.split(",")
    sizes = arguments.sizes.split(",")
    if unknown := (set(asked) - {*METHODS, *A_STEP}) | (set(sizes) - set(material.SIZES)):
        sys.exit(
            f"no benchmark for {', '.join(sorted(unknown))}; methods: {', '.join(A_STEP)}; sizes: "
            f"{', '.join(material.SIZES)}"
        )
    if unknown := set(arguments.peers.split(",")) - set(PEERS):
        sys.exit(f"no peer {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    methods = [part for method in asked for part in BOTH.get(method, (method,))]
    caches, data = arguments.cache.split(","), arguments.data.split(",")
    chosen = (
        [Match(method, size, "pairs", "cold") for size in sizes for method in methods]
        if "cold" in caches and "pairs" in data
        else []
    )
    chosen += [
        Match(method, size, "pairs", "warm")
        for size in sizes
        for method in methods
        if "warm" in caches and method in WARM
    ]
    if "hh" in data and material.HH.is_file():
        chosen += [Match(method, sizes[0], "hh", "cold") for method in methods if method in REAL]
    return chosen


def precision() -> str:
    """What `auto` comes to for ours and for tuned TRL."""
    return "auto" if has_bf16() else "fp32"


def contestants(match: Match, names: list[str], steps: int) -> dict[str, tuple[Spec, str]]:
    """Name -> (spec, script), ours first."""
    ours = match.spec(steps)
    script = "peer_ppo.py" if ours.method == "ppo" else "peer_trl.py"
    specs = {"ours": (ours, "ours.py")}
    if "default" in names and not has_bf16():
        names = [*names, "default-fp32"]
    for name in dict.fromkeys(names):
        kind, _, more = name.partition("-")
        if more == TWO:
            if (
                ours.method != "ppo" and DEVICE == "cpu"
            ):  # its trainer is not made for it; two GPUs are another machine
                specs[name] = (replace(ours, kind=kind, precision=precision(), processes=2), script)
            continue
        arithmetic = more or (precision() if kind == "tuned" else "auto")
        specs[name] = (replace(ours, kind=kind, precision=arithmetic), script)
    return specs


def compare(match: Match, runs: Runs, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one match: one a peer configuration."""
    specs = contestants(match, arguments.peers.split(","), arguments.steps)
    for number in range(arguments.runs):
        for name, (spec, script) in specs.items():
            label = (
                f"{match.method} {match.size} {match.data} {match.cache} "
                f"{number + 1}/{arguments.runs} {name}"
            )
            runs.measure(spec, script, label)
    ours = runs.of(*specs["ours"])
    return [
        row(match, name, ours, runs.of(*specs[name]), losses(*specs[name], runs))
        for name in specs
        if name != "ours"
    ]


def losses(peer: Spec, script: str, runs: Runs) -> tuple[float, float] | None:
    """(ours, the peer's) of the last step in fp32, over the same objective; None where it is
    another one.

    Methods that sample have other texts. Two processes of KTO take the mean of two baselines.
    """
    if peer.method in ("grpo", "ppo") or (peer.method == "kto" and peer.processes > 1):
        return None
    exact = replace(peer, precision="fp32")
    kind = (
        peer.kind if peer.method == "kto" else "ours"
    )  # whose baseline is over as many rows as that of TRL
    both = [
        runs.of(replace(exact, kind=kind, processes=1), "ours.py")[0],
        runs.of(exact, script)[0],
    ]
    counts = {run["scored"] for run in both if run["scored"] is not None}
    if len(counts) > 1:
        sys.exit(f"the contestants scored different numbers of tokens in {peer.method}: {counts}")
    return both[0]["losses"][-1], both[1]["losses"][-1]


def row(
    match: Match,
    name: str,
    ours: list[dict[str, Any]],
    peer: list[dict[str, Any]],
    loss: tuple[float, float] | None,
) -> dict[str, Any]:
    """One line of the table."""
    own_summary, other = summary(ours), summary(peer)
    return {
        "method": match.method,
        "size": match.size,
        "cache": match.cache,
        "data": match.data,
        "peer": f"{'trl-1.12' if match.method.startswith('ppo') else 'trl-1.16'} {name}",
        "time_ratio": other["seconds"] / own_summary["seconds"],
        "memory_ratio": own_summary["peak"] / other["peak"],
        "loss_ours": loss[0] if loss else None,
        "loss_peer": loss[1] if loss else None,
        "seconds_ours": own_summary["seconds"],
        "seconds_peer": other["seconds"],
        "bytes_ours": own_summary["peak"],
        "bytes_peer": other["peak"],
        "steps_ours": own_summary["steps"],
        "steps_peer": other["steps"],
        "scored_tokens": ours[0]["scored"],
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Median step over all runs (first steps out) and median peak."""
    steps = [second for run in runs for second in run["seconds"][1:]]
    return {
        "seconds": statistics.median(steps),
        "peak": statistics.median(run["peak_bytes"] for run in runs),
        "steps": len(steps),
    }


def reward_model(spec: Spec, threads: int, python: str | None = None) -> str:
    """A reward model over the base of `spec`; where it is missing, one step makes it."""
    folder = Path(f"{spec.model}-reward")
    if not (folder / "reward.json").exists():
        run(
            replace(spec, method="reward", steps=1, a_step=2),
            "ours.py",
            threads,
            {"BENCH_KEEP": str(folder)},
            python,
        )
    return str(folder)


def run(
    spec: Spec,
    script: str,
    threads: int,
    more: dict[str, str] | None = None,
    python: str | None = None,
) -> dict[str, Any]:
    """One run in its own process, `more` in its environment."""
    if more is None and spec.method == "ppo" and script == "ours.py":
        more = {"BENCH_REWARD_MODEL": reward_model(spec, threads, python)}
    who = {"peer_trl.py": "trl-1.16", "peer_ppo.py": "trl-1.12"}.get(script, peers.OURS)
    command = [str(peers.python_of(who, python)), *launcher(spec), str(HERE / script), spec.text()]
    with tempfile.TemporaryDirectory() as out:
        each = max(1, threads // spec.processes)
        counts = {"BENCH_THREADS": str(each), "OMP_NUM_THREADS": str(each)}
        shared = (
            counts
            | PRIMITIVE_CACHES
            | {"BENCH_OUT": out, "ACCELERATE_USE_CPU": str(DEVICE == "cpu").lower()}
        )
        shared |= (
            {"OMP_WAIT_POLICY": "PASSIVE"} if who == peers.OURS else {}
        )  # as our command sets it; a peer waits as it would without us
        environment = (
            os.environ
            | shared
            | {
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
                )
            }
        )
        environment |= more or {}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not results:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return dict(json.loads(results[-1].removeprefix("RESULT ")))


def launcher(spec: Spec) -> list[str]:
    """What stands before a script that runs in several processes.

    It is torchrun, since `accelerate launch` starts several processes on a CPU by MPI only;
    accelerate finds itself among them alike.
    """
    if spec.processes == 1:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(spec.processes),
        "--master_port",
        str(port),
    ]


def stamp(arguments: argparse.Namespace) -> dict[str, Any]:
    """On what and with what."""
    packages = ("torch", "transformers", "peft", "accelerate")
    peer_versions: dict[str, Any] = dict(peers.PINS)
    if arguments.python:  # all share one environment
        peer_versions = {"trl": version("trl")}
    return {
        "machine": {"device": DEVICE, "bf16": has_bf16(), "threads": arguments.threads},
        "versions": {"ours": {name: version(name) for name in packages}, **peer_versions},
        "steps": arguments.steps,
        "runs": arguments.runs,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    times, memory = (
        f"{'ours s':>8}{'peer s':>9}{'times faster':>14}",
        f"{'ours GB':>9}{'peer GB':>9}{'memory':>8}",
    )
    print(
        f"{'method':14}{'size':6}{'data':7}{'cache':7}"
        f"{'peer':23}{times}{memory}{'loss ours/peer':>18}"
    )
    for row in rows:
        loss = (
            "" if row["loss_ours"] is None else f"{row['loss_ours']:10.4f}/{row['loss_peer']:.4f}"
        )
        print(
            f"{row['method']:14}{row['size']:6}{row['data']:7}{row['cache']:7}{row['peer']:23}"
            f"{row['seconds_ours']:8.2f}{row['seconds_peer']:9.2f}{row['time_ratio']:14.1f}"
            f"{row['bytes_ours'] / 1e9:9.2f}"
            f"{row['bytes_peer'] / 1e9:9.2f}{row['memory_ratio']:8.2f}{loss}"
        )


if __name__ == "__main__":
    main()
