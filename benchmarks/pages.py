"""What each page costs the server that makes it: processor time, seconds and bytes.

    make bench-pages

The home is the one of the interface's tests, which has something for every page: traces with
feedback, runs with curves, versions with evaluations, an experiment, jobs, a decision that waits.
Server and client are one process, so processor time holds the client's, too (`client_ms`: asking
for /health). Lists of a million traces are measured by `make bench-lists`, curves of a hundred long
runs by `make bench-curves`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2
import numpy as np
import raw

from tests.ui.page_urls import URLS
from tests.worlds.operations_world import running_operations

WANTED_MS = 150.0
"""Of processor time."""


def asked(client: httpx2.Client, path: str, calls: int) -> dict[str, Any]:
    """Return what `path` costs: the first call apart, since it fills what the server remembers."""
    seconds, cpu_seconds = [], []
    for _ in range(calls + 1):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        answer = client.get(path).raise_for_status()
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    return {
        "kb": round(len(answer.content) / 1000, 1),
        "p50_ms": round(1000 * float(np.median(seconds[1:])), 1),
        "cpu_ms": round(1000 * float(np.median(cpu_seconds[1:])), 1),
        "first_cpu_ms": round(1000 * cpu_seconds[0], 1),
    }


def main() -> None:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20)
    raw.option(parser, "pages")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder, running_operations(Path(folder)) as world:
        token = world.ws.home.access_token.read_text().strip()
        with httpx2.Client(base_url=world.url, trust_env=False, timeout=60) as client:
            client.headers["authorization"] = f"Bearer {token}"
            idle = asked(client, "/health", options.calls)["cpu_ms"]
            for name, url in URLS.items():
                row = {"page": name} | asked(client, url.format(**world.parts), options.calls)
                figures.append(row)
                print(
                    f"{name:18} {row['kb']:6.1f} kB  p50 {row['p50_ms']:7.1f} ms  processor "
                    f"{row['cpu_ms']:6.1f} ms, for the first time {row['first_cpu_ms']:7.1f} ms"
                )
    slow = [row["page"] for row in figures if max(row["cpu_ms"], row["first_cpu_ms"]) > WANTED_MS]
    print(f"over {WANTED_MS:g} ms of processor time: {', '.join(slow) or 'none'}")
    raw.write(options.json, client_ms=idle, pages=figures)


if __name__ == "__main__":
    main()
