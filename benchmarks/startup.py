"""What our processes pay before they do any work: seconds of CPU, and the packages they go to.

    make bench-startup
    make bench-startup ARGS="--runs 9"

A training child counts up to its first step over a base of two small layers, a worker until it
finds nothing to do, the embedded server until it answers with an adapter loaded. So nearly all of
it is imports. CPU is user and system time of the process, the median of some runs that alternate
with the others, because machines are shared; `import torch` alone says how fast the machine was.
One more run with `-X importtime` says how many modules there are and which packages take the time
(milliseconds without what they import; of torch, transformers and ours by subpackage).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import psutil
import raw
from first_step import FIGURES, cpu

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.models.tiny_models import tiny_base
from tests.training_rows import SHORT_TRAINING, frozen
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.targets.embedded import MODELS, SPEC, TOKEN
from thumbwheel.engine.base_check import find_base
from thumbwheel.llm.port import free_port
from thumbwheel.models.types import Agent
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import train

IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")
DIVIDED = ("torch", "transformers", "thumbwheel")
SHOWN = 20
"""Packages that are listed."""
HEAVY = (
    "bitsandbytes",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "scipy.optimize",
    "scipy.stats",
    "sqlalchemy",
)
"""Packages of which it is worth knowing whether they are loaded."""


class Material:
    """A home with a base of two small layers and an adapter that was trained over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.figures = folder / "figures.json"
        self.base = tiny_base(folder / "base")
        self.home = Home.at(folder / "home").prepare()
        self.adapter = self.train({}) / "adapter"

    def train(self, variables: Mapping[str, str]) -> Path:
        """Train in a child with these environment variables; return the folder of the run."""
        callbacks = {"num_train_epochs": 1, "callbacks": ["first_step:FirstStep"]}
        search = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        os.environ.update({"PYTHONPATH": search, FIGURES: str(self.figures), **variables})
        try:
            with Workspace.open(self.home, Sources({}, "", {})) as ws:
                dataset = frozen(ws, "a", "pairs", 12, 4)
                base = find_base(str(self.base), ws.home.cache)
                options = SHORT_TRAINING | callbacks
                run = train(ws, Agent.named("a"), "dpo", base, dataset=dataset, options=options)
                return ws.home.runs / run.run_id
        finally:
            for name in variables:
                del os.environ[name]


def torch_alone(material: Material, variables: Mapping[str, str]) -> tuple[float, str]:
    """(CPU seconds, standard error) of a process that imports torch."""
    return of_a_command([sys.executable, "-c", "import torch"], variables)


def training_child(material: Material, variables: Mapping[str, str]) -> tuple[float, str]:
    """(CPU seconds, standard error) of a training child up to its first step."""
    material.figures.unlink(missing_ok=True)
    run = material.train(variables)
    seconds = float(material.figures.read_text(encoding="utf-8"))
    return seconds, RunDir(run).log.read_text(encoding="utf-8")


def worker(material: Material, variables: Mapping[str, str]) -> tuple[float, str]:
    """(CPU seconds, standard error) of a worker that finds nothing to do."""
    command = [sys.executable, "-P", "-m", "thumbwheel", "--home", str(material.home.path)]
    return of_a_command([*command, "worker", "--until-idle"], variables)


def of_a_command(command: list[str], variables: Mapping[str, str]) -> tuple[float, str]:
    before = cpu(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env=os.environ | dict(variables), capture_output=True, text=True, check=True
    )
    return cpu(resource.RUSAGE_CHILDREN) - before, done.stderr


def embedded(material: Material, variables: Mapping[str, str]) -> tuple[float, str]:
    """(CPU seconds, standard error) of an embedded server until it answers, with an adapter."""
    folder = material.folder / "embedded"
    folder.mkdir(exist_ok=True)
    spec = {"base": str(material.base), "dtype": "auto", "device": "cpu"}
    (folder / SPEC).write_text(json.dumps(spec), encoding="utf-8")
    (folder / MODELS).write_text(json.dumps({"v1": str(material.adapter)}), encoding="utf-8")
    port = free_port()
    log = folder / "log.txt"
    program = [sys.executable, "-P", "-m", "thumbwheel.deploy.embedded"]
    with log.open("w", encoding="utf-8") as stderr:
        process = psutil.Popen(
            [*program, str(folder), str(port), "127.0.0.1"],
            env=os.environ | {TOKEN: "t"} | dict(variables),
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + 120
        while not answers(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"the embedded server did not start:\n{log.read_text()}")
            time.sleep(0.05)
        times = process.cpu_times()
    finally:
        process.terminate()
        process.wait(60)
    return times.user + times.system, log.read_text(encoding="utf-8")


def answers(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/v1/models"
    try:
        response = httpx2.get(url, headers={"Authorization": "Bearer t"}, trust_env=False)
    except httpx2.TransportError:
        return False
    return response.status_code == 200


def packages(log: str) -> dict[str, float]:
    """Package -> milliseconds that its own modules took, the largest first."""
    microseconds: Counter[str] = Counter()
    for took, module in IMPORT.findall(log):
        parts = module.split(".")
        depth = 2 if parts[0] in DIVIDED else 1
        microseconds[".".join(parts[:depth])] += int(took)
    return {name: round(took / 1000, 1) for name, took in microseconds.most_common()}


PROCESSES = {
    "import torch": torch_alone,
    "training child": training_child,
    "worker": worker,
    "embedded server": embedded,
}


def measure(material: Material, runs: int) -> list[dict[str, Any]]:
    """Return a row for each process."""
    seconds: dict[str, list[float]] = {name: [] for name in PROCESSES}
    for _ in range(runs):
        for name, start in PROCESSES.items():
            seconds[name].append(start(material, {})[0])
    rows = []
    for name, start in PROCESSES.items():
        _, log = start(material, {"PYTHONPROFILEIMPORTTIME": "1"})
        row = {
            "process": name,
            "cpu_seconds": round(statistics.median(seconds[name]), 2),
            "runs": [round(value, 2) for value in sorted(seconds[name])],
            "modules": len(IMPORT.findall(log)),
            "loaded": [package for package in HEAVY if f" {package}\n" in log],
            "packages_ms": dict(list(packages(log).items())[:SHOWN]),
        }
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Of the table."""
    largest = ", ".join(f"{name} {took:.0f}" for name, took in list(row["packages_ms"].items())[:5])
    return f"{row['process']:18}{row['cpu_seconds']:8.2f}{row['modules']:9}  {largest}"


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    raw.option(parser, "startup")
    options = parser.parse_args()
    print(f"{'process':18}{'CPU s':>8}{'modules':>9}  milliseconds by package")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Material(Path(folder)), options.runs)
    raw.write(options.json, rows=rows)


if __name__ == "__main__":
    main()
