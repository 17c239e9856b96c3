"""How long a client may take to send a request: connections that send next to nothing would keep
others out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0
"""From the connection, or the first byte of a further request, to the end of the headers."""
BODY_SECONDS = 60.0
"""Between two pieces of a body."""
MOST_HEADER_BYTES = 256 * 1024
ENDS = b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout" + ENDS
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large" + ENDS


class Patience(HttpToolsProtocol):
    """uvicorn's protocol, which ends connections whose request does not come."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = self._in_body = False
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and limit the time to wait for the rest of an incomplete request. A
        request that comes in one piece, as nearly all do, sets no timer."""
        was_in_headers = self._in_headers
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._refuse(TOO_LARGE)
            elif not was_in_headers:
                self._wait(HEADER_SECONDS)
        elif self._in_body:
            self._wait(BODY_SECONDS)
        else:
            self._stop_waiting()

    def on_message_begin(self) -> None:
        """Note that the headers begin."""
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self._in_headers, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
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

    def _refuse(self, answer: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
