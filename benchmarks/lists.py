"""How long the lists of traces take in a large home: first, next and deep pages, by each filter.

    make bench-lists
    make bench-lists ARGS="--traces 100000 --calls 20"

The home is made once and kept in `.bench/lists-N`: one agent, a trace every thirty seconds, a call
of a model each, ten traces a session, one of five rated. Two things are rare on purpose, because an
order that suits the frequent does not suit them: a status and a model of fifty traces. Another
model answered only the oldest tenth. Each list is what `thumbwheel traces list` shows, with last
calls and feedback. A call is timed from the open home to the finished page, on the clock and in CPU
time of its thread, because machines are shared. Then a server shows some of them as pages: their
size, seconds, and CPU time of the server.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2
import numpy as np
import psutil
import raw
import sqlalchemy as sa
from idle import cpu

from tests.servers.thumbwheel_server import running
from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_types import TracePage
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions

ROOT = Path(__file__).parents[1]
AGENT = "support"
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
EVERY = timedelta(seconds=30)
CHUNK = 20_000
"""Traces of one transaction."""
RARE = 50
"""Traces of the rare status and of the rare model."""
SESSION, RATED, SUBJECT = 10, 5, 200
"""Traces a session, of which one is rated, and of a subject."""
WANTED_MS = 50.0
WANTED_KB = 150.0
PAGES = {
    "first page": "",
    "deep page": "?until=2025-06-01",
    "a rare status": "?status=error",
    "a model": "?model=large",
    "rated": "?rated=yes",
    "what people disliked": "?judged=bad",
    "a rare word": "?text=parcel+70.",
}
"""Name -> the query of the page of traces."""


def rows(agent_id: str, numbers: range, total: int) -> dict[sa.Table, list[dict[str, Any]]]:
    """The rows of these traces, by table, in the order in which they refer to each other."""
    tables: dict[sa.Table, list[dict[str, Any]]] = {
        table: []
        for table in (
            schema.sessions,
            schema.subjects,
            schema.messages,
            schema.traces,
            schema.steps,
            schema.feedback,
            schema.feedback_targets,
        )
    }
    rare_every = max(1, total // RARE)
    for number in numbers:
        times = {"recorded_at": BEGIN + number * EVERY}
        source = {"agent_id": agent_id, "source": "sdk"}
        session, subject = number // SESSION, number // SUBJECT
        session_id = ids.derived("ses", str(session))
        subject_id = ids.derived("sub", str(subject))
        if number % SESSION == 0:
            tables[schema.sessions].append(
                {"id": session_id, **source, "external_id": f"s{session}", **times}
            )
        if number % SUBJECT == 0:
            tables[schema.subjects].append(
                {"id": subject_id, **source, "external_id": f"u{subject}", **times}
            )
        message_id, trace_id = ids.derived("msg", str(number)), ids.derived("trc", str(number))
        question = {"content": f"Where is my order {number}? It was due last week."}
        tables[schema.messages].append({"id": message_id, "role": "user", "content": question})
        is_rare = number % rare_every == 0
        tables[schema.traces].append(
            {
                "id": trace_id,
                **source,
                "external_id": f"t{number}",
                "session_id": session_id,
                "subject_id": subject_id,
                "input_id": message_id,
                "output": f"It left our warehouse in parcel {number * 7}.",
                "status": "error" if is_rare else "ok",
                "fingerprint": "0" * 64,
                "occurred_at": times["recorded_at"],
                **times,
            }
        )
        model = "rare" if is_rare else "old" if number < total // 10 else "large"
        tables[schema.steps].append(
            {
                "trace_id": trace_id,
                "position": 0,
                "kind": "llm",
                "status": "ok",
                "requested_model": AGENT,
                "served_model": model,
                "agent_id": agent_id,
                **times,
            }
        )
        if number % RATED == 0:
            feedback_id = ids.derived("fbk", str(number))
            tables[schema.feedback].append(
                {
                    "id": feedback_id,
                    **source,
                    "external_id": f"f{number}",
                    "kind": "thumb",
                    "value": number % 3 == 0,
                    "fingerprint": "0" * 64,
                    **times,
                }
            )
            tables[schema.feedback_targets].append(
                {
                    "feedback_id": feedback_id,
                    "position": 0,
                    "kind": "trace",
                    "source": "sdk",
                    "external_id": f"t{number}",
                    "target_id": trace_id,
                }
            )
    return tables


def insert(connection: sa.Connection, agent_id: str, numbers: range, total: int) -> None:
    for table, values in rows(agent_id, numbers, total).items():
        if values:
            connection.execute(sa.insert(table), values)


def prepared(folder: Path, count: int) -> Path:
    """The home with `count` traces, made where it is not there."""
    home = folder / f"lists-{count}"
    mark = home / "complete"
    if mark.exists():
        return home
    with Workspace.open(Home(home), Sources({}, "none", {})) as ws:
        agent_id = versions.ensure_agent(ws, AGENT)
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            ws.db.write(partial(insert, agent_id=agent_id, numbers=numbers, total=count))
            print(f"{numbers.stop:,} of {count:,} traces", end="\r", flush=True)
    print()
    mark.touch()
    return home


def pages(ws: Workspace, wanted: TraceFilter) -> Iterator[TracePage]:
    """Page after page, to the last one and again."""
    after = None
    while True:
        page = list_traces(ws, AGENT, wanted, limit=20, after=after)
        yield page
        after = page.after


def lists(ws: Workspace, count: int) -> dict[str, Callable[[], object]]:
    """Name -> what is timed."""
    draw = random.Random(1)

    def filtered(make: Callable[[int], TraceFilter]) -> Callable[[], object]:
        return lambda: list_traces(ws, AGENT, make(draw.randrange(count)), limit=20)

    def time_of(number: int) -> datetime:
        return BEGIN + number * EVERY

    following = pages(ws, TraceFilter())
    return {
        "first page": lambda: list_traces(ws, AGENT, limit=20),
        "next page": lambda: next(following),
        "deep page": filtered(lambda n: TraceFilter(until=time_of(n))),
        "since": filtered(lambda n: TraceFilter(since=time_of(n))),
        "a session": filtered(lambda n: TraceFilter(session=f"s{n // SESSION}")),
        "no such session": filtered(lambda n: TraceFilter(session=f"x{n}")),
        "a subject": filtered(lambda n: TraceFilter(subject=f"u{n // SUBJECT}")),
        "a rare status": lambda: list_traces(ws, AGENT, TraceFilter(status="error"), limit=20),
        "a frequent model": lambda: list_traces(ws, AGENT, TraceFilter(model="large"), limit=20),
        "a rare model": lambda: list_traces(ws, AGENT, TraceFilter(model="rare"), limit=20),
        "no such model": lambda: list_traces(ws, AGENT, TraceFilter(model="none"), limit=20),
        "an old model": lambda: list_traces(ws, AGENT, TraceFilter(model="old"), limit=20),
        "rated": lambda: list_traces(ws, AGENT, TraceFilter(rated=True), limit=20),
        "what people disliked": lambda: list_traces(
            ws, AGENT, TraceFilter(judged=Judged.BAD), limit=20
        ),
        "what nobody did": lambda: list_traces(
            ws, AGENT, TraceFilter(judged=Judged.CORRECTED), limit=20
        ),
        "one trace": lambda: show_trace(ws, AGENT, ids.derived("trc", str(draw.randrange(count)))),
        "a frequent word": lambda: list_traces(ws, AGENT, TraceFilter(text="order"), limit=20),
        "a rare word": filtered(lambda n: TraceFilter(text=f"parcel {n * 7}.")),
    }


def timed(
    call: Callable[[], object], count: int, most_seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of each of `count` calls, on the clock and of CPU; fewer where they take too long."""
    call()
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    while len(seconds) < count and sum(seconds) < most_seconds:
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        call()
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.thread_time() - cpu_begin)
    return seconds, cpu_seconds


