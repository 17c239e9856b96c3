"""One sandbox: bubblewrap around a warm interpreter that runs one program at a time, each in
namespaces of its own.

`Cell.begin` starts a run and returns its conversation. A cell that has failed in any way is closed,
never used again. To leave the walls out (`sealed=False`) is for code that its owner trusts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from thumbwheel.sandbox import cgroup, launch
from thumbwheel.sandbox.inside import wire, zygote
from thumbwheel.sandbox.tree import PYTHON, tree
from thumbwheel.sandbox.types import Limits, Refused

CANDIDATE = 1000
"""The user within; it has no rights outside."""
UNPRIVILEGED = range(61184, 65520)
"""Ids that systemd gives to passing services; root's sandboxes run as one that has no name."""
START_SECONDS = 60
GRACE_SECONDS = 5
"""How long a killed run may take to be gone."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ENVIRONMENT = {
    "PATH": "/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/py/lib",
    "PYTHONHASHSEED": "0",
}
ENVIRONMENT_OPEN = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
START = (
    "import sys; sys.path.insert(0, '/app'); from inside.zygote import main; "
    "main(int(sys.argv[1]), True)"
)
OPEN_START = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("inside", sys.argv[2] + "/__init__.py", submodule_search_locations=[sys.argv[2]])
sys.modules["inside"] = importlib.util.module_from_spec(found)
from inside.zygote import main
main(int(sys.argv[1]), False)
"""
SEQUENCE = (
    getattr(socket, "SOCK_SEQPACKET", socket.SOCK_STREAM)
    if sys.platform == "linux"
    else socket.SOCK_STREAM
)
_numbers = itertools.count(os.getpid() * 8)


class Ended(Exception):
    """The run is over."""


class Overdue(Exception):
    """The time is up."""


class ProtocolError(Exception):
    """What came is no frame."""


