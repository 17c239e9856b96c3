"""How a running server hands its listening socket to its successor, so that no request is refused
or lost while one takes the place of the other.

    the server     listens on a socket of the file system, whose name is in the home (`serving/`)
    its successor  asks there, gets the listening socket, starts, and says that it answers
    the server     ends the connections that it has after their next answer, and itself after those

A successor that fails to start has taken nothing: the server goes on as if nobody had asked. Not
here: how a server leaves (`uvicorn_server`).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict
from thumbwheel.core.files import replace

FOLDER = "serving"
"""Of the home: one note for each port on which a server of it listens."""
ANSWERS = b"answers"
"""What a successor sends once it answers."""
PATIENCE = 10.0
"""Seconds that a successor waits for the socket."""
STARTUP = 120.0
"""Seconds that a successor may take to start."""
FIRST_FD = 3
"""File descriptor of the first socket that a service manager passes."""


@dataclass(frozen=True)
class Taken:
    """A listening socket that another server still uses, too."""

    listener: socket.socket
    connection: socket.socket
    is_passed: bool = False
    """Whether the socket is a service manager's and stays open."""

    def answers(self) -> None:
        """Tell the old server to leave, because this process answers calls now."""
        with suppress(OSError), self.connection:
            self.connection.sendall(ANSWERS)


def served_urls(home: Path) -> list[str]:
    """Return the URLs of this home's servers that left a note."""
    urls = []
    for note in sorted((home / FOLDER).glob("*")):
        with suppress(OSError, ValueError):
            host = json.loads(note.read_text(encoding="utf-8"))["host"]
            shown = f"[{host}]" if ":" in host else host
            urls.append(f"http://{shown}:{note.stem}")
    return urls


def take(home: Path, host: str, port: int) -> Taken | None:
    """Return the listening socket of this home's server on `port`, or None if none runs there.

    Raises Conflict if that server listens on another address than `host`.
    """
    try:
        note = json.loads(_note(home, port).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if note["host"] != host:
        raise Conflict(
            f"the server on port {port}",
            f"it listens on {note['host']}, and whoever takes its place on the same",
            f"Say --host {note['host']}, or stop it first",
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(note["socket"])
        _, handles, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError:  # it was killed and left its note
        connection.close()
        return None
    if not handles:
        connection.close()
        return None
    return Taken(socket.socket(fileno=handles[0]), connection, note["is_passed"])


@contextmanager
def offered(
    home: Path,
    host: str,
    listener: socket.socket,
    leave: Callable[[], None],
    is_passed: bool = False,
) -> Iterator[None]:
    """Offer the listening socket to a successor while the context is open. Once the successor
    answers, `leave` is called in its own thread. `is_passed`: the socket belongs to a service
    manager."""
    # A folder of the home may have a path that is too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="thumbwheel-"))
    path = folder / "socket"
    note = _note(home, listener.getsockname()[1])
    facts = {"pid": os.getpid(), "host": host, "socket": str(path), "is_passed": is_passed}
    content = json.dumps(facts)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        door.listen(1)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        replace(note, content, mode=0o600)
        arguments = (door, listener, leave)
        threading.Thread(target=_attend, args=arguments, name="handover", daemon=True).start()
        try:
            yield
        finally:
            with suppress(OSError):  # a successor has written its own by now
                if note.read_text(encoding="utf-8") == content:
                    note.unlink()
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            shutil.rmtree(folder, ignore_errors=True)


def _attend(door: socket.socket, listener: socket.socket, leave: Callable[[], None]) -> None:
    """Offer the socket to each server that connects, until one of them answers calls. A server that
    stops closes `door`, which ends the offer."""
    while True:
        try:
            connection, _ = door.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(STARTUP)
            try:
                socket.send_fds(connection, [b"\0"], [listener.fileno()])
                answer = connection.recv(len(ANSWERS))
            except OSError:
                answer = b""
        if answer == ANSWERS:
            leave()
            return
        log.logger.error("a server that was to take the place of this one did not start")


def _note(home: Path, port: int) -> Path:
    return home / FOLDER / f"{port}.json"


def passed_socket() -> socket.socket | None:
    """Return the listening socket that a service manager passed to this process (`LISTEN_FDS`), or
    None if there is none. Later calls return None."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) < 1:
        return None
    os.set_inheritable(FIRST_FD, False)
    return socket.socket(fileno=FIRST_FD)


def notify_manager(*states: str) -> None:
    """Tell a service manager that listens (`NOTIFY_SOCKET`) the server's state, such as READY=1."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger:
        messenger.connect(address)
        messenger.sendall("\n".join(states).encode())
