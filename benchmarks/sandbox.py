"""How many programs a second the sandbox runs: `python benchmarks/sandbox.py [--json FILE]
[--workers N] [--seconds S]`.

A trivial snippet, and tasks of MBPP with their asserts where the public data is. Warm cells, as
many workers as cores; the first second of each is left out. `busy` is the processor time of
everything, host and sandboxes, per program: where other work shares the machine, cores divided by
it is what an idle machine would reach.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import raw

from thumbwheel.sandbox.canaries import examine
from thumbwheel.sandbox.pool import Pool
from thumbwheel.sandbox.types import Level, Limits, SandboxJob, SandboxOutcome, Tests

DATA = (
    Path(os.environ.get("THUMBWHEEL_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    / "code-tasks"
    / "mbpp.jsonl"
)
BATCH = 100
SLOW = {123}
"""Its solution computes for seconds."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "sandbox")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    report = examine()
    if not report.allowed:
        raise SystemExit(f"{report.reason}. {report.fix}")
    pool = Pool(Limits(), arguments.workers, report.level)
    rows = [measure("trivial snippet", [SandboxJob("x = 1 + 1")] * BATCH, pool, arguments)]
    if DATA.exists():
        rows.append(measure("MBPP task with its asserts", tasks(), pool, arguments))
    pool.close()
    raw.write(arguments.json, **stamp(report.level, arguments), rows=rows)


def tasks() -> list[SandboxJob]:
    """Every task with its own solution."""
    read = [json.loads(line) for line in DATA.read_text().splitlines()]
    return [
        SandboxJob(task["code"], tests=Tests(tuple(task["test_list"]), task["test_setup_code"]))
        for task in read
        if task["task_id"] not in SLOW
    ]


def measure(
    name: str, jobs: list[SandboxJob], pool: Pool, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run batches for the given time, printed."""
    start = time.monotonic()
    while time.monotonic() - start < 1:
        pool.run(jobs[:20])
    done, wrong, first, start, before = 0, 0, 0, time.monotonic(), busy()
    while time.monotonic() - start < arguments.seconds:
        batch = [jobs[(first + number) % len(jobs)] for number in range(BATCH)]
        outcomes = pool.run(batch)
        wrong += sum(
            result.state is not SandboxOutcome.DONE or not all(result.passed) for result in outcomes
        )
        first, done = first + BATCH, done + BATCH
    seconds, spent = time.monotonic() - start, busy() - before
    row = {
        "what": name,
        "programs": done,
        "wrong": wrong,
        "a_second": round(done / seconds, 1),
        "busy_ms": round(1000 * spent / done, 2),
    }
    row["a_second_idle"] = round(
        1000 * min(arguments.workers, os.cpu_count() or 1) / row["busy_ms"]
    )
    print(
        f"{name:28}{row['a_second']:8.1f} a second{row['busy_ms']:8.2f} ms of processor "
        f"each{row['a_second_idle']:6} idle, {wrong} wrong"
    )
    return row


def busy() -> float:
    """Seconds of processor time of this process and of everything in its sandboxes, ended ones
    included."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def stamp(level: Level, arguments: argparse.Namespace) -> dict[str, Any]:
    """How."""
    return {
        "level": str(level),
        "workers": arguments.workers,
    }


if __name__ == "__main__":
    main()
