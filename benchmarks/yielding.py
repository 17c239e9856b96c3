"""Training beside people who are served: how fast it gives way, and what they notice of it.

    make bench-yield
    make bench-yield ARGS="--calls 80 --rounds 3"

A model of 26M parameters (random weights) answers behind `thumbwheel serve`, asked four times a
second at most, one call after the other. On the same machine `loop run` trains over the same model,
with `--yield-to-traffic` and without. Each round has three phases, so that noise meets all: calls
alone, calls that begin while a training runs that gives way, and calls beside one that does not.

- `seconds_to_yield`: from the first call until the training process is gone, and the CPU seconds
  that it took in between.
- `latency`: of all calls of a phase, those before the training gave way included; wall time, and
  CPU time of the process that serves.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import material
import psutil
import raw
from idle import cpu, family, until_ready

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.deploy import deploy
from thumbwheel.engine.base_check import find_base
from thumbwheel.llm.port import free_port
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.worlds.animals_world import write_world  # noqa: E402

AGENT = "animals"
PAUSE = 0.25
"""Seconds between the starts of two calls."""
TOKENS = 16
LONG = {"MAX_STEPS": "100000", "PROBE_PROMPTS": "0", "LEARNING_RATE": "1e-5"}
PATIENCE = 900.0
"""Seconds in which a training has to take three steps."""
CALM = 7.0
"""Seconds without calls before a phase, so that nobody counts as served."""


@dataclass
class Phase:
    """The calls of one kind, over all rounds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        wall = sorted(self.wall)
        return {
            "calls": len(wall),
            "wall_ms_median": round(1000 * statistics.median(wall), 1),
            "wall_ms_95": round(1000 * wall[int(0.95 * (len(wall) - 1))], 1),
            "cpu_ms_median": round(1000 * statistics.median(self.cpu), 1),
        }


@dataclass
class Served:
    """A server with the model, and how it is asked."""

    client: httpx2.Client
    processes: list[psutil.Process]

    def ask(self, count: int, phase: Phase) -> None:
        for number in range(count):
            began, cpu_before = time.monotonic(), cpu(self.processes)
            message = {"role": "user", "content": f"fox {number}"}
            body = {"model": AGENT, "messages": [message], "max_tokens": TOKENS}
            self.client.post("/v1/chat/completions", json=body).raise_for_status()
            phase.wall.append(time.monotonic() - began)
            phase.cpu.append(cpu(self.processes) - cpu_before)
            time.sleep(max(0.0, PAUSE - (time.monotonic() - began)))


@contextmanager
def served(home: Path, base: Path) -> Iterator[Served]:
    """The model behind the gateway."""
    with Workspace.open(Home.at(home), Sources({}, "bench", {})) as ws:
        model = find_base(str(base), ws.home.cache)
        version = versions.ensure_base(ws, AGENT, model.name, model.fingerprint)
        deployment = deploy(ws, version, "embedded", LIVE).deployment
        assert deployment.endpoint is not None
        model_port = int(deployment.endpoint.url.split(":")[2].split("/")[0])
    port = free_port()
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), "serve"]
    server = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as client:
            until_ready(client, port)
            listeners = [_listener(model_port)]
            yield Served(client, [*listeners, *family(psutil.Process(server.pid))[:1]])
    finally:
        server.terminate()
        server.wait(60)
        with Workspace.open(Home.at(home), Sources({}, "bench", {})) as ws:
            from thumbwheel.deploy import running
            from thumbwheel.models.types import Agent

            running.stop(ws, Agent.named(AGENT))


def _listener(port: int) -> psutil.Process:
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN
        if listens and connection.laddr.port == port and connection.pid is not None:
            return psutil.Process(connection.pid)
    raise SystemExit(f"nobody listens at port {port}")


@contextmanager
def training(home: Path, base: Path, yields: bool) -> Iterator[list[psutil.Process]]:
    """A turn whose training has taken steps; the processes that train."""
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), "loop", "run", "--here"]
    command += ["--agent", AGENT, "--base", str(base), "--methods", "sft", "--anew"]
    if yields:
        command.append("--yield-to-traffic")
    earlier_runs = set((home / "runs").iterdir())
    environment = os.environ | {f"THUMBWHEEL_TRAIN__SFT__{name}": LONG[name] for name in LONG}
    log = home.parent / "training.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE
        while not any(
            _steps(folder) > 2 for folder in set((home / "runs").iterdir()) - earlier_runs
        ):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"no training took three steps: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield psutil.Process(process.pid).children(recursive=True)
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGKILL)
            process.kill()
        process.wait(60)


def _steps(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def yield_time(trainers: list[psutil.Process], began: float) -> tuple[float, float]:
    """(seconds until the processes are gone, CPU seconds that they took until then)."""
    cpu_before = last = cpu(trainers)
    while True:
        alive = [each for each in trainers if each.is_running() and each.status() != "zombie"]
        if not alive:
            return time.monotonic() - began, last - cpu_before
        try:
            last = cpu(alive)
        except psutil.NoSuchProcess:
            continue
        time.sleep(0.01)


def measure(home: Path, base: Path, calls: int, rounds: int) -> dict[str, Any]:
    phases = {name: Phase() for name in ("alone", "yielding", "beside")}
    yields = []
    with served(home, base) as server:
        server.ask(10, Phase())  # the first calls compile and load
        for _ in range(rounds):
            time.sleep(CALM)
            server.ask(calls, phases["alone"])
            time.sleep(CALM)
            with training(home, base, True) as trainers:
                yields.append(_ask_while_yielding(server, calls, phases["yielding"], trainers))
            time.sleep(CALM)
            with training(home, base, False):
                server.ask(calls, phases["beside"])
    figures = {name: phase.figures() for name, phase in phases.items()}
    alone = figures["alone"]
    return {
        "seconds_to_yield": [round(seconds, 2) for seconds, _ in yields],
        "cpu_seconds_to_yield": [round(spent, 2) for _, spent in yields],
        "latency": figures,
        "yielding_to_alone": round(
            figures["yielding"]["wall_ms_median"] / alone["wall_ms_median"], 2
        ),
        "yielding_to_alone_95": round(figures["yielding"]["wall_ms_95"] / alone["wall_ms_95"], 2),
        "beside_to_alone": round(figures["beside"]["wall_ms_median"] / alone["wall_ms_median"], 2),
        "cpu_yielding_to_alone": round(
            figures["yielding"]["cpu_ms_median"] / alone["cpu_ms_median"], 2
        ),
    }


def _ask_while_yielding(
    server: Served, calls: int, phase: Phase, trainers: list[psutil.Process]
) -> tuple[float, float]:
    from threading import Thread

    began = time.monotonic()
    asker = Thread(target=server.ask, args=(calls, phase))
    asker.start()
    result = yield_time(trainers, began)
    asker.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=60, help="Calls of each phase and round.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="26m", choices=list(material.SIZES))
    raw.option(parser, "yielding")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        material.make(folder / "material", options.size)
        write_world(folder)
        home = folder / "home"
        command = [sys.executable, "-m", "thumbwheel", "--home", str(home), "import", "jsonl"]
        subprocess.run(
            [*command, str(folder / "world.jsonl"), "--agent", AGENT],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        base = folder / "material" / options.size
        figures = measure(home, base, options.calls, options.rounds)
    for key, value in figures.items():
        print(f"{key:26} {value}")
    raw.write(options.json, **figures)


if __name__ == "__main__":
    main()
