"""kill -9 of apps and of the server under load: how many acknowledged rows are missing afterwards.

    python benchmarks/kill.py --kills 10000

Apps are forked processes that record traces and a thumb for each with the sdk, from two threads,
and note every id that was acknowledged. Every second one writes into the inbox of the server's
home; the others send to the server by HTTP, and note a trace once `flush()` says that it arrived.
Several run at once, and each is killed at a random moment of its first 150 ms; another takes its
place. `thumbwheel serve` answers and makes rows of all lines meanwhile, and is killed too. At the
end one more app sends what the killed ones had kept for a server that was away, and the inbox is
drained. Every acknowledged trace and piece of feedback has to be a row, and the database has to be
sound.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import thumbwheel
from tests.servers.thumbwheel_server import lasting_port, serve_command
from thumbwheel.sdk import remote

ACKNOWLEDGED = "acknowledged"
"""The file of acknowledged ids."""

LIFE = 0.15
"""Most seconds of an app's life."""

PATIENCE = 600.0
"""Seconds in which everything that was kept has to become rows."""


@dataclass
class Report:
    """What the kills have cost."""

    kills: int
    server_kills: int
    seconds: float
    acknowledged: int = 0
    rows: int = 0
    missing: int = 0
    set_aside: int = 0
    """Lines in the file of those that cannot be stored: torn by a kill."""
    integrity: str = ""


def app(number: int, folder: Path, url: str) -> None:
    """Record for ever, and note what was acknowledged."""
    by_http = number % 2 == 1
    os.environ["THUMBWHEEL_HOME"] = str(folder / ("app" if by_http else "home"))
    if by_http:
        os.environ["THUMBWHEEL_URL"] = url
    logging.disable()  # a server that is away is what is measured here
    note = os.open(folder / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(thread: int) -> None:
        for count in itertools.count():
            name = f"{number}-{thread}-{count}"
            thumbwheel.trace("app", input="How do I reset it?" * 20, output="So.", id=f"t{name}")
            if thumbwheel.flush():
                os.write(note, f"t{name}\n".encode())
            thumbwheel.feedback("app", f"t{name}", thumb=count % 3 > 0, id=f"f{name}")
            os.write(note, f"f{name}\n".encode())

    threads = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(2)]
    for thread in threads:
        thread.start()
    threading.Event().wait()


def run(
    folder: Path, *, kills: int, apps: int = 4, server_life: float = 8.0, seed: int = 0
) -> Report:
    """Kill `kills` apps, and the server every `server_life` seconds, in a new home below
    `folder`."""
    port = lasting_port()
    url = f"http://127.0.0.1:{port}"
    chance = random.Random(seed)
    numbers = itertools.count()
    ends: dict[int, float] = {}  # process id of an app -> when it is killed
    server, server_kills = _start_server(folder, port), 0
    began = time.monotonic()
    server_end = began + server_life
    for killed in range(kills):
        while len(ends) < apps and killed + len(ends) < kills:
            life = chance.uniform(0, LIFE)
            number = next(numbers)
            ends[_fork(partial(app, number, folder, url))] = time.monotonic() + life
        victim = min(ends, key=lambda process: ends[process])
        time.sleep(max(0.0, ends.pop(victim) - time.monotonic()))
        os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        assert os.WIFSIGNALED(status), f"an app ended by itself: {status}"
        if time.monotonic() > server_end:
            server.kill()
            server.wait()
            server, server_end = _start_server(folder, port), time.monotonic() + server_life
            server_kills += 1
    report = Report(kills, server_kills, round(time.monotonic() - began, 1))
    try:
        _send_the_rest(folder, url)
        assert server.poll() is None, f"the server ended by itself: {folder / 'server.log'}"
    finally:
        server.kill()
        server.wait()
    _count(report, folder)
    return report


def _start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """A server that may not answer yet."""
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(serve_command(folder / "home", port), stdout=log, stderr=log)


def _send_the_rest(folder: Path, url: str) -> None:
    """Send what apps kept because the server was away."""
    unsent = folder / "app" / "unsent"
    way = remote.Remote(url, None, unsent)
    line = {"agent": "app", "type": "trace", "id": "last", "input": "Anything left?"}
    way.send("trace", json.dumps(line).encode())
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if way.flush(1) and not list(unsent.glob("*/*-*.jsonl")):
            return
        time.sleep(0.1)
    raise TimeoutError("the server did not take what was kept for it")


def _fork(work: Callable[[], None]) -> int:
    """A child that does `work`; its process id. It begins as this process is now, which has
    imported the sdk and used it for nothing."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(1)


def _count(report: Report, folder: Path) -> None:
    """Drain what is left, and compare the rows with what was acknowledged."""
    import sqlalchemy as sa

    from thumbwheel.capture.inbox import REJECTED, drain_inbox
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.schema import feedback, traces
    from thumbwheel.db.workspace import Workspace

    acknowledged = set((folder / ACKNOWLEDGED).read_text().splitlines())
    rows: set[str] = set()
    with Workspace.open(Home.at(folder / "home"), Sources({}, "", {})) as ws:
        # a process that drained for the killed server may hold a file until it notices
        end = time.monotonic() + PATIENCE
        while drain_inbox(ws) and time.monotonic() < end:
            pass
        assert not list(ws.home.inbox.glob("[sd]*.jsonl"))
        rejected = ws.home.inbox / REJECTED
        report.set_aside = len(rejected.read_text().splitlines()) if rejected.exists() else 0
        with ws.db.read() as connection:
            for table in (traces, feedback):
                rows.update(connection.execute(sa.select(table.c.external_id)).scalars())
    report.acknowledged, report.rows = len(acknowledged), len(rows)
    report.missing = len(acknowledged - rows)
    with sqlite3.connect(folder / "home" / "thumbwheel.db") as database:
        report.integrity = database.execute("PRAGMA integrity_check").fetchone()[0]


def main() -> None:
    """Print what the kills have cost, and write it to --json; fails where a row is missing."""
    import raw

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--apps", type=int, default=4, help="that run at once")
    parser.add_argument("--seed", type=int, default=0)
    raw.option(parser, "kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), kills=options.kills, apps=options.apps, seed=options.seed)
    print(
        f"{report.kills:,} apps and {report.server_kills:,} servers killed in "
        f"{report.seconds:,} s: {report.acknowledged:,} rows acknowledged, {report.missing:,} "
        f"missing, {report.set_aside:,} torn lines set aside, integrity: {report.integrity}"
    )
    raw.write(options.json, **asdict(report))
    if report.missing or report.integrity != "ok":
        sys.exit(1)


if __name__ == "__main__":
    main()
