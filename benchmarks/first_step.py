"""The callback of startup.py: notes what a training child has paid when its first step begins.

A file of its own, because the child imports it: nothing here costs what is not there anyway.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

FIGURES = "STARTUP_FIGURES"
"""Environment variable: the file for the CPU seconds."""


class FirstStep(TrainerCallback):
    """Writes the CPU seconds of this process, once."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        path = Path(os.environ[FIGURES])
        if not path.exists():
            path.write_text(str(cpu()), encoding="utf-8")


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    """Return user and system seconds."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
