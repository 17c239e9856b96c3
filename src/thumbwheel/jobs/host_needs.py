"""Which kinds of jobs a host takes: what a kind needs there, and what the host has.

A worker leaves the kinds to others whose needs its host does not meet, and says so in its row, so
that people can be told why a job waits. Nothing is reserved: `jobs.heavy` says how many jobs that
compute with models run on a host at a time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.hardware import memory_gb, usable_cores
from thumbwheel.core.plugins import nearest

COUNT_GPUS = """
from thumbwheel.core.hardware import machine
print(len(machine().gpus or ()))
"""
"""Run in a process of its own: a worker that has loaded torch keeps hundreds of megabytes."""
COUNT_SECONDS = 300


class HostNeeds(Config):
    """What a host must have to be given jobs of a kind."""

    cpus: int = Field(default=0, ge=0)
    """Processors."""
    gpus: int = Field(default=0, ge=0)
    """GPUs."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Gigabytes of memory."""
    labels: list[str] = Field(default_factory=list)
    """Labels, all of which the host has in `host.labels`."""


@dataclass
class HostOffer:
    """What a host has. It is measured when a kind needs it."""

    labels: Sequence[str] = ()
    cpus: int = field(default_factory=usable_cores)

    @cached_property
    def memory_gb(self) -> float | None:
        """Gigabytes of memory; None if unknown."""
        return memory_gb()[0]

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs. Raises ConfigError if they cannot be counted."""
        command = [sys.executable, "-P", "-c", COUNT_GPUS]
        try:
            output = subprocess.check_output(command, timeout=COUNT_SECONDS, text=True)
            return int(output.split()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise ConfigError(
                "setting 'jobs.needs'",
                f"the GPUs of this host cannot be counted: {error}",
                "See: thumbwheel doctor. Or use a label of the host (host.labels) instead of gpus",
            ) from error

    def lack(self, needs: HostNeeds) -> str | None:
        """Return what this host is short of, with what it has; None if it meets the needs."""
        if needs.cpus > self.cpus:
            return f"{needs.cpus} processors (it has {self.cpus})"
        if needs.memory_gb and (self.memory_gb is None or needs.memory_gb > self.memory_gb):
            has = "unknown" if self.memory_gb is None else f"{self.memory_gb:.1f}"
            return f"{needs.memory_gb:g} GB of memory (it has {has})"
        if needs.gpus and needs.gpus > self.gpus:
            return f"{needs.gpus} GPUs (it has {self.gpus})"
        missing = [label for label in needs.labels if label not in self.labels]
        return f"label {', '.join(missing)}" if missing else None


def lacks(kinds: Iterable[str], needs: Mapping[str, HostNeeds], offer: HostOffer) -> dict[str, str]:
    """Return kind -> what the host lacks for it, for the kinds that it leaves to other hosts.
    Raises ConfigError for needs of an unknown kind."""
    names = list(kinds)
    lacking: dict[str, str] = {}
    for kind, needed in needs.items():
        if kind not in names:
            raise ConfigError(
                f"setting 'jobs.needs': {kind!r}",
                "there is no such kind of jobs",
                f"Known: {', '.join(names)}.{nearest(kind, names)}",
            )
        lack = offer.lack(needed)
        if lack is not None:
            lacking[kind] = lack
    return lacking