def measure(home: Path, traces: int, calls: int, most_seconds: float) -> list[dict[str, Any]]:
    """A row of figures for each list."""
    figures = []
    with Workspace.open(Home(home), Sources({}, "none", {})) as ws:
        for name, call in lists(ws, traces).items():
            row: dict[str, Any] = {"list": name}
            for kind, seconds in zip(("", "cpu_"), timed(call, calls, most_seconds), strict=True):
                median, worst = np.percentile(np.array(seconds) * 1000, [50, 99])
                row[f"{kind}p50_ms"] = round(float(median), 2)
                row[f"{kind}p99_ms"] = round(float(worst), 2)
            figures.append(row)
    return figures


def shown(home: Path, calls: int) -> list[dict[str, Any]]:
    """A row of figures for each page, as a server sends it."""
    figures = []
    with (
        running(home, log=home / "server.log") as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as client,
    ):
        client.headers["authorization"] = f"Bearer {Home(home).access_token.read_text().strip()}"
        processes = [psutil.Process(server.process.pid)]
        for name, query in PAGES.items():
            ask = partial(ask_page, client, f"/agents/{AGENT}/traces{query}")
            size = ask()
            cpu_before = cpu(processes)
            seconds, _ = timed(ask, calls, math.inf)
            asked = len(seconds) + 1  # `timed` begins with one that it does not count
            cpu_a_page = (cpu(processes) - cpu_before) / asked
            figures.append(
                {
                    "page": name,
                    "kb": round(size / 1000, 1),
                    "p50_ms": round(1000 * float(np.median(seconds)), 1),
                    "cpu_ms": round(1000 * cpu_a_page, 1),
                }
            )
    return figures


def ask_page(client: httpx2.Client, path: str) -> int:
    """Bytes of the page."""
    return len(client.get(path).raise_for_status().content)


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--most-seconds", type=float, default=20.0, help="for one list")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench")
    raw.option(parser, "lists")
    options = parser.parse_args()
    home = prepared(options.folder, options.traces)
    figures = measure(home, options.traces, options.calls, options.most_seconds)
    for row in figures:
        print(
            f"{row['list']:18} p50 {row['p50_ms']:9.2f} ms  p99 {row['p99_ms']:9.2f} ms  "
            f"of CPU {row['cpu_p50_ms']:9.2f} and {row['cpu_p99_ms']:9.2f} ms"
        )
    slow = [row["list"] for row in figures if row["cpu_p99_ms"] > WANTED_MS]
    print(f"over {WANTED_MS:g} ms of CPU at p99: {', '.join(slow) or 'none'}")
    sent = shown(home, min(options.calls, 20))
    for row in sent:
        print(
            f"page: {row['page']:20} {row['kb']:6.1f} kB  p50 {row['p50_ms']:7.1f} ms  "
            f"of the server's CPU {row['cpu_ms']:7.1f} ms"
        )
    large = [row["page"] for row in sent if row["kb"] > WANTED_KB]
    print(f"pages over {WANTED_KB:g} kB: {', '.join(large) or 'none'}")
    raw.write(options.json, traces=options.traces, lists=figures, pages=sent)


if __name__ == "__main__":
    main()
