"""How much the server takes over HTTP: traces in batches and single requests by many clients, the
CPU that each costs, and how long it takes until they are rows.

    make bench-ingest
    make bench-ingest ARGS="--clients 128 --seconds 20"

The server is `thumbwheel serve` with a home of its own, the clients are another process. A request
counts when it was answered with 202, which is after the fsync; at the end the rows of the database
are counted and compared. The lag is the age of the oldest line that is no row yet, as `/health`
says it ten times a second, while traces come in at a fixed rate, whether answers wait or not: 500 a
second one by one, and 4,000 a second in batches.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import numpy as np
import psutil
import raw

from tests.servers.thumbwheel_server import running
from tests.waiting import until
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.config import Home
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.spool_files import waiting_bytes

BATCH = 100
"""Traces of one batch request."""
RATES = {1: 500, BATCH: 4000}
"""Traces of a request -> traces a second while the lag is measured."""
QUESTION = "Where is my order 1234? " * 5
ANSWER = "It left our warehouse this morning. " * 5

NUMBERS = itertools.count()
"""Of the traces, over all measurements: the same id again would be the same trace."""

Request = Callable[[], tuple[bytes, int]]
"""The next body, and how many rows it holds."""


@dataclass
class Load:
    """What a measurement saw."""

    requests: int = 0
    rows: int = 0
    refused: int = 0
    """Answers of 429."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Of the server, in seconds."""
    waits: list[float] = field(default_factory=list)

    def row(self, name: str) -> dict[str, Any]:
        """The figures, in requests and rows a second and in milliseconds."""
        median, worst = np.percentile(self.waits, [50, 99]) * 1000
        return {
            "what": name,
            "requests_per_second": round(self.requests / self.seconds),
            "rows_per_second": round(self.rows / self.seconds),
            "refused": self.refused,
            "cpu_ms_per_request": round(self.cpu / self.requests * 1000, 3),
            "cpu_ms_per_row": round(self.cpu / self.rows * 1000, 3),
            "p50_ms": round(float(median), 1),
            "p99_ms": round(float(worst), 1),
        }


def trace(number: int) -> dict[str, Any]:
    return {
        "agent": "desk",
        "id": f"{os.getpid()}-{number}",
        "session": f"s{number // 10}",
        "input": QUESTION,
        "output": ANSWER,
        "model": "large",
        "occurred_at": "2026-01-05T08:00:00+00:00",
    }


def bodies(size: int) -> Request:
    """Bodies of `size` traces with new ids."""

    def next_body() -> tuple[bytes, int]:
        rows = [trace(next(NUMBERS)) for _ in range(size)]
        return json.dumps(rows if size > 1 else rows[0]).encode(), size

    return next_body


async def closed_loop(
    url: str, process: psutil.Process, request: Request, clients: int, seconds: float
) -> Load:
    """Every client sends its next request as soon as its last one was answered."""
    load = Load()
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector) as session:
        before, start = cpu(process), time.monotonic()

        async def client() -> None:
            while time.monotonic() - start < seconds:
                await send(session, url, request, load)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.seconds = time.monotonic() - start
        load.cpu = cpu(process) - before
    return load


async def send(session: aiohttp.ClientSession, url: str, request: Request, load: Load) -> None:
    body, rows = request()
    begin = time.monotonic()
    headers = {"content-type": "application/json"}
    async with session.post(f"{url}/api/traces", data=body, headers=headers) as answer:
        content = await answer.read()
    load.waits.append(time.monotonic() - begin)
    if answer.status == 429:
        load.refused += 1
        await asyncio.sleep(float(answer.headers["retry-after"]))
        return
    assert answer.status == 202, content
    load.requests += 1
    load.rows += rows


async def lag(
    url: str, process: psutil.Process, size: int, seconds: float
) -> tuple[Load, list[float]]:
    """Traces at a fixed rate in requests of `size`, and the lags that the server told meanwhile."""
    load, lags, request = Load(), list[float](), bodies(size)
    rate = RATES[size] / size
    async with aiohttp.ClientSession() as session:
        before, start = cpu(process), time.monotonic()
        sent: list[asyncio.Task[None]] = []

        async def watch() -> None:
            while time.monotonic() - start < seconds:
                async with session.get(f"{url}/health") as answer:
                    lags.append((await answer.json())["drain_lag_seconds"])
                await asyncio.sleep(0.1)

        watcher = asyncio.create_task(watch())
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
            sent.append(asyncio.create_task(send(session, url, request, load)))
        await asyncio.gather(watcher, *sent)
        load.seconds = time.monotonic() - start
        load.cpu = cpu(process) - before
    return load, lags


def is_drained(home: Path) -> bool:
    return waiting_bytes(home / "inbox") == 0


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a server and of the processes that it started."""
    server = process.cpu_times()
    ended = server.children_user + server.children_system
    times = [server, *(child.cpu_times() for child in process.children())]
    return float(ended + sum(each.user + each.system for each in times))


def stored(home: Path) -> int:
    """The traces of the home, once what the server left in the inbox is drained."""
    with Workspace.open(Home(home)) as ws:
        drain_inbox(ws)
    with sqlite3.connect(home / "thumbwheel.db") as database:
        return int(database.execute("SELECT count(*) FROM traces").fetchone()[0])


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10.0)
    raw.option(parser, "ingest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with running(home) as server:
            url, process = server.url, psutil.Process(server.process.pid)
            seconds = options.seconds
            # first: a backlog of the loads without a pause is linked for seconds after it is stored
            loads, lags = dict[str, Load](), dict[str, list[float]]()
            for size, rate in RATES.items():
                name = f"{rate} a second, {size} a request"
                loads[name], lags[name] = asyncio.run(lag(url, process, size, seconds))
                until(lambda: is_drained(home), 300.0)
            for size in (BATCH, 1):
                name = f"batches of {size}" if size > 1 else "single requests"
                loads[name] = asyncio.run(
                    closed_loop(url, process, bodies(size), options.clients, seconds)
                )
            rss = process.memory_info().rss
        acknowledged = sum(load.rows for load in loads.values())
        rows = [load.row(name) for name, load in loads.items()]
        for row in rows:
            if row["what"] in lags:
                median, worst = np.percentile(lags[row["what"]], [50, 99])
                row |= {"lag_p50_s": round(float(median), 3), "lag_p99_s": round(float(worst), 3)}
        summary = {
            "clients": options.clients,
            "seconds": seconds,
            "acknowledged": acknowledged,
            "stored": stored(home),
            "rss_mb": round(rss / 2**20),
            "cores": os.cpu_count(),
        }
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print("  ".join(f"{key} {value}" for key, value in summary.items()))
    assert summary["stored"] == acknowledged, "acknowledged rows are missing"
    raw.write(options.json, loads=rows, **summary)


if __name__ == "__main__":
    main()
