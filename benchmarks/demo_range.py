"""What the demo gains over persons: `thumbwheel demo` for one person after the other.

    make bench-demo
    make bench-demo ARGS="--seeds 1 2 3"

The base is trained on the machine (once, then it is kept), so another processor has another world:
the conditions name it. A person is a seed: their habits, messages and luck. Each run takes about
three minutes of two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import raw


def turn(seed: int, folder: Path) -> dict[str, Any]:
    """Run the demo for the person `seed`; returns its result, with the exit code."""
    result = folder / f"{seed}.json"
    command = [sys.executable, "-m", "thumbwheel", "demo", "--seed", str(seed)]
    options = ["--home", str(folder / f"home{seed}"), "--json", str(result)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if not result.exists():
        raise SystemExit(f"demo --seed {seed} failed: {done.stderr[-2000:]}")
    figures = json.loads(result.read_text())
    names = ("decision", "method", "before", "after", "gain", "gain_low", "gain_high", "seconds")
    chosen = {name: figures[name] for name in names if name in figures}
    return {"seed": seed, "exit_code": done.returncode, **chosen, "base": figures.get("base")}


def main() -> None:
    """Measure, print a line a person, and write the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)))
    raw.option(parser, "demo-range")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="thumbwheel-demo-") as folder:
        for seed in options.seeds:
            row = turn(seed, Path(folder))
            rows.append(row)
            print(
                f"person {seed}: {row['before']:.1%} to {row['after']:.1%}, "
                f"{100 * row['gain']:+.1f} points, {row['decision']}",
                flush=True,
            )
            gains = sorted(100 * row["gain"] for row in rows)
            summary = {
                "persons": len(rows),
                "median": statistics.median(gains),
                "least": gains[0],
                "most": gains[-1],
                "approved": sum(row["decision"] == "approved" for row in rows),
            }
            raw.write(options.json, summary=summary, rows=rows)
    print(
        f"median {summary['median']:+.1f} points, {summary['least']:+.1f} to "
        f"{summary['most']:+.1f}, approved {summary['approved']} of {summary['persons']}"
    )


if __name__ == "__main__":
    main()
