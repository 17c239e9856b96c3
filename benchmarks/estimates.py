"""How far a dry run is from the run: minutes and peak memory foretold, then measured.

`python benchmarks/estimates.py [--json FILE] [--cases sft:26m,dpo:26m,kto:135m] [--rows 48]`.

Each case is a dry run and then the run itself over the benchmark's own material, in a home of its
own; both go through the same verbs as the command line. A ratio is foretold / measured. The targets
are 15 % for memory and 30 % for time; `--memory` and `--time` set others. On a GPU the memory
measured is torch.cuda.max_memory_allocated of the training process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import material
import peers
import raw

from thumbwheel.core.config import Home, Sources
from thumbwheel.datasets.build import freeze
from thumbwheel.datasets.files import write_parquet
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, ChatRow, Dataset, LabelRow, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.train import dry_run, find_run, run_dir, train

OPTIONS: dict[str, Any] = {
    "num_train_epochs": 2,
    "min_steps": 1,
    "batch_size": 4,
    "eval_steps": 6,
    "early_stopping_patience": None,
    "probe_tokens": 32,
    "max_length": 512,
}
TARGETS = {"memory": 0.15, "time": 0.30}
"""Largest distance of a ratio from 1."""


def main() -> None:
    """Parse, run the cases, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "estimates")
    parser.add_argument(
        "--cases", default="sft:26m,dpo:26m,kto:135m", help="method:size, comma-separated"
    )
    parser.add_argument("--rows", type=int, default=48, help="training rows of a case")
    for name, target in TARGETS.items():
        parser.add_argument(f"--{name}", type=float, default=target, help="largest distance from 1")
    arguments = parser.parse_args()
    targets = {name: getattr(arguments, name) for name in TARGETS}
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = peers.BENCH / "material"
    asked = [asked_case.split(":") for asked_case in arguments.cases.split(",")]
    material.make(folder, *(size for _, size in asked))
    lines = [case(method, size, folder, arguments.rows) for method, size in asked]
    print(
        f"{'case':12}{'minutes foretold':>18}{'measured':>10}"
        f"{'ratio':>7}{'GB foretold':>13}{'measured':>10}{'ratio':>7}"
    )
    for line in lines:
        minutes = (
            f"{line['minutes']:18.2f}{line['minutes_measured']:10.2f}{line['time_ratio']:7.2f}"
        )
        print(
            f"{line['case']:12}{minutes}{line['gb']:13.2f}{line['gb_measured']:10.2f}{line['memory_ratio']:7.2f}"
        )
    raw.write(arguments.json, targets=targets, cases=lines)
    missed = [
        line["case"]
        for line in lines
        for kind, target in targets.items()
        if abs(line[f"{kind}_ratio"] - 1) > target
    ]
    sys.exit(f"off target: {', '.join(missed)}" if missed else 0)


def case(method: str, size: str, folder: Path, count: int) -> dict[str, Any]:
    """The figures of one method and size."""
    with (
        tempfile.TemporaryDirectory() as home,
        Workspace.open(Home.at(home).prepare(), Sources({}, "", {})) as ws,
    ):
        shape = ALGORITHMS.get(method).needs
        ensure_agent(ws, "bench")
        counts = {"counts": {"train": count, "dev": count // 6, "gate": 0}}
        stored = Dataset(f"dst_{shape}", "bench", shape, shape, counts, datetime.now(UTC))
        rows = rows_of(shape, folder, count)
        paths = {split: Path(home) / f"{split}.parquet" for split in SPLITS}
        for split, path in paths.items():
            write_parquet(path, SHAPES.get(shape).row, [row for row in rows if row.split == split])
        dataset = freeze(ws, stored, paths)
        base = find_base(str(folder / size), ws.home.cache)
        foretold = dry_run(
            ws,
            Agent.named("bench"),
            method,
            base,
            dataset=dataset,
            options=OPTIONS,
        )
        result = train(
            ws,
            Agent.named("bench"),
            method,
            base,
            dataset=dataset,
            options=OPTIONS,
        )
        seconds = result.metrics["seconds"]
        evaluated = sum(
            "eval_loss" in line for line in run_dir(ws, find_run(ws, result.run_id)).read_metrics()
        )
    measured = {"minutes_measured": seconds / 60, "gb_measured": result.metrics["peak_memory_gb"]}
    ratios = {
        "time_ratio": 60 * foretold.minutes / seconds,
        "memory_ratio": foretold.memory_gb["peak"] / measured["gb_measured"],
    }
    facts = {
        "case": f"{method} {size}",
        "steps": foretold.steps,
        "evaluations": evaluated,
        "memory": dict(foretold.memory_gb),
    }
    return (
        facts | {"minutes": foretold.minutes, "gb": foretold.memory_gb["peak"]} | measured | ratios
    )


def rows_of(shape: str, folder: Path, count: int) -> list[Any]:
    """`count` training rows and a sixth as many dev rows from the benchmark's pairs."""
    pairs = json.loads((folder / "pairs.json").read_text())
    rows: list[Any] = []
    for number, pair in enumerate(pairs[: count + count // 6]):
        fields: dict[str, Any] = {
            "row_id": f"row{number}",
            "group": f"g{number}",
            "split": "train" if number < count else "dev",
            "tools": None,
            "weight": 1.0,
            "prompt": [{"role": "user", "content": pair["prompt"]}],
            "origin": "benchmark",
            "feedback_ids": [],
            "trace_ids": [],
            "subject_ids": [],
        }
        if shape == "pairs":
            rows.append(PairRow(**fields, chosen=pair["chosen"], rejected=pair["rejected"]))
        elif shape == "chats":
            rows.append(
                ChatRow(**fields, completion=pair["chosen"], finish_reason=None, token_ids=None)
            )
        else:
            good = number % 2 == 0
            rows.append(
                LabelRow(**fields, completion=pair["chosen" if good else "rejected"], label=good)
            )
    return rows


if __name__ == "__main__":
    main()
