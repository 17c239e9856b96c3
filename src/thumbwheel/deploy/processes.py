"""Servers that outlive the command that started them: one per folder, found again by pid, start
time and token.

The folder holds `process.json` (readable by its owner only, because it has the token), `server.log`
and whatever the server itself stores. The system reuses pids, so a record counts only while the
process with that pid has the recorded start time. It counts only for the folder that it was written
for: a copied home neither asks nor stops the servers of the original.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from thumbwheel.core import log
from thumbwheel.core.child import stat_fields
from thumbwheel.core.errors import Conflict, ModelError, StorageError
from thumbwheel.core.files import replace as replace_file
from thumbwheel.core.files import unwritable
from thumbwheel.core.locks import wait_for
from thumbwheel.core.private import UMASK
from thumbwheel.llm.port import HOST, free_port

RECORD, LOG, LOCK = "process.json", "server.log", "lock"
NO_TLS = False
"""Loopback has no certificates, and reading the system's takes longer than a rollback may."""
POLL = 0.05
"""Seconds between two checks of a server that starts or ends."""
GRACE = 5.0
"""Seconds that a server has to end by itself before it is killed."""
PROBLEM = re.compile(
    r"error|exception|fail|abort|assert|fatal|cannot|could not|unable|denied|no such|out of memory"
    r"|terminat|killed|traceback",
    re.IGNORECASE,
)
"""What a line of a log says that may be the reason of an end."""
MOST_OF_LOG = 8192
"""Bytes of the end of a log that are read for the reason of an end."""
SILENT = 30.0
"""Seconds without an answer after which a server counts as one that stands still."""


@dataclass(frozen=True)
class Running:
    """The record of a server that was started; `find` tells whether it still runs."""

    pid: int
    started: str
    port: int
    token: str
    place: str
    """The folder that the record was written for; in a copied home it is another one."""
    sound_log: int = 0
    """Bytes of its log while it was well. They do not say why it ended."""
    bind: str = HOST
    """The address on which it listens."""

    @property
    def is_reachable(self) -> bool:
        """Whether other hosts can ask it."""
        return self.bind != HOST

    @property
    def url(self) -> str:
        """Where it answers, without /v1."""
        return f"http://{HOST}:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, timeout: float = 10.0
    ) -> httpx2.Response:
        """Send a request with the server's token and return the response. Raises
        httpx2.HTTPError."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.request(
            method,
            f"{self.url}/{path}",
            json=body,
            headers=headers,
            timeout=timeout,
            trust_env=False,
            verify=NO_TLS,
        )

    def answers(self, path: str) -> bool:
        """Return whether a GET of `path` succeeds."""
        try:
            return self.ask("GET", path, timeout=2.0).status_code == 200
        except httpx2.HTTPError:
            return False


Command = Callable[[int, str], tuple[Sequence[str], Mapping[str, str]]]
"""(port, token) -> the command line, and additions to the environment."""
Ready = Callable[[Running], bool]
"""Whether a server that was just started answers."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which is created if needed: no other process then starts, stops or
    changes its server."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(wait_for(folder / LOCK))
        except OSError as error:
            fix = "Free space or make the home writable"
            raise unwritable(f"folder {str(folder)!r}", error, fix) from error
        yield


def find(folder: Path) -> Running | None:
    """Return the running server of `folder`; None if none runs."""
    record = _recorded(folder)
    if record and record.started and _started(record.pid) == record.started:
        return record
    return None


def answering(folder: Path, ready: Ready) -> Running | None:
    """Return the running server of `folder`, whose lock the caller holds, once it is `ready`; None
    if none runs. A busy server is waited for; one that does not become ready in time is stopped."""
    deadline = time.monotonic() + SILENT
    while (server := find(folder)) is not None:
        if ready(server):
            return server
        if time.monotonic() > deadline:
            log.say(f"the server at {server.url} stands still, and is ended")
            stop(folder)
            return None
        time.sleep(POLL)
    return None


def token(folder: Path, url: str, what: str) -> str:
    """Return the token of the server of `folder`. Raises ModelError unless that server is the one
    at `url`, where another program may listen by now."""
    running = find(folder)
    if running is None or f"{running.url}/v1" != url:
        if running:
            why = f"its server was started again and answers at {running.url} now"
        else:
            why = failure_reason(folder)
        raise ModelError(what, why, "Start it again: thumbwheel deployments --restart")
    return running.token


