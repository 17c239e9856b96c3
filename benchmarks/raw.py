"""Where the figures behind the tables of docs/benchmarks.md lie: docs/results/NAME.json, small
files that whoever measures commits.

Each says when, by which command, on what and at which commit it was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def option(parser: argparse.ArgumentParser, name: str) -> None:
    """`--json FILE`, by default the file of this benchmark."""
    path = RESULTS / f"{name}.json"
    shown = path.relative_to(RESULTS.parents[1])
    parser.add_argument(
        "--json", type=Path, default=path, help=f"where the raw figures go (default: {shown})"
    )


def write(path: Path, **figures: Any) -> None:
    """`figures` with the conditions under which they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"conditions": conditions(), **figures}, indent=1, default=str)
    path.write_text(text + "\n", encoding="utf-8")


def conditions() -> dict[str, Any]:
    """Date, command, machine and commit."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    script, *arguments = sys.argv
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", f"benchmarks/{Path(script).name}", *arguments]),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
    }
