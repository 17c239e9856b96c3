"""How long the next items of a rating queue take, however long it is, and how far the raters are.

Prints CPU time of the process for one request of eight items, at the beginning, in the middle and
near the end of a queue, with two raters for each item: `make bench-queue`. The figure is per
request, its writes to the disk included.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import raw
import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.batches import batches
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import ensure_agent, require_agent
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.rate import RatingRequest, rate
from thumbwheel.review.types import Queue, QueueConfig, RaterVerdict

AGENT = "support"
AT_ONCE = 8


def fill(ws: Workspace, count: int) -> None:
    """So many traces of one call each."""
    agent_id = ensure_agent(ws, AGENT)
    now = datetime.now(UTC)

    def insert(connection: sa.Connection, numbers: Sequence[int]) -> None:
        messages, traces = [], []
        for number in numbers:
            message_id = ids.derived("msg", str(number))
            text = f"Question {number}: where is my order?"
            content = {"content": text}
            messages.append(
                {"id": message_id, "parent_id": None, "role": "user", "content": content}
            )
            trace = {"agent_id": agent_id, "source": "t", "external_id": str(number)}
            trace |= {"id": ids.derived("trc", str(number)), "input_id": message_id}
            trace |= {"output": f"Answer {number}. " * 20, "status": "ok", "fingerprint": ""}
            traces.append(trace | {"recorded_at": now})
        connection.execute(schema.messages.insert(), messages)
        connection.execute(schema.traces.insert(), traces)

    for numbers in batches(range(count), 10_000):
        ws.db.write(lambda connection: insert(connection, numbers))  # noqa: B023 - done at once


def skip_ahead(ws: Workspace, queue: Queue, rater: str, ranks: int) -> None:
    """Let a rater have rated everything up to this rank, without a request for each."""
    items, assignments = schema.review_items, schema.review_assignments
    earlier = sa.and_(items.c.queue_id == queue.id, items.c.rank < ranks)
    now = datetime.now(UTC)

    def work(connection: sa.Connection) -> None:
        rated = sa.select(
            items.c.id,
            sa.literal(rater),
            sa.literal(queue.id),
            sa.literal("rated"),
            sa.literal([0], schema.review_assignments.c.shown.type),
            sa.literal(now, schema.review_assignments.c.leased_until.type),
        ).where(earlier)
        columns = ["item_id", "rater", "queue_id", "state", "shown", "leased_until"]
        connection.execute(assignments.insert().from_select(columns, rated))
        connection.execute(items.update().where(earlier).values(free=items.c.free - 1))

    ws.db.write(work)


def measured(ws: Workspace, queue: Queue, rater: str, requests: int) -> dict[str, float]:
    """CPU and wall milliseconds of a request for the next items, each of which is then rated."""
    agent = require_agent(ws, AGENT)
    cpu, wall, rating_cpu = [], [], []
    for _ in range(requests):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        batch = next_items(ws, queue, rater, AT_ONCE)
        cpu.append(1000 * (time.process_time() - cpu_start))
        wall.append(1000 * (time.perf_counter() - wall_start))
        for item in batch.items:
            cpu_start = time.process_time()
            rate(ws, agent, RatingRequest(queue, item.id, rater, item.id), RaterVerdict(thumb=True))
            rating_cpu.append(1000 * (time.process_time() - cpu_start))
    return {
        "next_cpu_ms": round(median(cpu), 2),
        "next_cpu_ms_most": round(max(cpu), 2),
        "next_wall_ms": round(median(wall), 2),
        "rate_cpu_ms": round(median(rating_cpu), 2),
    }


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    result: dict[str, Any] = {"items": options.items, "overlap": 2, "at_once": AT_ONCE}
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home.at(Path(folder) / "home"), Sources({}, "benchmark", {})) as ws,
    ):
        fill(ws, options.items)
        start = time.process_time()
        config = QueueConfig(overlap=2)
        queue = create(ws, require_agent(ws, AGENT), "all", config, QueueSelection())
        result["create_cpu_s"] = round(time.process_time() - start, 2)
        for name, share in (("beginning", 0.0), ("middle", 0.5), ("end", 0.99)):
            rater = f"rater at the {name}"
            skip_ahead(ws, queue, rater, int(options.items * share))
            # the first search goes behind everything that the rater has
            first = measured(ws, queue, rater, 1)
            result[name] = measured(ws, queue, rater, options.requests)
            result[name]["first_next_cpu_ms"] = first["next_cpu_ms"]
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result["peak_memory_mb"] = round(used / 1024)
    for name in ("beginning", "middle", "end"):
        figures = ", ".join(f"{key} {value}" for key, value in result[name].items())
        print(f"{name:>9}: {figures}")
    print(f"{options.items} items: made in {result['create_cpu_s']} s of CPU time")
    print(f"peak memory {result['peak_memory_mb']} MB")
    raw.write(raw.RESULTS / "rating_queue.json", **result)


if __name__ == "__main__":
    main()
