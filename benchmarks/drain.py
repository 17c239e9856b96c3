"""How long a recorded line is not yet a row, at a steady rate; and what recording costs the app.

    python benchmarks/drain.py --rate 500 --seconds 30

Processes record traces with the sdk's segments at the rate together, each at its times whatever the
answers do. A drainer in a process of its own makes rows of them. The lag of a trace is the time
from the call to the commit that made it a row, which a reader of the database notices by polling
every 10 ms. Beside that stands the time until the line was on disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import tempfile
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import raw

AGENT = "support"
APPS = 2
LEAD = 2.0
"""Seconds until recording begins: the apps are started then."""


def record(home: Path, rate: float, begin: float, seconds: float, number: int) -> None:
    """Record traces; their ids say when."""
    from thumbwheel.sdk.segment import Segment

    segment = Segment(home / "inbox")
    waits: list[float] = []
    answers = []
    count = int(rate * seconds)
    for index in range(count):
        due = begin + index / rate
        time.sleep(max(0.0, due - time.time()))
        now = time.time()
        line = {
            "agent": AGENT,
            "type": "trace",
            "id": f"{number}-{index}-{now}",
            "session": f"s{index // 8}",
            "input": f"How do I reset number {index}?",
            "output": "Hold the button for ten seconds. " * 8,
            "model": "m",
        }
        answer = segment.append(json.dumps(line).encode())
        answer.add_done_callback(partial(_note, waits, now))
        answers.append(answer)
    for answer in answers:
        answer.result()
    (home / f"waits-{number}").write_text(json.dumps(waits))


def _note(waits: list[float], began: float, answer: Future[None]) -> None:
    waits.append(time.time() - began)


def drain(home: Path, seconds: float, ready: Any, over: Any) -> None:
    """Drain until everything that came is stored."""
    from thumbwheel.capture.inbox import Drainer
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.workspace import Workspace

    with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
        cpu = time.process_time()
        with Drainer(ws) as drainer:
            ready.set()
            time.sleep(seconds)
            while drainer.lag() > 0:
                time.sleep(0.01)
        (home / "drain-cpu").write_text(str(time.process_time() - cpu))
    over.set()


def lags(home: Path, over: Any) -> list[float]:
    """Seconds of every trace until it was seen as a row."""
    seconds: list[float] = []
    last = 0
    query = "SELECT rowid, external_id FROM traces WHERE rowid > ?"
    with sqlite3.connect(home / "thumbwheel.db") as connection:
        is_over = False
        while not is_over:
            is_over = over.is_set()
            rows = connection.execute(query, [last]).fetchall()
            now = time.time()
            seconds += [now - float(name.rsplit("-", 1)[1]) for _, name in rows]
            last = max([last, *(number for number, _ in rows)])
            time.sleep(0.01)
    return seconds


def main() -> None:
    """Print lag and time to disk; write them to --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=500.0, help="traces a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    raw.option(parser, "drain")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        (home / "inbox").mkdir(parents=True, mode=0o700)
        ready, over = spawn.Event(), spawn.Event()
        drainer = spawn.Process(target=drain, args=(home, LEAD + options.seconds, ready, over))
        drainer.start()
        ready.wait()
        begin = time.time() + LEAD
        processes = [drainer]
        for number in range(APPS):
            arguments = (home, options.rate / APPS, begin, options.seconds, number)
            processes.append(spawn.Process(target=record, args=arguments))
            processes[-1].start()
        seconds = lags(home, over)
        for process in processes:
            process.join()
            assert process.exitcode == 0
        waits: list[float] = []
        for number in range(APPS):
            waits += json.loads((home / f"waits-{number}").read_text())
        cpu = float((home / "drain-cpu").read_text())
    assert len(seconds) == len(waits) == int(options.rate / APPS * options.seconds) * APPS
    figures: dict[str, Any] = {"lag": _figures(seconds), "on_disk": _figures(waits)}
    figures["drain_cpu_ms_a_trace"] = round(1000 * cpu / len(seconds), 3)
    for what in ("lag", "on_disk"):
        row = figures[what]
        print(
            f"{what:8} p50 {row['p50_ms']:7.1f} ms, p99 {row['p99_ms']:7.1f} ms, max "
            f"{row['max_ms']:7.1f} ms"
        )
    print(
        f"{len(seconds):,} traces at {options.rate:g} a second; drained with "
        f"{figures['drain_cpu_ms_a_trace']} ms of a processor each; load {os.getloadavg()[0]:.1f}"
    )
    raw.write(options.json, rate=options.rate, seconds=options.seconds, **figures)


def _figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at_share = {
        "p50_ms": len(ordered) // 2,
        "p99_ms": int(0.99 * (len(ordered) - 1)),
        "max_ms": len(ordered) - 1,
    }
    return {name: round(1000 * ordered[index], 1) for name, index in at_share.items()}


if __name__ == "__main__":
    main()
