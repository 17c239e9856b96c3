"""`Remote`: lines go to a server over HTTP, from a thread, many in one request.

Where the server cannot be reached, or takes too long, the lines go to files on this machine, and
are sent when it answers again, also by a later process. The server knows lines that it has already
by their ids, so sending twice is sending once. Not here: what a line says (`record`).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import SplitResult, urlsplit

from thumbwheel.sdk.segment import Segment
from thumbwheel.sdk.spool_files import locked, take_files

logger = logging.getLogger("thumbwheel.sdk")

LINES, SIZE = 10_000, 64 * 2**20
"""Most lines and bytes that wait to be sent; more go to the disk at once."""

BATCH_LINES, BATCH_SIZE = 100, 2**20
"""Most lines and bytes of a request that holds more than one."""

TIMEOUT = 10.0
"""Seconds for a request."""

PATIENCE = 10.0
"""Seconds that lines wait while the server says that it is busy."""

RETRY = 5.0
"""Seconds before a server is asked again that could not be reached."""

LEAVING = 5.0
"""Seconds at the end of the process for what still waits; the rest goes to the disk."""

BUSY = (429, 503)
REFUSED = (400, 413, 415, 422)
"""Answers that are about the lines; what else is no success is about the server, the address or the
key."""

PATHS = {"trace": "/api/traces", "feedback": "/api/feedback"}
"""Type of a line -> where it goes."""

CONNECTIONS: Mapping[str, Callable[..., http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}

REJECTED = "rejected.jsonl"


class Unreachable(Exception):
    """The server cannot take lines now; says why."""


@dataclass
class Parcel:
    """A line on its way; `answer` resolves once the server or the disk has it."""

    kind: str
    data: bytes
    answer: Future[None] = field(default_factory=Future)

    def arrive(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Remote:
    """The way to one server; `unsent` is the folder for what cannot be sent, in which each server
    has one of its own."""

    def __init__(self, url: str, key: str | None, unsent: Path) -> None:
        import encodings.idna  # noqa: F401 - a connection at the very end of the program needs it

        self._url, self._key = _checked(url), _checked_key(key)
        self._unsent = Segment(unsent / _folder_name(self._url))
        self._waiting: deque[Parcel] = deque()
        self._waiting_size = 0
        self._sending: list[Parcel] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._down_until = self._resend_at = 0.0
        self._complaint = ""
        self._unreadable: set[Path] = set()
        self._unusable = ""
        self._has_unsent = True  # an earlier process may have left lines
        self._has_left = self._has_ended = False
        self.lost = 0
        """Lines that neither the server nor the disk took."""
        for folder in _with_lines(unsent, self._unsent.inbox):
            logger.warning(
                "%s has lines for another server, which are sent when THUMBWHEEL_URL names it; "
                "where it is the same one at a new address, move them to %s",
                folder,
                self._unsent.inbox,
            )

    def send(self, kind: str, data: bytes) -> Future[None]:
        """Queue a line, a JSON object of type `kind`, and return a future. It carries ValueError if
        the server refuses the line, OSError if neither server nor disk takes it. Never blocks.
        Raises ValueError for a line that is neither trace nor feedback."""
        if kind not in PATHS:
            raise ValueError(f"a line of type {kind!r} cannot be sent: {', '.join(PATHS)} can")
        parcel = Parcel(kind, data)
        with self._changed:
            is_full = len(self._waiting) >= LINES or self._waiting_size + len(data) > SIZE
            if is_full or self._has_left or sys.is_finalizing():
                self._has_unsent = True
                answer = self._unsent.append(data)
                if self._has_left:  # nobody waits for it any more
                    wait([answer])
                return answer
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="thumbwheel-remote", daemon=True
                )
                self._thread.start()
            self._waiting.append(parcel)
            self._waiting_size += len(data)
            self._changed.notify_all()
        return parcel.answer

    def flush(self, seconds: float) -> bool:
        """Wait at most `seconds`, and return whether everything sent before has arrived, at the
        server or on the disk."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._sending), seconds)

    def leave(self) -> None:
        """Send the waiting lines at the end of the process or write them to the disk, where later
        lines go as well. The thread ends."""
        self._has_left = True
        has_arrived = self.flush(LEAVING)
        with self._changed:
            parcels = [] if has_arrived else [*self._sending, *self._waiting]
            self._waiting.clear()
            self._waiting_size = 0
            self._has_ended = True
            self._changed.notify_all()
        self._store(parcels)

    def abandon(self) -> None:
        """Close the parent's files in a forked child, which has no thread."""
        self._unsent.abandon()

    def _run(self) -> None:
        while not self._has_ended:
            self._resend()
            batch = self._next_batch()
            if batch:
                self._deliver(batch)
            with self._changed:
                self._sending = []
                self._changed.notify_all()

    def _next_batch(self) -> list[Parcel]:
        """Wait for lines and return a batch; an empty one if it is time to retry the lines on the
        disk, or the process ends."""
        with self._changed:
            if not self._waiting and not self._has_ended:
                self._changed.wait(RETRY if self._has_unsent else None)
            size = 0
            while self._waiting and len(self._sending) < BATCH_LINES:
                parcel = self._waiting[0]
                size += len(parcel.data)
                if self._sending and size > BATCH_SIZE:
                    break
                self._sending.append(self._waiting.popleft())
                self._waiting_size -= len(parcel.data)
            return list(self._sending)

    def _deliver(self, batch: Sequence[Parcel]) -> None:
        """Send lines, or store them; afterwards each has its answer."""
        try:
            if time.monotonic() < self._down_until:
                raise Unreachable(self._complaint)
            self._send_all(batch)
        except Unreachable as error:
            self._has_unsent = True
            self._down_until = max(self._down_until, time.monotonic() + RETRY)
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.warning(
                    "%s; what is recorded is kept in %s until it can be sent",
                    self._complaint,
                    self._unsent.inbox,
                )
            self._store(batch)
        except Exception:
            logger.exception("what is recorded is kept in %s", self._unsent.inbox)
            self._has_unsent = True
            self._store(batch)

    def _store(self, batch: Sequence[Parcel]) -> None:
        """Keep lines on the disk."""
        answers = []
        for parcel in batch:
            if not parcel.answer.done():
                try:
                    answers.append((parcel, self._unsent.append(parcel.data)))
                except OSError as error:
                    self._lose(parcel, error)
        for parcel, answer in answers:
            try:
                answer.result()
            except OSError as error:
                self._lose(parcel, error)
            else:
                parcel.arrive()

    def _lose(self, parcel: Parcel, error: OSError) -> None:
        """Fail a line's future with an error: neither the server nor the disk took it."""
        self.lost += 1
        parcel.fail(error)

    def _send_all(self, batch: Sequence[Parcel]) -> None:
        """Send lines of all types, grouped by type."""
        for kind in PATHS:
            parcels = [
                parcel for parcel in batch if parcel.kind == kind and not parcel.answer.done()
            ]
            if parcels:
                self._send(parcels)

    def _send(self, batch: Sequence[Parcel]) -> None:
        """Send lines of one type. Raises Unreachable, after which some futures may be resolved."""
        status, content = self._post(PATHS[batch[0].kind], batch)
        if status in REFUSED and len(batch) > 1:
            for parcel in batch:  # one of them spoils the request for all
                self._send([parcel])
            return
        if status in REFUSED:
            batch[0].fail(ValueError(f"the server refuses it: {_detail(content)}"))
            return
        if not 200 <= status < 300:
            raise Unreachable(f"{self._url} answers {status}: {_detail(content)}")
        answer = _acknowledgement(content, len(batch))
        if answer is None:
            raise Unreachable(f"{self._url} answers {status}, but not as a Thumbwheel server does")
        self._complaint, self._down_until = "", 0.0
        for index, reason in _refusals(answer):
            batch[index].fail(ValueError(f"the server refuses it: {reason}"))
        for parcel in batch:
            parcel.arrive()

    def _post(self, path: str, batch: Sequence[Parcel]) -> tuple[int, bytes]:
        """Post a batch until the server is not busy, and return (status, content). Raises
        Unreachable if it stays busy."""
        body = b"[" + b",".join(parcel.data for parcel in batch) + b"]"
        end = time.monotonic() + PATIENCE
        while True:
            status, content, pause = self._request(path, body)
            if status not in BUSY:
                return status, content
            if time.monotonic() + pause > end:
                raise Unreachable(f"{self._url} is busy: {_detail(content)}")
            time.sleep(pause)

    def _request(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        """Send one request, and return (status, content, seconds to wait). Raises Unreachable."""
        parts = urlsplit(self._url)
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        for is_last in (self._connection is None, True):
            try:
                if self._connection is None:
                    self._connection = CONNECTIONS[parts.scheme](
                        parts.hostname or "", parts.port, timeout=TIMEOUT
                    )
                self._connection.request("POST", parts.path + path, body, headers)
                response = self._connection.getresponse()
                content = response.read(2**20)
                pause = response.getheader("retry-after", "")
                if response.will_close or not response.isclosed():
                    self._disconnect()
                return response.status, content, float(pause) if pause.isdigit() else 1.0
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                if is_last:
                    raise Unreachable(f"{self._url} cannot be reached: {error!r}") from None
        raise AssertionError  # the last attempt returns or raises

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _resend(self) -> None:
        """Send the lines on the disk, as far as the server takes them."""
        now = time.monotonic()
        if not self._has_unsent or now < max(self._down_until, self._resend_at):
            return
        try:
            paths = take_files(self._unsent.inbox)
            are_read = [self._resend_file(path) for path in paths]
        except Unreachable as error:
            self._complaint = str(error)
            self._down_until = time.monotonic() + RETRY
        except OSError as error:
            self._has_unsent = not isinstance(error, NotADirectoryError)  # nothing can lie there
            self._resend_at = time.monotonic() + RETRY
            self._complain_of_folder(error)
        except Exception:
            logger.exception("what could not be sent stays in %s", self._unsent.inbox)
            self._resend_at = time.monotonic() + RETRY
        else:
            self._has_unsent = not all(are_read)
            self._resend_at = time.monotonic() + RETRY

    def _complain_of_folder(self, error: OSError) -> None:
        """Say once that the folder for unsent lines cannot be used."""
        if str(error) != self._unusable:
            logger.error("nothing can be kept in %s: %s", self._unsent.inbox, error.strerror)
        self._unusable = str(error)

    def _resend_file(self, path: Path) -> bool:
        """Send the lines of a file and remove it; return False if it cannot be read. Raises
        Unreachable."""
        try:
            with locked(path) as file:
                if file is not None:
                    self._resend_lines(file)
                    path.unlink()
        except OSError as error:
            if path not in self._unreadable:  # said once, and the other files go on
                logger.error("what could not be sent cannot be read: %s", error)
            self._unreadable.add(path)
            return False
        return True

    def _resend_lines(self, file: BinaryIO) -> None:
        """Send the lines of a file, and set aside the lines that the server refuses."""
        for batch in _batches(file):
            self._send_all(batch)
            refused = [parcel.data + b"\n" for parcel in batch if parcel.answer.exception()]
            if refused:
                logger.error("%d lines that were kept for the server are refused", len(refused))
                _set_aside(self._unsent.inbox / REJECTED, b"".join(refused))


def _batches(file: BinaryIO) -> Iterator[list[Parcel]]:
    """Yield the lines of a file in batches; a line that no server takes has already failed."""
    batch: list[Parcel] = []
    for data in file:
        if not data.endswith(b"\n"):
            continue  # torn by a kill, and never acknowledged
        parcel = Parcel(_kind_of(data), data.rstrip(b"\n"))
        if parcel.kind not in PATHS:
            parcel.fail(ValueError("it is neither a trace nor feedback"))
        batch.append(parcel)
        if len(batch) >= BATCH_LINES:
            yield batch
            batch = []
    if batch:
        yield batch


def _kind_of(data: bytes) -> str:
    """Return the type in a line; empty if it has none."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(data)["type"])
    return ""


def _folder_name(url: str) -> str:
    """Return the folder name for lines that one server did not take: its address, for people to
    recognize, and a hash that keeps it unique."""
    address = re.sub(r"[^a-z0-9.]+", "-", url.partition("://")[2].lower())[:40]
    return f"{address}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _with_lines(unsent: Path, except_for: Path) -> list[Path]:
    """Return the folders of other servers in which lines wait."""
    try:
        folders = [path for path in unsent.iterdir() if path != except_for]
        return [path for path in sorted(folders) if any(path.glob("*-*.jsonl"))]
    except OSError:
        return []


def _set_aside(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _checked(url: str) -> str:
    """Return the address without a slash at its end. Raises ValueError if it is no server
    address."""
    parts = urlsplit(url)
    if parts.scheme not in CONNECTIONS or not parts.hostname or not _has_port(parts):
        raise ValueError(f"THUMBWHEEL_URL {url!r} is no address such as http://127.0.0.1:8787")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "THUMBWHEEL_URL holds more than an address; the key belongs into THUMBWHEEL_KEY"
        )
    return url.rstrip("/")


def _has_port(parts: SplitResult) -> bool:
    """Return whether the address has a valid port, or none for the default."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def _checked_key(key: str | None) -> str | None:
    """Return the key without surrounding white space. Raises ValueError if it is no key."""
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable()):
        raise ValueError("THUMBWHEEL_KEY holds characters that no key has")
    return key


def _detail(content: bytes) -> str:
    """Return the server's message, shortened: the detail of a problem, or the response's text."""
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(content)["detail"])[:300]
    return content[:100].decode("utf-8", "replace").strip() or "it says nothing else"


def _acknowledgement(content: bytes, count: int) -> dict[str, Any] | None:
    """Return the answer if it has an id for each of `count` lines, else None: another program that
    listens at the address, and says 200 to everything, stored none of them."""
    with suppress(ValueError, TypeError, KeyError):
        answer = json.loads(content)
        if len(answer["ids"]) == count:
            return dict(answer)
    return None


def _refusals(answer: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return (index, reason) of the lines that a server refused although it stored others."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        refused = answer.get("refused", [])
        return [(int(refusal["index"]), str(refusal["reason"])) for refusal in refused]
    return []
