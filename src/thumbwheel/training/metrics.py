"""metrics.jsonl of a run: one line an optimiser step or evaluation, on disk for whoever follows it,
also after a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from thumbwheel.training.rundir import unwritable


class MetricsFile:
    """Appends lines; numbers that are none become null, since JSON has no NaN."""

    def __init__(self, path: Path) -> None:
        self._path, self._stream = path, path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        try:
            self._stream.write(json.dumps(clean) + "\n")
            self._stream.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        """Close the file; `write` has already reported anything that a full disk did not take."""
        with suppress(OSError):
            self._stream.close()
