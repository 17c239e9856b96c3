"""One sandbox: bubblewrap around a warm interpreter that runs one program at a time, each in
namespaces of its own.

`Sandbox.begin` starts a run and returns its conversation. A sandbox that has failed in any way is
closed, never used again. An unsealed one (`sealed=False`) is a plain process, for code that its
owner trusts.
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
from thumbwheel.sandbox.inside import protocol, zygote
from thumbwheel.sandbox.root_files import PYTHON, root_files
from thumbwheel.sandbox.types import Limits, SandboxRefused

CANDIDATE_UID = 1000
"""The user within; it has no rights outside."""
UNPRIVILEGED_IDS = range(61184, 65520)
"""User ids that systemd gives to transient services; root's sandboxes run as one without a name."""
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
ENVIRONMENT_UNSEALED = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
START = (
    "import sys; sys.path.insert(0, '/app'); from inside.zygote import main; "
    "main(int(sys.argv[1]), True)"
)
START_UNSEALED = """
import importlib.util, sys
folder = sys.argv[2]
spec = importlib.util.spec_from_file_location(
    "inside", folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules["inside"] = importlib.util.module_from_spec(spec)
from inside.zygote import main
main(int(sys.argv[1]), False)
"""
SOCKET_TYPE = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
_user_numbers = itertools.count(os.getpid() * 8)


class Ended(Exception):
    """The run is over."""


class DeadlineExceeded(Exception):
    """The time is up."""


class ProtocolError(Exception):
    """The other side sent something that is no frame."""


