"""What a server costs that nobody asks: seconds until it is ready, memory, and CPU a second with
its workers.

    make bench-idle
    make bench-idle ARGS="--workers 4 --seconds 60"

Ready means that `/ready` says so, from the start of the process on, over several starts, on the
clock and in CPU time, because machines are shared. CPU is user and system time of the server and of
all its children, over a time in which they do nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import raw

from thumbwheel.llm.port import free_port

STARTS = 5
SETTLED = 5.0
"""Seconds after which workers have started."""


@contextmanager
def started(home: Path, workers: int) -> Iterator[tuple[psutil.Process, float]]:
    """(a server, the seconds until it was ready)."""
    port = free_port()
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), "serve"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*command, "--port", str(port), "--workers", str(workers)], stderr=subprocess.DEVNULL
    )
    try:
        with httpx2.Client(trust_env=False) as client:
            yield psutil.Process(process.pid), until_ready(client, port) - begin
    finally:
        process.terminate()
        process.wait(60)


def until_ready(client: httpx2.Client, port: int) -> float:
    """The time at which `/ready` said yes."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if client.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                return time.monotonic()
        except httpx2.TransportError:
            time.sleep(0.01)
    raise SystemExit("the server did not get ready within a minute")


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(time.user + time.system for time in times))


def has_torch(process: psutil.Process) -> bool:
    """Whether it has torch's library in its memory."""
    return any("libtorch" in region.path for region in process.memory_maps())


def measure(home: Path, workers: int, seconds: float, starts: int = STARTS) -> dict[str, Any]:
    """The figures."""
    ready, ready_cpu = [], []
    for _ in range(starts):
        with started(home, 0) as (process, took):
            ready.append(round(took, 2))
            ready_cpu.append(round(cpu([process]), 2))
    with started(home, workers) as (process, _):
        time.sleep(SETTLED)
        processes = family(process)
        before = cpu(processes)
        time.sleep(seconds)
        return {
            "ready_seconds": sorted(ready),
            "ready_cpu_seconds": sorted(ready_cpu),
            "workers": workers,
            "processes": len(processes),
            "idle_cpu_ms_per_second": round(1000 * (cpu(processes) - before) / seconds, 1),
            "memory_mb": round(sum(each.memory_info().rss for each in processes) / 2**20),
            "torch": any(has_torch(each) for each in processes),
        }


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    raw.option(parser, "idle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "home", options.workers, options.seconds)
    for name, value in figures.items():
        print(f"{name:24} {value}")
    raw.write(options.json, **figures)


if __name__ == "__main__":
    main()
