"""A file of JSON lines that only grows: an object is on disk when `append` returns.

Safe beside other threads and processes. A line that a killed writer left half written is not
joined with the next one, and `read` counts it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add an object. Raises ValueError or TypeError, and writes nothing, for what is no JSON."""
    data = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        is_torn = size > 0 and os.pread(stream.fileno(), 1, size - 1) != b"\n"
        view = memoryview(b"\n" + data if is_torn else data)
        while view:
            view = view[stream.write(view) :]
        os.fsync(stream.fileno())


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return (every object of the file in order, number of lines that are neither blank nor an
    object); ([], 0) if there is no such file."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows, 0
    skipped = 0
    for line in path.read_bytes().split(b"\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            skipped += 1
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            skipped += 1
    return rows, skipped
