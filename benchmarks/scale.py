"""How rows a second grow with the hosts that write one home in PostgreSQL, and how much processor
time a trace takes inside the transaction.

    make bench-scale
    make bench-scale ARGS="--seconds 20"

A host is a process. The work that it does outside of the database (reading, parsing, hashing) would
be done by a processor of its own, so here it is a sleep of the same length; what it does inside the
transaction, and PostgreSQL with `fsync`, are real. `alone` is how a home was written before: one
lock, with the work of a batch inside it. `agents` is a host for each agent, `one agent` is all
hosts for the same one. Each figure is the median of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import raw
import sqlalchemy as sa

from tests.servers.postgres_server import PostgresServer
from thumbwheel.capture import store
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.capture.prepare import PreparedLines, prepare
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.dialects import VARIABLE
from thumbwheel.db.schema import traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import WHOLE_HOME, of_agent
from thumbwheel.db.writer import Writer
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE

ROWS = 50
"""Traces of a batch."""
WORK = 0.047
"""Seconds of a host's own work for a batch."""
HOSTS = (1, 2, 4)
MODES = ("alone", "agents", "one agent")
IN_TRANSACTION = 10_000
"""Traces by which the processor time inside the transaction is measured."""


@contextmanager
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server that writes to disk, as one that serves does."""
    postgres = PostgresServer()
    try:
        postgres.create()
        with (postgres.data / "postgresql.conf").open("a") as stream:
            stream.write("fsync = on\nfull_page_writes = on\nautovacuum = on\n")
        yield postgres.start().url()
    finally:
        postgres.close()


def opened(home: Path, url: str) -> Workspace:
    return Workspace.open(Home.at(home), Sources({}, "none", {VARIABLE: url}))


def lines(tag: str, count: int) -> list[Line]:
    """Traces of sessions of eight, with an answer of 256 characters."""
    result = []
    for number in range(count):
        row = {
            "type": "trace",
            "id": f"{tag}-{number}",
            "session": f"{tag}-{number // 8}",
            "input": f"How do I reset number {tag} {number}?",
            "output": "Hold the button for ten seconds. " * 8,
            "model": "m",
        }
        item = SOURCE.item(number, row, json.dumps(row))
        assert isinstance(item, Line)
        result.append(item)
    return result


def host(
    home: Path, url: str, number: int, mode: str, seconds: float, start: Any, rows: Any
) -> None:
    """Write batches for `seconds`; put the number of rows and how long it took."""
    with opened(home, url) as ws:
        agent = "desk" if mode == "one agent" else f"desk-{number}"
        scope = scope_of(ws, agent, "sdk")
        tag = f"{mode}-{os.getpid()}"
        most = int(seconds / WORK) + 1
        all_lines = lines(tag, most * ROWS)
        batches = [
            prepare(scope, all_lines[first : first + ROWS], {}, ws.db.dialect)
            for first in range(0, len(all_lines), ROWS)
        ]
        start.wait()
        began, done = time.monotonic(), 0
        for prepared in batches:
            if time.monotonic() > began + seconds:
                break
            if mode == "alone":
                ws.db.write(partial(work_inside, prepared=prepared), WHOLE_HOME)
            else:
                time.sleep(WORK)
                ws.db.write(
                    partial(store.save_prepared, prepared=prepared),
                    of_agent(scope.agent_id, is_quiet=True),
                )
            done += ROWS
        rows.put((done, time.monotonic() - began))


def work_inside(connection: Any, prepared: PreparedLines) -> None:
    time.sleep(WORK)
    store.save_prepared(connection, prepared)


def rows_per_second(home: Path, url: str, mode: str, hosts: int, seconds: float) -> int:
    n_rows = sa.select(sa.func.count()).select_from(traces)
    with opened(home, url) as ws, ws.db.read() as connection:
        before = connection.execute(n_rows).scalar_one()
    context = multiprocessing.get_context("spawn")
    start, rows = context.Barrier(hosts), context.Queue()
    processes = [
        context.Process(target=host, args=(home, url, number, mode, seconds, start, rows))
        for number in range(hosts)
    ]
    for process in processes:
        process.start()
    measured = [rows.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with opened(home, url) as ws, ws.db.read() as connection:
        stored = connection.execute(n_rows).scalar_one()
    assert stored - before == sum(count for count, _ in measured), "acknowledged rows are missing"
    rate: float = sum(count / took for count, took in measured)
    return round(rate)


def in_transaction(ws: Workspace) -> dict[str, float]:
    """Milliseconds of processor time of a trace, in the writer's transaction and outside of it."""
    spent = 0.0
    transaction = Writer._transaction

    def measured(self: Writer, *arguments: Any, **options: Any) -> Any:
        nonlocal spent
        before = time.thread_time()
        result = transaction(self, *arguments, **options)
        spent += time.thread_time() - before
        return result

    scope = scope_of(ws, "desk", "sdk")
    items = lines("processor", IN_TRANSACTION)
    Writer._transaction = measured  # type: ignore[method-assign]
    try:
        before = time.process_time()
        for first in range(0, len(items), 500):
            save(ws, scope, items[first : first + 500])
        whole = time.process_time() - before
    finally:
        Writer._transaction = transaction  # type: ignore[method-assign]
    return {
        "in_transaction_ms": round(spent / IN_TRANSACTION * 1000, 3),
        "outside_ms": round((whole - spent) / IN_TRANSACTION * 1000, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    raw.option(parser, "scale")
    options = parser.parse_args()
    result: dict[str, Any] = {"rows_per_batch": ROWS, "work_seconds": WORK}
    with server() as url, tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with opened(home, url) as ws:
            result["processor_time_of_a_trace"] = in_transaction(ws)
        print(result["processor_time_of_a_trace"])
        result["rows_per_second"] = {}
        result["times_of_one_host"] = {}
        rounds = [
            {
                (mode, hosts): rows_per_second(home, url, mode, hosts, options.seconds)
                for mode in MODES
                for hosts in HOSTS
            }
            for _ in range(options.rounds)
        ]
        for mode in MODES:
            rates = {
                str(hosts): round(median(figures[mode, hosts] for figures in rounds))
                for hosts in HOSTS
            }
            result["rows_per_second"][mode] = rates
            ratios = {hosts: round(rate / rates["1"], 2) for hosts, rate in rates.items()}
            result["times_of_one_host"][mode] = ratios
            print(mode, rates, ratios, flush=True)
    raw.write(options.json, **result)


if __name__ == "__main__":
    main()
