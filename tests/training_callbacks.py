"""Callbacks that tests name in a run's settings."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


class Slow(TrainerCallback):
    """Makes a tiny run last, so that there is a middle to interrupt."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.08)


class Held(TrainerCallback):
    """Holds a run after the steps that a test names (tests/held_runs.py), once each, until a signal
    comes: there is a middle to interrupt, however fast or slow the machine is."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if "HOLDS" not in os.environ:
            return
        point = Path(os.environ["HOLDS"]) / str(state.global_step)
        if not point.exists():
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        point.unlink()  # the signal may come from now on
        os.read(reader, 1)
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


class Crash(TrainerCallback):
    """A bug in somebody's callback."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise RuntimeError("deliberate")


class FullDisk(TrainerCallback):
    """After five steps the kernel refuses to let files grow, as a full disk does; only while the
    variable is set."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 5 and "FULL_DISK" in os.environ:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (2048, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )


class FullDiskWhileFile(TrainerCallback):
    """As FullDisk, while there is the file that a variable names."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 5 and Path(os.environ["FULL_DISK_FILE"]).exists():
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (2048, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )


class Interrupt(TrainerCallback):
    """Ctrl-C after the third step, once: the checkpoint of a resumed run is past it."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            signal.raise_signal(signal.SIGINT)


class Modules(TrainerCallback):
    """Writes the names of all modules that are loaded when the first step begins."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            Path(os.environ["MODULES_FILE"]).write_text("\n".join(sys.modules))
