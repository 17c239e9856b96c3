"""Servers that outlive the command that started them: one in a folder, found again by pid, start
time and token.

The folder holds `process.json` (readable by its owner only, for the token is in it), `server.log`
and whatever the server itself keeps. A number of a process is used again by the system, so a record
counts only while the process with that number began when it says. It counts for the folder that it
was written for only: a copied home neither asks nor ends the servers of the original.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, ModelError, StorageError
from thumbwheel.core.private import UMASK
from thumbwheel.llm.port import HOST, free_port

RECORD, LOG, LOCK = "process.json", "server.log", "lock"
NO_TLS = False
"""Loopback has no certificates, and reading those of the system takes longer than a rollback may."""
POLL = 0.05
"""Seconds between two looks at a server that starts or ends."""
GRACE = 5.0
"""Seconds that a server has to end by itself before it is killed."""


@dataclass(frozen=True)
class Running:
    """A server as it was started; whether it still runs is `find`'s business."""

    pid: int
    started: str
    port: int
    token: str
    place: str
    """The folder that the record was written for: a copy of a home has no part in the servers of
    the original."""

    @property
    def url(self) -> str:
        """Where it answers, without /v1."""
        return f"http://{HOST}:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, timeout: float = 10.0
    ) -> httpx.Response:
        """What it answers, asked with its token; raises httpx.HTTPError where it does not."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(
            method,
            f"{self.url}/{path}",
            json=body,
            headers=headers,
            timeout=timeout,
            trust_env=False,
            verify=NO_TLS,
        )

    def answers(self, path: str) -> bool:
        """Whether it has something at `path`."""
        try:
            return self.ask("GET", path, timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False


Command = Callable[[int, str], tuple[Sequence[str], Mapping[str, str]]]
"""(port, token) -> what is started, and what its environment has besides ours."""
Ready = Callable[[Running], bool]
"""Whether a server answers that was just started."""


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Inside, no other process starts, ends or changes the server of `place`, which is made where
    it is new."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(
            f"folder {str(place)!r}",
            error.strerror or str(error),
            "Free space or make the home writable",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def find(place: Path) -> Running | None:
    """The server of `place` while it runs."""
    record = _recorded(place)
    return record if record and record.started and _started(record.pid) == record.started else None


def token(place: Path, url: str, what: str) -> str:
    """The token of the server of `place`; raises ModelError unless it is the one at `url`, where
    anybody else may listen by now."""
    running = find(place)
    if running is None or f"{running.url}/v1" != url:
        why = (
            f"its server was started again and answers at {running.url} now"
            if running
            else why_dead(place)
        )
        raise ModelError(
            what, why, "Start it again: thumbwheel deployments --agent AGENT --restart"
        )
    return running.token


def start(
    place: Path, command: Command, ready: Ready, *, what: str, wait: float, port: int = 0
) -> Running:
    """Start a server in `place`, whose lock the caller holds, and return once it is `ready`; port 0
    takes the last one again or any.

    Raises Conflict for a port that is taken, and ModelError with the end of its log for a server
    that ends or takes longer than `wait` seconds; nothing of it runs on then.
    """
    last = _recorded(place)
    stop(place)
    chosen, token = _port(port, last.port if last else 0, what), secrets.token_urlsafe(24)
    arguments, env = command(chosen, token)
    try:
        with (place / LOG).open("wb") as out:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | env,
                umask=UMASK,
                # Ctrl-C and the end of the terminal are the starter's business
                start_new_session=True,
            )
    except OSError as error:
        raise StorageError(
            what,
            f"it cannot be started: {error.strerror or error}",
            "Free space, or install the program again",
        ) from error
    try:
        one = Running(child.pid, _started(child.pid) or "", chosen, token, str(place.resolve()))
        write(place / RECORD, json.dumps(asdict(one)))
        _await(one, place, ready, what, wait)
    except BaseException:
        _end_group(child.pid)
        (place / RECORD).unlink(missing_ok=True)
        raise
    return one


def stop(place: Path) -> None:
    """End the server of `place` and what it has started; nothing to do where none runs."""
    record = _recorded(place)
    if record is not None and (find(place) is not None or _orphans(record)):
        _end_group(record.pid)
    (place / RECORD).unlink(missing_ok=True)


def tail(place: Path, lines: int = 8) -> str:
    """The end of the server's log, in one line."""
    with suppress(OSError), (place / LOG).open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 8192))
        return " | ".join(
            line.strip()
            for line in stream.read().decode("utf-8", "replace").splitlines()[-lines:]
            if line.strip()
        )
    return ""


def why_dead(place: Path) -> str:
    """What is known about a server that does not answer. `stop` takes the record away, so one
    without a record did not end by itself."""
    if _recorded(place) is None:
        return "it was stopped, or never started in this home"
    ended = "its process runs but does not answer" if find(place) else "its process has ended"
    return f"{ended}; its log ends with: {tail(place) or '(nothing)'}"


def write(path: Path, text: str) -> None:
    """Put `text` into `path`, whole or not at all, for the owner only; raises StorageError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"file {str(path)!r}",
            f"it cannot be written: {error.strerror or error}",
            "Free space, then try again",
        ) from error


def _recorded(place: Path) -> Running | None:
    try:
        record = Running(**json.loads((place / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.place == str(place.resolve()) else None


def _port(asked: int, last: int, what: str) -> int:
    found = free_port(asked) if asked else free_port(last) or free_port()
    if found is None:
        raise Conflict(
            what,
            f"port {asked} is taken by another program",
            "Choose another port, or 0 for any that is free",
        )
    return found


def _await(one: Running, place: Path, ready: Ready, what: str, wait: float) -> None:
    deadline = time.monotonic() + wait
    with log.progress(f"starting {what}", None) as advance:
        while not ready(one):
            advance(0)
            if not one.started or _started(one.pid) != one.started:
                raise ModelError(
                    what,
                    f"it ended while it started: {tail(place)}",
                    f"Its whole log is {place / LOG}",
                )
            if time.monotonic() > deadline:
                raise ModelError(
                    what,
                    f"it did not answer within {wait:g} s: {tail(place)}",
                    "Give it longer with the setting wait",
                )
            time.sleep(POLL)


def _started(pid: int) -> str | None:
    """When the process began, in whatever the system counts; None where it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(
            pid,
            os.WNOHANG,
            # a child of ours that has ended would stay in the table of processes until it is asked
            # for
        )
    if (stat := _stat(pid)) is not None:
        return None if stat[0] in "ZX" else stat[19]
    if Path("/proc/self/stat").exists():
        return None
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _orphans(record: Running) -> bool:
    """Whether what a dead server had started lives on: processes of its session that know its
    token; pids are given out again."""
    for path in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(path.name))
        if stat and int(stat[3]) == record.pid and stat[0] not in "ZX":
            with suppress(OSError):
                if record.token.encode() in (path / "environ").read_bytes():
                    return True
    return False


def _end_group(pid: int) -> None:
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not _group_lives(pid):
                return
            time.sleep(POLL / 5)


def _group_lives(pid: int) -> bool:
    _started(pid)
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
