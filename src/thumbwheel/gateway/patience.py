"""How long a server waits for its clients, and for how many: clients that send or read next to
nothing would keep others out.

A request and an answer have to get on. Connections are bounded by the open files that the process
may have; where there are too many, the one that has let the server wait longest ends.
"""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0
"""From the connection, or the first byte of a further request, to the end of the headers."""
BODY_SECONDS = 60.0
"""In each such time a body ends or gets on by LEAST_BYTES."""
ANSWER_SECONDS = 60.0
"""In each such time a client that is behind takes all of an answer, or LEAST_BYTES of it."""
LEAST_BYTES = 64 * 1024
"""As slow as the slowest line of a telephone, a kilobyte a second."""
MOST_HEADER_BYTES = 256 * 1024
"""Of the headers, and of anything in a body that is not its content: the headers behind it are
kept until its end, too."""
MOST_WAITING = 16
"""Further requests of a connection that wait for an answer before them: whoever sends more gets the
answers to these, and the connection closes."""
MOST_CONNECTIONS = 4096
WANTED_FILES = 16384
"""Open files of a server, if the system allows as many: calls need one to the client and one to
the model."""
ENDS = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout" + ENDS
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large" + ENDS
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1" + ENDS


class TooManyWaiting(Exception):
    """Raised to the parser, which then reads nothing more of the connection."""


class Patience(HttpToolsProtocol):
    """uvicorn's protocol, which ends connections that let the server wait too long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._in_headers = self._in_body = False
        self._is_full = False
        """Whether more requests came than may wait."""
        self._header_bytes = 0
        self._window_bytes = 0
        """Of a body, since the timer began."""
        self._has_content = False
        """Whether content of a body was in the piece that is parsed."""
        self._waits_since: float | None = None
        """Since when the client lets the server wait; None while it is the server's turn."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Parse the data, and limit the time to wait for the rest of an incomplete request. A
        request that comes in one piece, as nearly all do, sets no timer."""
        was_in_headers, was_in_body = self._in_headers, self._in_body
        self._has_content = False
        super().data_received(data)
        if self._in_headers or (self._in_body and not self._has_content):
            self._header_bytes += len(data)
        if self._header_bytes > MOST_HEADER_BYTES:
            self._refuse(TOO_LARGE)
        elif self._in_headers:
            if not was_in_headers:
                self._wait(HEADER_SECONDS)
        elif self._in_body:
            self._window_bytes += len(data)
            if not was_in_body or self._window_bytes >= LEAST_BYTES:
                self._wait(BODY_SECONDS)
        elif self._is_answering:
            self._stop_waiting()
            self._waits_since = None
        elif self._timer is None:
            self._wait(HEADER_SECONDS)  # line ends between two requests end uvicorn's wait
        if self.transport.is_closing():
            self._watch_reader()

    @property
    def _is_answering(self) -> bool:
        """Whether a request is complete, and its answer is not."""
        is_incomplete = self._in_headers or self._in_body
        return self.cycle is not None and not self.cycle.response_complete and not is_incomplete

    def on_message_begin(self) -> None:
        """Note that the headers begin. Raises TooManyWaiting, and lets the connection close behind
        the answers to the requests before, if too many of them wait."""
        if len(self.pipeline) >= MOST_WAITING:
            self._is_full = True
            self.shutdown()
            raise TooManyWaiting
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self._in_headers, self._in_body = False, True
        self._header_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that the body gets on."""
        self._has_content, self._header_bytes = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._in_body = False
        self._header_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait until the client has taken the answer, and read nothing while requests wait."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        self._waits_since = time.monotonic()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request; what follows too many requests is not answered at all."""
        if not self._is_full:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """Wait for the client, who is behind."""
        super().pause_writing()
        self._waits_since = time.monotonic()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        if self._is_answering:
            self._waits_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._waits_since = time.monotonic()
        self._window_bytes = 0
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._in_body and self.flow.read_paused:
            self._wait(BODY_SECONDS)  # the application has not read yet what is there
        elif self._in_body:
            self.transport.abort()
        else:
            self._refuse(TOO_LATE)

    def _watch_reader(self) -> None:
        """End the connection if the client does not take the rest of an answer, even of one behind
        which the connection closes: that would wait for it without end."""
        unread = self.transport.get_write_buffer_size()
        if self._reader_timer is not None or unread == 0:
            return

        def look() -> None:
            self._reader_timer = None
            still_unread = self.transport.get_write_buffer_size()
            if still_unread and unread - still_unread < LEAST_BYTES:
                self.transport.abort()
            else:
                self._watch_reader()

        self._reader_timer = self.loop.call_later(ANSWER_SECONDS, look)

    def _stop_watching(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _make_room(self) -> None:
        """End the connection whose client has let the server wait longest; this one if all others
        have a call that runs."""
        others = [
            (connection._waits_since, id(connection), connection)
            for connection in self.connections
            if isinstance(connection, Patience) and connection._waits_since is not None
        ]
        *_, longest = min(others)
        if longest is self:
            self._refuse(TOO_MANY)
        else:
            longest._waits_since = None
            longest.transport.abort()

    def _refuse(self, answer: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
            self._watch_reader()


def most_connections() -> int:
    """Return how many connections a server has at once: with the files that it opens, as many as
    the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(soft // 2, 1))


def allow_many_files() -> None:
    """Raise the process's limit of open files to what a server wants, as far as the system
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # a system may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
