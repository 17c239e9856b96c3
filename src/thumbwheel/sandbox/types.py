"""Types of the sandbox: limits, how safe it is here, how a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from thumbwheel.core.config import Config


class Limits(Config):
    """What one run may use."""

    wall_seconds: float = Field(default=60, gt=0, le=3600)
    """Seconds by the clock, tests included."""
    cpu_seconds: int = Field(default=30, ge=1, le=3600)
    """Seconds of processor time for one process."""
    memory_mb: int = Field(default=512, ge=64, le=1 << 20)
    """Memory of all its processes and files together where there is a cgroup; of one process
    otherwise."""
    processes: int = Field(default=32, ge=1, le=4096)
    """Processes and threads at a time."""
    files_mb: int = Field(default=64, ge=1, le=1 << 16)
    """Size of all its files, and of one."""
    inodes: int = Field(default=4096, ge=64, le=1 << 22)
    """Files and folders."""
    open_files: int = Field(default=128, ge=32, le=1 << 16)
    """Files that are open at a time in one process."""
    output_kb: int = Field(default=64, ge=1, le=1 << 14)
    """What is kept of its output; the rest is read and forgotten."""


class Level(StrEnum):
    """How safe it is to run untrusted code on this machine."""

    STANDARD = "standard"
    """Namespaces, filter of system calls, limits per process, and a cgroup that bounds memory and
    processes together."""
    LIMITED = "limited"
    """The same without a cgroup: fewer processes, so that all of them at their limit of memory fit
    into half of the machine's."""
    REFUSED = "refused"
    """It is not safe; nothing runs."""


class SandboxOutcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    """The program came to its end, or all tests were asked."""
    RAISED = "raised"
    """The program raised an exception, or its last command failed."""
    LEFT = "left"
    """It left by exit before its end."""
    DIED = "died"
    """It was killed by a signal, or closed the conversation."""
    TIMEOUT = "timeout"
    """Wall or processor time is used up."""
    MEMORY = "memory"
    """Its memory was used up."""
    LIED = "lied"
    """It sent what is no answer to the question."""
    BROKEN = "broken"
    """Not its fault: the tests cannot run, or the sandbox itself failed."""
    BLOCKED = "blocked"
    """It was not run, because it is not safe here."""


@dataclass(frozen=True)
class Tests:
    """The tests of a task: `asserts` ("assert f(1) == 2") after `setup`, or `check`, code that
    defines check(candidate), for `entry_point`.

    `head` is code that `check` may use, the text before a completion.
    """

    asserts: tuple[str, ...] = ()
    setup: str = ""
    check: str | None = None
    entry_point: str | None = None
    head: str = ""


@dataclass(frozen=True)
class SandboxJob:
    """A program to run: `language` is "python" or "shell". With `tests` it is judged by them, from
    outside."""

    code: str
    language: str = "python"
    tests: Tests | None = None


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended; `passed` has one entry per test. `output` is what the program printed, which
    counts for nothing."""

    state: SandboxOutcome
    detail: str = ""
    output: str = ""
    passed: tuple[bool, ...] = ()
    cpu_seconds: float = 0.0


class SandboxRefused(Exception):
    """It is not safe to run code here: the reason, and the command that would change that."""

    def __init__(self, reason: str, fix: str) -> None:
        self.reason, self.fix = reason, fix
        super().__init__(f"{reason}. {fix}")