class Cell:
    """A sandbox that is up. Raises Refused where it cannot be started."""

    def __init__(self, limits: Limits, sealed: bool = True, grouped: bool = False) -> None:
        self.limits, self.sealed = limits, sealed
        self.group: cgroup.Cgroup | None = None
        self._folder = None if sealed else tempfile.TemporaryDirectory(prefix="thumbwheel-trusted-")
        if grouped:
            made = cgroup.make(limits.memory_mb, limits.processes)
            if isinstance(made, str):
                raise Refused(
                    made, "Run as root, or under: systemd-run --user --scope -p Delegate=yes"
                )
            self.group = made
        ours, theirs = socket.socketpair(socket.AF_UNIX, SEQUENCE)
        self.link = ours
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the cell
        try:
            with theirs:
                self._process = self._start(theirs.fileno())
            self._greeting()
        except BaseException:
            self.close()
            raise

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": self._said,
            "stderr": self._said,
            "pass_fds": (control,),
        }
        if not self.sealed:
            inside = str(Path(zygote.__file__).parent)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", OPEN_START, str(control), inside],
                env=ENVIRONMENT_OPEN,
                **options,
            )
        program = shutil.which("bwrap")
        if program is None:
            raise Refused(
                "bubblewrap (bwrap) is not installed",
                "Run: apt-get install bubblewrap (or dnf, pacman, zypper)",
            )
        spec = {
            "cgroups": [str(folder) for folder in self.group.folders] if self.group else [],
            "user": unprivileged() if os.geteuid() == 0 else None,
            "program": program,
            "by_descriptor": walls(),
            "arguments": ["--", PYTHON, "-I", "-S", "-B", "-c", START, str(control)],
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", launch.__file__, json.dumps(spec)],
            env={},
            start_new_session=True,
            **options,
        )

    def _greeting(self) -> None:
        ready, _, _ = select.select([self.link], [], [], START_SECONDS)
        if not ready or not self.link.recv(4096):
            self._said.seek(0)
            said = self._said.read(4000).decode(errors="replace").strip() or "it said nothing"
            raise Refused(f"the sandbox did not start: {said.splitlines()[-1]}", advice(said))

    def begin(self, job: dict[str, Any]) -> Run:
        """Start a run and hand it its job. Raises Ended where the cell is gone."""
        if not self.sealed and self._folder:
            for path in Path(self._folder.name).iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                    missing_ok=True
                )
        return Run(self, job)

    def close(self) -> None:
        """End everything in it."""
        self.link.close()
        process = getattr(self, "_process", None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if self.sealed else process.kill()
            process.wait()
        self._said.close()
        if self.group:
            self.group.remove()
        if self._folder:
            self._folder.cleanup()

    @property
    def folder(self) -> str:
        """Where trusted code runs."""
        return self._folder.name if self._folder else ""


def walls() -> list[str]:
    """The arguments of bubblewrap: new namespaces of every kind, our own tree, nothing else of the
    host."""
    files = tree()
    words = [
        "--unshare-user",
        "--unshare-all",
        "--uid",
        str(CANDIDATE),
        "--gid",
        str(CANDIDATE),
        "--hostname",
        "sandbox",
    ]
    words += [
        "--cap-add",
        "CAP_SYS_ADMIN",
        "--cap-add",
        "CAP_SETPCAP",
    ]  # within the namespaces, for the parent; a candidate has none
    words += [
        "--ro-bind",
        str(files.root),
        "/",
        "--ro-bind",
        str(files.programs),
        "/app/inside",
        "--tmpfs",
        "/dev",
    ]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    words += [
        "--symlink",
        "/tmp",
        "/dev/shm",
        "--remount-ro",
        "/dev",
        "--chdir",
        "/",
        "--new-session",
    ]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    return words


def unprivileged() -> int:
    """An id without a name for one sandbox of root's."""
    while True:
        found = UNPRIVILEGED[next(_numbers) % len(UNPRIVILEGED)]
        try:
            pwd.getpwuid(found)
        except KeyError:
            return found


def advice(said: str) -> str:
    """What to do about a bubblewrap that does not start."""
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        return (
            "Ubuntu restricts user namespaces: add an AppArmor profile for bwrap that allows "
            "`userns,` (docs/30-operations.md has it)"
        )
    if "namespace" in said.lower() or "not permitted" in said.lower():
        return (
            "User namespaces are forbidden here; in Docker, run with --security-opt "
            "seccomp=unconfined, or see docs/30-operations.md"
        )
    return "Run: bwrap --version (0.5 or newer is needed), then see docs/30-operations.md"


class Run:
    """The conversation with one running program."""

    def __init__(self, cell: Cell, job: dict[str, Any]) -> None:
        wire.pack(job)  # raises ValueError before anything is open
        self.cell, self._output, self._how, self._kept = (
            cell,
            bytearray(),
            dict[str, Any](),
            cell.limits.output_kb * 1024,
        )
        self._buffer, self._printing, self.stopped = bytearray(), True, False
        self._talk, theirs = socket.socketpair()
        self._out, writing = os.pipe()
        try:
            order = cell.limits.model_dump() | {"folder": cell.folder}
            socket.send_fds(cell.link, [json.dumps(order).encode()], [theirs.fileno(), writing])
        except OSError:
            self._how = {"gone": True}
        finally:
            theirs.close()
            os.close(writing)
        os.set_blocking(self._out, False)
        with contextlib.suppress(Ended, Overdue):
            self.send(job, time.monotonic() + GRACE_SECONDS)

    def send(self, message: dict[str, Any], deadline: float) -> None:
        """Send a frame. Raises Ended where nobody reads it, Overdue where nobody does in time,
        ValueError where it is too long."""
        self._talk.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            self._talk.sendall(wire.pack(message))
        except TimeoutError:
            raise Overdue from None
        except OSError:
            raise Ended from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next frame. Raises Ended after the last one, Overdue when the time is up, ProtocolError for
        what is no frame."""
        while True:
            try:
                found = wire.unpack(self._buffer)
            except ValueError as error:
                raise ProtocolError(str(error)) from None
            if found is not None:
                return found
            if self._how:
                raise Ended
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Take in whatever comes next: output, which moves no deadline, a part of a frame, or the
        end."""
        ready = self._ready([self._talk, self.cell.link], deadline)
        if not ready or time.monotonic() > deadline:
            raise Overdue
        if self._talk in ready:
            self._hear(deadline)
        elif self.cell.link in ready:
            self._end()

    def _ready(self, sources: list[Any], deadline: float) -> list[Any]:
        """Which of the sources have something, output included, which is read at once; empty when
        the time is up."""
        watched = [*sources, self._out] if self._printing else sources
        ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
        if self._out in ready:
            self._drain()
        return ready

    def _hear(self, deadline: float) -> None:
        with contextlib.suppress(OSError):
            data = self._talk.recv(1 << 18)
            if data:
                self._buffer += data
                return
        self._end_within(
            min(GRACE_SECONDS, deadline - time.monotonic())
        )  # closed by the program: what remains to come is its end

    def _drain(self) -> bool:
        """Read some output; False where there is none now."""
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return False
        self._output += data[: max(0, self._kept - len(self._output))]
        self._printing = bool(data)
        return self._printing

    def _end(self) -> None:
        """Read how it ended, from the parent."""
        try:
            data = self.cell.link.recv(4096)
        except OSError:
            data = b""
        self._how = json.loads(data) if data else {"gone": True}

    def _end_within(self, seconds: float) -> None:
        """Wait for the end, and order it when it does not come by itself."""
        for last in (time.monotonic() + seconds, time.monotonic() + seconds + GRACE_SECONDS):
            while not self._how and time.monotonic() < last:
                if self.cell.link in self._ready([self.cell.link], last):
                    self._end()
            if not self._how:
                self.stopped = True
                with contextlib.suppress(OSError):
                    self.cell.link.send(zygote.STOP)
        self._how = self._how or {"gone": True}

    def finish(self) -> dict[str, Any]:
        """End it if it still runs. Returns how it ended: `code`, `cpu`, `memory_kb`, or `gone`: the
        sandbox itself is no more."""
        if not self._how:
            with contextlib.suppress(OSError):
                self.cell.link.send(zygote.STOP)
            self._end_within(GRACE_SECONDS)
        while self._drain():
            pass
        self._talk.close()
        os.close(self._out)
        return self._how

    @property
    def output(self) -> str:
        """What it printed, as far as it is kept."""
        return self._output.decode(errors="replace")
