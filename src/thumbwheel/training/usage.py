"""The resources that the process of a run uses: memory, processor, GPU.

The child writes one small file every few seconds; whoever shows the run reads it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass

from thumbwheel.core.files import replace
from thumbwheel.core.hardware import resident_gb, usable_cores
from thumbwheel.training.rundir import RunDir

FILE = "usage.json"
EVERY = 2.0
"""Seconds between two measurements."""
FIRST = 0.2
"""Seconds until the first one."""
STALE = 30.0
"""Seconds after which a measurement says nothing about now."""
GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
MIB = 2**20


@dataclass(frozen=True)
class GpuUsage:
    """What the GPUs of the machine do, all together."""

    busy: float
    """Share of the time in which they compute, on average"""
    memory_gb: float
    """In use, by every process"""
    total_gb: float
    """Of them all"""


@dataclass(frozen=True)
class Usage:
    """One measurement."""

    memory_gb: float | None
    """Main memory of the process; None where the system does not say it"""
    busy_cores: float
    """Processor seconds in a second"""
    cores: int
    """Logical processors that it may use"""
    gpu: GpuUsage | None
    """None without an NVIDIA GPU in use"""


class UsageFile:
    """Measures this process while the block runs. Use as a context manager."""

    def __init__(self, run: RunDir, every: float = EVERY) -> None:
        self._path, self._every = run.path / FILE, every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> UsageFile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        cores = usable_cores()
        before, before_at = _processor_seconds(), time.monotonic()
        pause = min(FIRST, self._every)
        while not self._ended.wait(pause):
            pause = self._every
            now, seconds = _processor_seconds(), time.monotonic()
            busy = (now - before) / max(seconds - before_at, 1e-9)
            before, before_at = now, seconds
            usage = Usage(resident_gb(os.getpid()), busy, cores, _gpu())
            try:
                replace(self._path, json.dumps(asdict(usage)))
            except OSError:
                continue  # a full disk is reported by what has to be kept


def usage_of(run: RunDir) -> Usage | None:
    """Return the newest measurement of a run; None if there is none, or it is old."""
    path = run.path / FILE
    try:
        if time.time() - path.stat().st_mtime > STALE:
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    gpu = fields.pop("gpu")
    return Usage(**fields, gpu=GpuUsage(**gpu) if gpu else None)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _gpu() -> GpuUsage | None:
    """Ask the driver's own tool, if the process computes on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or shutil.which(GPU_QUERY[0]) is None:
        return None
    try:
        answer = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=5, check=True)
        return read_gpus(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def read_gpus(text: str) -> GpuUsage:
    """Return the usage in the tool's lines of per cent, MiB and MiB. Raises ValueError.

    >>> read_gpus("80, 1024, 2048\\n40, 1024, 2048\\n")
    GpuUsage(busy=0.6, memory_gb=2.147483648, total_gb=4.294967296)
    """
    rows = [[float(part) for part in line.split(",")] for line in text.split("\n") if line.strip()]
    busy, used, total = zip(*rows, strict=True)
    return GpuUsage(sum(busy) / len(rows) / 100, sum(used) * MIB / 1e9, sum(total) * MIB / 1e9)