class Sandbox:
    """A sandbox that is up. Raises Refused where it cannot be started."""

    def __init__(self, limits: Limits, sealed: bool = True, grouped: bool = False) -> None:
        self.limits, self.sealed = limits, sealed
        self.group: cgroup.Cgroup | None = None
        self._folder = None if sealed else tempfile.TemporaryDirectory(prefix="thumbwheel-trusted-")
        if grouped:
            group = cgroup.make(limits.memory_mb, limits.processes)
            if isinstance(group, str):
                raise SandboxRefused(
                    group, "Run as root, or under: systemd-run --user --scope -p Delegate=yes"
                )
            self.group = group
        local, remote = socket.socketpair(socket.AF_UNIX, SOCKET_TYPE)
        self.link = local
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the cell
        try:
            with remote:
                self._process = self._start(remote.fileno())
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": self._log,
            "stderr": self._log,
            "pass_fds": (control,),
        }
        if not self.sealed:
            inside = str(Path(zygote.__file__).parent)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", START_UNSEALED, str(control), inside],
                env=ENVIRONMENT_UNSEALED,
                **options,
            )
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxRefused(
                "bubblewrap (bwrap) is not installed",
                "Run: apt-get install bubblewrap (or dnf, pacman, zypper)",
            )
        spec = {
            "cgroups": [str(folder) for folder in self.group.folders] if self.group else [],
            "user": unprivileged_id() if os.geteuid() == 0 else None,
            "program": program,
            "by_descriptor": bubblewrap_arguments(),
            "arguments": ["--", PYTHON, "-I", "-S", "-B", "-c", START, str(control)],
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", launch.__file__, json.dumps(spec)],
            env={},
            start_new_session=True,
            **options,
        )

    def _wait_until_ready(self) -> None:
        ready, _, _ = select.select([self.link], [], [], START_SECONDS)
        if not ready or not self.link.recv(4096):
            self._log.seek(0)
            output = self._log.read(4000).decode(errors="replace").strip() or "it printed nothing"
            raise SandboxRefused(
                f"the sandbox did not start: {output.splitlines()[-1]}", advice(output)
            )

    def begin(self, job: dict[str, Any]) -> SandboxRun:
        """Start a run and hand it its job. Raises Ended if the sandbox is gone."""
        if not self.sealed and self._folder:
            for path in Path(self._folder.name).iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        return SandboxRun(self, job)

    def close(self) -> None:
        """End everything in it."""
        self.link.close()
        process = getattr(self, "_process", None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            with contextlib.suppress(ProcessLookupError):
                if self.sealed:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.wait()
        self._log.close()
        if self.group:
            self.group.remove()
        if self._folder:
            self._folder.cleanup()

    @property
    def folder(self) -> str:
        """Where trusted code runs."""
        return self._folder.name if self._folder else ""


def bubblewrap_arguments() -> list[str]:
    """Return the arguments of bubblewrap: new namespaces of every kind, the sandbox's own tree,
    nothing else of the host."""
    root = root_files()
    arguments = [
        "--unshare-user",
        "--unshare-all",
        "--uid",
        str(CANDIDATE_UID),
        "--gid",
        str(CANDIDATE_UID),
        "--hostname",
        "sandbox",
    ]
    arguments += [
        "--cap-add",
        "CAP_SYS_ADMIN",
        "--cap-add",
        "CAP_SETPCAP",
    ]  # within the namespaces, for the zygote; a candidate has none
    arguments += [
        "--ro-bind",
        str(root.root),
        "/",
        "--ro-bind",
        str(root.programs),
        "/app/inside",
        "--tmpfs",
        "/dev",
    ]
    for name in DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    arguments += [
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
        arguments += ["--setenv", name, value]
    return arguments


def unprivileged_id() -> int:
    """Return an id without a name for one sandbox of root's."""
    while True:
        user_id = UNPRIVILEGED_IDS[next(_user_numbers) % len(UNPRIVILEGED_IDS)]
        try:
            pwd.getpwuid(user_id)
        except KeyError:
            return user_id


def advice(output: str) -> str:
    """Return how to fix a bubblewrap that does not start."""
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        return (
            "Ubuntu restricts user namespaces: add an AppArmor profile for bwrap that allows "
            "`userns,` (docs/30-operations.md has it)"
        )
    if "namespace" in output.lower() or "not permitted" in output.lower():
        return (
            "User namespaces are forbidden here; in Docker, run with --security-opt "
            "seccomp=unconfined, or see docs/30-operations.md"
        )
    return "Run: bwrap --version (0.5 or newer is needed), then see docs/30-operations.md"


class SandboxRun:
    """The conversation with one running program."""

    def __init__(self, sandbox: Sandbox, job: dict[str, Any]) -> None:
        protocol.pack(job)  # raises ValueError before anything is open
        self.sandbox, self._output, self._exit, self._max_output = (
            sandbox,
            bytearray(),
            dict[str, Any](),
            sandbox.limits.output_kb * 1024,
        )
        self._buffer, self._output_open, self.stopped = bytearray(), True, False
        self._channel, remote = socket.socketpair()
        self._output_fd, writing = os.pipe()
        try:
            order = sandbox.limits.model_dump() | {"folder": sandbox.folder}
            socket.send_fds(sandbox.link, [json.dumps(order).encode()], [remote.fileno(), writing])
        except OSError:
            self._exit = {"gone": True}
        finally:
            remote.close()
            os.close(writing)
        os.set_blocking(self._output_fd, False)
        with contextlib.suppress(Ended, DeadlineExceeded):
            self.send(job, time.monotonic() + GRACE_SECONDS)

    def send(self, message: dict[str, Any], deadline: float) -> None:
        """Send a frame. Raises Ended if nobody reads it, DeadlineExceeded if nobody does in time,
        ValueError if it is too long."""
        self._channel.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            self._channel.sendall(protocol.pack(message))
        except TimeoutError:
            raise DeadlineExceeded from None
        except OSError:
            raise Ended from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next frame. Raises Ended after the last one, DeadlineExceeded when the time is
        up, ProtocolError for bytes that are no frame."""
        while True:
            try:
                frame = protocol.unpack(self._buffer)
            except ValueError as error:
                raise ProtocolError(str(error)) from None
            if frame is not None:
                return frame
            if self._exit:
                raise Ended
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Read the next input: output, which moves no deadline, a part of a frame, or the end."""
        ready = self._ready([self._channel, self.sandbox.link], deadline)
        if not ready or time.monotonic() > deadline:
            raise DeadlineExceeded
        if self._channel in ready:
            self._read_channel(deadline)
        elif self.sandbox.link in ready:
            self._read_exit()

    def _ready(self, sources: list[Any], deadline: float) -> list[Any]:
        """Return which of the sources have data, output included, which is read at once; empty when
        the time is up."""
        sources_and_output = [*sources, self._output_fd] if self._output_open else sources
        ready, _, _ = select.select(
            sources_and_output, [], [], max(0.0, deadline - time.monotonic())
        )
        if self._output_fd in ready:
            self._read_output()
        return ready

    def _read_channel(self, deadline: float) -> None:
        with contextlib.suppress(OSError):
            data = self._channel.recv(1 << 18)
            if data:
                self._buffer += data
                return
        self._wait_for_exit(
            min(GRACE_SECONDS, deadline - time.monotonic())
        )  # closed by the program: what remains to come is its end

    def _read_output(self) -> bool:
        """Read some output; False if there is none now."""
        try:
            data = os.read(self._output_fd, 1 << 16)
        except BlockingIOError:
            return False
        self._output += data[: max(0, self._max_output - len(self._output))]
        self._output_open = bool(data)
        return self._output_open

    def _read_exit(self) -> None:
        """Read how it ended, from the parent."""
        try:
            data = self.sandbox.link.recv(4096)
        except OSError:
            data = b""
        self._exit = json.loads(data) if data else {"gone": True}

    def _wait_for_exit(self, seconds: float) -> None:
        """Wait for the end, and order it when it does not come by itself."""
        for last in (time.monotonic() + seconds, time.monotonic() + seconds + GRACE_SECONDS):
            while not self._exit and time.monotonic() < last:
                if self.sandbox.link in self._ready([self.sandbox.link], last):
                    self._read_exit()
            if not self._exit:
                self.stopped = True
                with contextlib.suppress(OSError):
                    self.sandbox.link.send(zygote.STOP)
        self._exit = self._exit or {"gone": True}

    def finish(self) -> dict[str, Any]:
        """End it if it still runs. Returns how it ended: `code`, `cpu`, `memory_kb`, or `gone`: the
        sandbox itself is no more."""
        if not self._exit:
            with contextlib.suppress(OSError):
                self.sandbox.link.send(zygote.STOP)
            self._wait_for_exit(GRACE_SECONDS)
        while self._read_output():
            pass
        self._channel.close()
        os.close(self._output_fd)
        return self._exit

    @property
    def output(self) -> str:
        """What it printed, as far as it is kept."""
        return self._output.decode(errors="replace")
