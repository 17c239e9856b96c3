"""Child processes that run our own code with this interpreter, and limit their own memory.

They are for files from strangers, on which a library could take all memory or never end. Code from
strangers runs in `sandbox`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
PACKAGE_ROOT = str(Path(__file__).parents[2])


def start(module: str, *arguments: str, stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `python -m module` with a pipe for its output and return the process; it ends when
    nobody reads its output."""
    search_path = [PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search_path)}
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Make Linux send this new process the signal `number` when its parent process ends. Does
    nothing on other systems."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, or None if the process or the file
    does not exist."""
    try:
        # The name before them may hold spaces and brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, wait for it and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # there was output buffered for a process that has ended
                continue


def ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> dict[str, Any]:
    """Send a child a line of JSON, and return the object that it answers with. Raises TimeoutError,
    EOFError if the child has ended, and OSError."""
    assert process.stdin is not None  # noqa: S101 - narrows the type
    process.stdin.write(line)
    process.stdin.flush()
    answer = json.loads(read_line(process, seconds))
    return dict(answer)


class LazyChild:
    """A child that is started when it is first needed, and again after it ended; after a fork the
    parent keeps its own. Its program writes a line once it is ready. Not safe for threads."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        start_seconds: float,
        not_started: Callable[[], Exception],
    ) -> None:
        self._command = (module, *arguments)
        self._start_seconds = start_seconds
        self._not_started = not_started
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def running(self) -> subprocess.Popen[bytes]:
        """Return the child of this process, started if needed. Raises `not_started()` if it is not
        ready in time."""
        is_ours = self._owner == os.getpid()
        if self._process is not None and is_ours and self._process.poll() is None:
            return self._process
        process = start(*self._command, stdin=subprocess.PIPE)
        try:
            read_line(process, self._start_seconds)
        except (EOFError, TimeoutError):
            end(process)
            raise self._not_started() from None
        self._process, self._owner = process, os.getpid()
        return process

    def close(self) -> None:
        """End the child."""
        if self._process is not None and self._owner == os.getpid():
            end(self._process)
        self._process = None


def read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the next line of the child. Raises TimeoutError, and EOFError if it has ended."""
    assert process.stdout is not None  # noqa: S101 - narrows the type
    pipe, deadline = process.stdout.fileno(), time.monotonic() + seconds
    received = bytearray()
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        part = os.read(pipe, 2**16)
        if not part:
            raise EOFError
        received += part
    return bytes(received)


def end_children() -> None:
    """Kill the running processes that this one started, and wait for them. Processes in a session
    of their own are meant to outlive it and are left (Linux; elsewhere nothing happens)."""
    me, session = os.getpid(), os.getsid(0)
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_fields(int(path.name))
        if fields is None or int(fields[1]) != me or int(fields[3]) != session:
            continue
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(int(path.name), signal.SIGKILL)
            os.waitpid(int(path.name), 0)


def limit_memory(size: int) -> None:
    """Limit the data of this process to `size` bytes; beyond it an allocation fails. Does nothing
    on systems without such a limit."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    except (ImportError, ValueError, OSError):
        return
