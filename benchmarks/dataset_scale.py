"""Does building a dataset stay linear and small? Feedback rows in, a frozen dataset out: seconds,
rows a second, peak memory.

    python benchmarks/dataset_scale.py --rows 10000 100000 1000000

The material is made here, of words drawn by a seeded generator: two answers to a prompt, five
pieces of feedback about four answers (thumbs, ratings, edits), prompts and answers of about 250
characters, sessions of four answers, a subject each. It is imported with the ordinary command's
verb, which is timed apart; the home is kept in `--folder`, so that a second call measures the build
alone. Every build runs in a process of its own on two cores; the peak is what the kernel says of
that process and its children.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import raw

AGENT = "scale"
WORDS = [
    f"{first}{middle}{last}"
    for first in ("ba", "ke", "li", "mo", "nu")
    for middle in "rstvnd"
    for last in ("a", "en", "io", "um", "ex", "y")
]
CORES = 2


def lines(feedback: int) -> Iterator[dict[str, Any]]:
    """Traces and feedback, in the order in which they would arrive."""
    chance = random.Random(7)
    written, number, prompt = 0, 0, ""
    while written < feedback:
        rater, start = f"r{chance.randrange(1000)}", number
        for _ in range(4):
            prompt = f"Question {number // 2}: {_text(chance, 40)}?" if number % 2 == 0 else prompt
            yield {
                "type": "trace",
                "id": f"t{number}",
                "input": prompt,
                "output": _text(chance, 40),
                "session": f"s{number // 4}",
                "subject": f"u{number // 4 % 50_000}",
            }
            number += 1
        for offset in (0, 1, 2, 3, 0)[: feedback - written]:
            yield {
                "type": "feedback",
                "target": {"trace": f"t{start + offset}"},
                "rater": rater,
                "id": f"f{written}",
            } | _opinion(chance, written)
            rater, written = f"r{chance.randrange(1000)}", written + 1


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def _opinion(chance: random.Random, number: int) -> dict[str, Any]:
    if number % 10 == 0:
        return {"kind": "correction", "value": _text(chance, 40)}
    if number % 3 == 0:
        return {"kind": "rating", "value": chance.randint(1, 5)}
    return {"kind": "thumb", "value": chance.random() < 0.65}


def prepare(folder: Path, rows: int) -> dict[str, Any]:
    """A home with `rows` pieces of feedback, and what importing it took; the one that is there,
    where it is complete."""
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.core.config import Home
    from thumbwheel.db.workspace import Workspace

    done = folder / "imported.json"
    if done.exists():
        facts: dict[str, Any] = json.loads(done.read_text())
        return facts
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "material.jsonl"
    with file.open("w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines(rows))
    start = time.perf_counter()
    with Workspace.open(Home.at(folder / "home")) as ws:
        report = ingest(ws, AGENT, "jsonl", file)
    seconds = time.perf_counter() - start
    assert not report.refused, report.refusals
    file.unlink()
    figures = {
        "lines": report.read,
        "seconds": round(seconds, 1),
        "lines_a_second": round(report.read / seconds),
    }
    done.write_text(json.dumps(figures))
    return figures


def measure(home: Path, shape: str) -> dict[str, Any]:
    """Build once in this process, from nothing that an earlier build left."""
    from thumbwheel.core.config import Home
    from thumbwheel.datasets.build import build
    from thumbwheel.db.workspace import Workspace

    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:CORES]))
    start = time.perf_counter()
    with Workspace.open(Home.at(home)) as ws:
        dataset = build(ws, AGENT, shape)
    seconds = time.perf_counter() - start
    resident, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "shape": shape,
        "id": dataset.id,
        "rows": sum(dataset.counts.values()),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(
            resident.ru_utime + resident.ru_stime + children.ru_utime + children.ru_stime, 2
        ),
        "peak_mb": round((resident.ru_maxrss + children.ru_maxrss) / 1024),
    }


def main() -> None:
    """Print a line for every number of rows, and write all of them to --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--shapes", nargs="+", default=["labels", "pairs"])
    parser.add_argument("--folder", type=Path, default=Path(".bench/dataset_scale"))
    raw.option(parser, "dataset_scale")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(Path(options.child[0]), options.child[1])))
        return
    results = []
    for rows in options.rows:
        imported = prepare(options.folder / str(rows), rows)
        print(
            f"{rows:>9,} feedback rows: import of {imported['lines']:,} lines at "
            f"{imported['lines_a_second']:,} a second"
        )
        for shape in options.shapes:
            command = [
                sys.executable,
                __file__,
                "--child",
                str(options.folder / str(rows) / "home"),
                shape,
            ]
            figures = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout
            )
            results.append({"feedback": rows, "import": imported} | figures)
            rate = rows / figures["seconds"]
            print(
                f"{'':9} {shape:7} {figures['rows']:>9,} rows in {figures['seconds']:6.1f} s "
                f"({rate:,.0f} "
                f"feedback a second), {figures['peak_mb']:,} MB"
            )
    raw.write(options.json, rows=results)


if __name__ == "__main__":
    main()
