"""How long a second writer waits beside an import, and how much memory the import takes.

    python benchmarks/writer.py --lines 100000 --before 5f7aeb7
    python benchmarks/writer.py --lines 1000000

One process imports feedback lines (a thumb about one of many traces, 1,000 raters) with the
product's own import. Another writes rows of 2 kB from 32 threads, each as soon as its last one is
on disk, and notes how long every row took; that is also measured with nothing beside it. `--before
REF` measures the source tree of that commit in the same run, alternating with this one, because
machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import raw
import sqlalchemy as sa

ROOT = Path(__file__).parents[1]
AGENT = "support"
THREADS = 32
RATINGS = 100
"""Thumbs a trace."""
ALONE = 5.0
"""Seconds of writing with nothing beside it."""


@dataclass(frozen=True)
class Variant:
    """A source tree that is measured."""

    name: str
    source: Path


def lines(count: int) -> Iterator[dict[str, Any]]:
    """Traces, then `count` lines of feedback about them."""
    for number in range(count // RATINGS + 1):
        yield {
            "type": "trace",
            "id": f"t{number}",
            "input": f"Question {number}?",
            "output": "Hold the button for ten seconds. " * 8,
        }
    for number in range(count):
        yield {
            "type": "feedback",
            "id": f"f{number}",
            "kind": "thumb",
            "value": number % 3 > 0,
            "target": {"trace": f"t{number // RATINGS}"},
            "rater": f"r{number % 1000}",
        }


def import_file(home: Path, file: Path) -> None:
    """Import in this process, and print what it took as JSON."""
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.workspace import Workspace

    clock, cpu = time.perf_counter(), time.process_time()
    with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
        report = ingest(ws, AGENT, "jsonl", file)
    assert not report.refused, report.refusals
    figures = {
        "lines": report.read,
        "seconds": round(time.perf_counter() - clock, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(figures))


def write_beside(home: Path, file: Path | None) -> None:
    """Write rows while a child imports `file`, or for `ALONE` seconds, and print how long they took
    as JSON."""
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.schema import artifacts
    from thumbwheel.db.workspace import Workspace

    seconds: list[float] = []
    over = threading.Event()

    def client(number: int) -> None:
        row = {"kind": "x" * 2000, "size": 1, "recorded_at": datetime.now(UTC)}
        for count in itertools.count():
            if over.is_set():
                return
            insert = artifacts.insert().values(row | {"sha256": f"{number}-{count}"})
            began = time.perf_counter()
            ws.db.write(partial(_execute, statement=insert))
            seconds.append(time.perf_counter() - began)

    with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
        importing = _child("import", home, file) if file else None
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        if importing:
            output, _ = importing.communicate()
            assert importing.returncode == 0, output
        else:
            output = "{}"
            time.sleep(ALONE)
        passed = time.perf_counter() - began
        over.set()
        for thread in threads:
            thread.join()
    seconds.sort()
    figures = {
        "rows_per_second": round(len(seconds) / passed),
        "p50_ms": _milliseconds(seconds, 0.5),
        "p99_ms": _milliseconds(seconds, 0.99),
        "max_ms": _milliseconds(seconds, 1),
        "import": json.loads(output),
    }
    print(json.dumps(figures))


def _execute(connection: sa.Connection, statement: sa.Insert) -> None:
    connection.execute(statement)


def _milliseconds(ordered: list[float], share: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def _child(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--role", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(variant: Variant, folder: Path, file: Path | None) -> dict[str, Any]:
    """The figures of a writer in a new home."""
    home = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, __file__, "--role", "write", str(home)]
    done = subprocess.run(
        [*command, str(file)] if file else command,
        env=os.environ | {"PYTHONPATH": str(variant.source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def tree_of(reference: str, folder: Path) -> Path:
    """The `src` of a commit, below `folder`."""
    archive = subprocess.run(
        ["git", "archive", reference, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    """Print a line for every variant, alone and beside the import; write all of them to --json."""
    if sys.argv[1:2] == ["--role"]:
        role, home, *rest = sys.argv[2:]
        file = Path(rest[0]) if rest else None
        if role == "write":
            write_beside(Path(home), file)
        else:
            assert file is not None
            import_file(Path(home), file)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=100_000, help="lines of feedback")
    parser.add_argument("--before", metavar="REF", help="a commit to compare with")
    raw.option(parser, "writer")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variants = [Variant("now", ROOT / "src")]
        if options.before:
            tree = tree_of(options.before, folder / "before")
            variants.insert(0, Variant(f"before ({options.before})", tree))
        material = folder / "material.jsonl"
        with material.open("w") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines(options.lines))
        for beside in (None, material):
            for variant in variants:
                figures = measure(variant, folder, beside)
                row = {"variant": variant.name, "beside": "import" if beside else "nothing"}
                rows.append(row | figures)
                _print(rows[-1])
    raw.write(options.json, lines=options.lines, threads=THREADS, rows=rows)


def _print(row: dict[str, Any]) -> None:
    print(
        f"{row['variant']:20} beside {row['beside']:8} {row['rows_per_second']:6,} rows/s, "
        f"p50 {row['p50_ms']:6.1f} ms, p99 {row['p99_ms']:7.1f} ms, max {row['max_ms']:7.1f} ms"
    )
    if done := row["import"]:
        print(
            f"{'':20} the import: {done['lines']:,} lines in {done['seconds']} s "
            f"({done['cpu_seconds']} s of a processor), {done['peak_mb']} MB at most"
        )


if __name__ == "__main__":
    main()
