"""A scripted OpenAI-compatible server on loopback: real HTTP, answers from a function. For trials
and tests, never for users' traffic."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Request:
    """A request; `path` is without `/v1/`, as `completions`."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """A reply; text is sent as it is, anything else as JSON."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Script = Callable[[Request], Reply]


class FakeServer:
    """Answers by `script` inside `with FakeServer(script) as server`; `requests` are those that
    came in, `busiest` the most at once.

    `pages` are the replies to a GET, by path; any other path is a 404.
    """

    def __init__(self, script: Script) -> None:
        self.script, self.requests, self.busiest, self._busy = script, list[Request](), 0, 0
        self.pages: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.02},  # so long does a shutdown take
            daemon=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def answer(self, request: Request) -> Reply:
        """Count the request, and return the script's reply."""
        with self._lock:
            self.requests.append(request)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
        try:
            return self.script(request)
        finally:
            with self._lock:
                self._busy -= 1

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(self.path.removeprefix("/v1/"), body, dict(self.headers))
            self._reply(fake.answer(request))

        def do_GET(self) -> None:
            status = 200 if self.path in fake.pages else 404
            self._reply(Reply(fake.pages.get(self.path), status))

        def _reply(self, reply: Reply) -> None:
            text = reply.content
            if not isinstance(text, str):
                text = json.dumps(text)
            content = text.encode()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
