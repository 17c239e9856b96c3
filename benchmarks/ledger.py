"""What the ledger of rewards costs: traces with a thumb each, judged by the default components,
judged again, and listed.

    python benchmarks/ledger.py --traces 20000

The material is that of `dataset_scale`: two answers to a prompt, prompts and answers of about 250
characters, words drawn by a seeded generator; every fourth trace belongs to a case with a
reference. Seconds are of this process and its threads, by processor time, which a machine that is
busy with other things does not change; those of a clock stand beside them. Importing is not
counted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import raw
from dataset_scale import AGENT, _text

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.datasets.ledger_rewards import ledger_values
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.ledger_stats import reward_summary


def lines(traces: int) -> Iterator[dict[str, Any]]:
    """Cases, traces and a thumb for each."""
    chance = random.Random(7)
    for number in range(traces):
        if number % 2 == 0:
            prompt = f"Question {number}: {_text(chance, 40)}?"
        asked = {"case": f"c{number}"} if number % 4 == 0 else {}
        if asked:
            yield {
                "type": "case",
                "id": f"c{number}",
                "input": prompt,
                "reference": _text(chance, 40),
            }
        yield {
            "type": "trace",
            "id": f"t{number}",
            "input": prompt,
            "output": _text(chance, 40),
            "session": f"s{number // 4}",
        } | asked
        rater = f"r{chance.randrange(1000)}"
        about = {"target": {"trace": f"t{number}"}, "rater": rater, "id": f"f{number}"}
        yield {"type": "feedback", "kind": "thumb", "value": chance.random() < 0.65} | about


def measure(ws: Workspace) -> dict[str, dict[str, float]]:
    """Step -> processor seconds and clock seconds."""

    def run(as_of: datetime | None = None) -> ledger.LedgerReport:
        return ledger.run(
            ws, Agent.named(AGENT), components(ws, AGENT, ledger.settings(ws, AGENT)), as_of=as_of
        )

    now = datetime.now(UTC)
    steps: dict[str, Callable[[], Any]] = {
        "first run": run,
        "second run": run,
        "list": lambda: reward_summary(ws, AGENT, lowest=5),
        "list as of a day": lambda: reward_summary(ws, AGENT, now, lowest=5),
        "values for a build": lambda: ledger_values(ws, Agent.named(AGENT)),
    }
    return {name: _timed(step) for name, step in steps.items()}


def _timed(step: Callable[[], Any]) -> dict[str, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    step()
    return {
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "seconds": round(time.perf_counter() - clock, 2),
    }


def main() -> None:
    """Print a line for every step, and write all of them to --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=20_000)
    raw.option(parser, "ledger")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "material.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines(options.traces)))
        with Workspace.open(Home.at(Path(folder) / "home"), Sources({}, "", {})) as ws:
            report = ingest(ws, AGENT, "jsonl", file)
            assert not report.refused, report.refusals
            results = measure(ws)
    for name, figures in results.items():
        print(
            f"{name:18} {figures['cpu_seconds']:7.2f} s of a processor, {figures['seconds']:7.2f} "
            "s by "
            "the clock"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{options.traces:,} traces, {peak:,} MB at most")
    raw.write(options.json, traces=options.traces, peak_mb=peak, steps=results)


if __name__ == "__main__":
    main()
