"""Makes tests/last_full_run.json of what the sessions of `make test-all` recorded: `python -m
tests.full_run FILE...`. Where a test failed it ends with the names and leaves the record
as it is.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from tests.sets import FAST_PROCESSOR_SECONDS, FAST_SECONDS
from tests.touched import RECORD, git


def main(*files: str) -> None:
    """Write the record."""
    tests: dict[str, dict[str, Any]] = {}
    seconds = 0.0
    for file in files:
        session = json.loads(Path(file).read_text())
        tests |= session["tests"]
        seconds += session["seconds"]
    if failed := [name for name, test in tests.items() if test["outcome"] == "failed"]:
        sys.exit("full run: not recorded, since these failed:\n" + "\n".join(failed))
    by_file: dict[str, list[float]] = defaultdict(list)
    for name, test in tests.items():
        if not is_slow(test):
            by_file[name.split("::")[0]].append(test["processor"])
    record = {
        "commit": git("rev-parse", "HEAD"),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "seconds": round(seconds),
        "counts": dict(Counter(test["outcome"] for test in tests.values())),
        "file_seconds": {file: round(mean(times), 3) for file, times in sorted(by_file.items())},
        "slow_seconds": {
            name: test["seconds"] for name, test in sorted(tests.items()) if is_slow(test)
        },
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def is_slow(test: Mapping[str, Any]) -> bool:
    """Return whether a recorded test is a slow one; without a marker by what it took."""
    is_heavy = test["processor"] > FAST_PROCESSOR_SECONDS or test["seconds"] > FAST_SECONDS
    return test["is_slow"] or is_heavy


if __name__ == "__main__":
    main(*sys.argv[1:])