def start(
    folder: Path,
    command: Command,
    ready: Ready,
    *,
    what: str,
    wait: float,
    port: int = 0,
    bind: str = HOST,
) -> Running:
    """Start a server in `folder`, whose lock the caller holds, and return once it is `ready`. Port
    0 takes the last port again, or any free one.

    `bind` is the address on which `command` has it listen. Raises Conflict for a port that is
    taken, and ModelError with the end of its log for a server
    that ends or takes longer than `wait` seconds; nothing of it runs on then.
    """
    last = _recorded(folder)
    stop(folder)
    chosen_port = _port(port, last.port if last else 0, what)
    new_token = secrets.token_urlsafe(24)
    arguments, environment = command(chosen_port, new_token)
    try:
        with (folder / LOG).open("wb") as log_file:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
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
        started = _started(process.pid) or ""
        place = str(folder.resolve())
        server = Running(process.pid, started, chosen_port, new_token, place, bind=bind)
        write(folder / RECORD, json.dumps(asdict(server)))
        _await(server, folder, ready, what, wait)
    except BaseException:
        _end_group(process.pid)
        (folder / RECORD).unlink(missing_ok=True)
        raise
    return note_sound(folder, server)


def note_sound(folder: Path, server: Running) -> Running:
    """Record that the server of `folder`, whose lock the caller holds, is well: its log up to now
    does not explain a later end."""
    with suppress(OSError):
        server = replace(server, sound_log=(folder / LOG).stat().st_size)
    write(folder / RECORD, json.dumps(asdict(server)))
    return server


def stop(folder: Path, grace: float = GRACE) -> None:
    """Stop the server of `folder` and the processes that it started, if it runs. It has `grace`
    seconds to end by itself."""
    record = _recorded(folder)
    if record is not None and (find(folder) is not None or _orphans(record)):
        _end_group(record.pid, grace)
    (folder / RECORD).unlink(missing_ok=True)


def tail(folder: Path, lines: int = 8, after: int = 0, only: re.Pattern[str] | None = None) -> str:
    """Return the end of the server's log, in one line; only the part `after` so many bytes, and
    only lines in which `only` is found."""
    with suppress(OSError), (folder / LOG).open("rb") as stream:
        stream.seek(max(after, stream.seek(0, os.SEEK_END) - MOST_OF_LOG))
        all_lines = stream.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in all_lines if only is None or only.search(line)]
        return " | ".join(line.strip() for line in telling[-lines:] if line.strip())
    return ""


def failure_reason(folder: Path) -> str:
    """Return why the server of `folder` does not answer. `stop` removes the record, so a server
    without a record did not end by itself."""
    record = _recorded(folder)
    if record is None:
        return "it was stopped, or never started in this home"
    # what a server says of each request is no reason
    last_words = tail(folder, after=record.sound_log, only=PROBLEM)
    if find(folder) is not None:
        state = "its process runs but does not answer"
        silent = "it has logged nothing since it started"
    else:
        state = "its process has ended"
        silent = "it logged no reason, as a process that was killed (for its memory?) or a reboot"
    return f"{state}; its log ends with: {last_words}" if last_words else f"{state}; {silent}"


def write(path: Path, text: str) -> None:
    """Replace `path`, readable by its owner only. Raises StorageError."""
    try:
        replace_file(path, text, mode=0o600)
    except OSError as error:
        raise unwritable(f"file {str(path)!r}", error) from error


def _recorded(folder: Path) -> Running | None:
    try:
        record = Running(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.place == str(folder.resolve()) else None


def _port(requested: int, last: int, what: str) -> int:
    port = free_port(requested) if requested else free_port(last) or free_port()
    if port is None:
        raise Conflict(
            what,
            f"port {requested} is taken by another program",
            "Choose another port, or 0 for any that is free",
        )
    return port


def _await(server: Running, folder: Path, ready: Ready, what: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    with log.progress(f"starting {what}", None) as advance:
        while not ready(server):
            advance(0)
            if not server.started or _started(server.pid) != server.started:
                raise ModelError(
                    what,
                    f"it ended while it started: {tail(folder)}",
                    f"Its whole log is {folder / LOG}",
                )
            if time.monotonic() > deadline:
                raise ModelError(
                    what,
                    f"it did not answer within {timeout:g} s: {tail(folder)}",
                    "Give it longer with the setting wait",
                )
            time.sleep(POLL)


def _started(pid: int) -> str | None:
    """Return when the process began, in the system's own unit; None if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(
            pid,
            os.WNOHANG,
            # a child of ours that has ended would stay in the table of processes until it is asked
            # for
        )
    if (stat := stat_fields(pid)) is not None:
        return None if stat[0] in "ZX" else stat[19]
    if Path("/proc/self/stat").exists():
        return None
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None


def _orphans(record: Running) -> bool:
    """Return whether children of a dead server are still alive: processes of its session that know
    its token, because the system reuses pids."""
    for path in Path("/proc").glob("[0-9]*"):
        stat = stat_fields(int(path.name))
        if stat and int(stat[3]) == record.pid and stat[0] not in "ZX":
            with suppress(OSError):
                if record.token.encode() in (path / "environ").read_bytes():
                    return True
    return False


def _end_group(pid: int, grace: float = GRACE) -> None:
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, GRACE)):
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
