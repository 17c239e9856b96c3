"""A bad way to an object storage: it forwards requests to a real one, and breaks some of them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Fault = Callable[["Request"], bool]
"""Answer a request in place of the storage, and return True; False lets it pass."""


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Proxy

    def answer(self, status: int, code: str) -> bool:
        """Answer with an error of S3."""
        self._read_body()
        body = f"<Error><Code>{code}</Code><Message>of the test</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def hang(self) -> bool:
        """Say nothing until the test is over."""
        self.server.ended.wait()
        return self.cut()

    def cut(self) -> bool:
        """Close the connection without an answer."""
        self.close_connection = True
        return True

    def _forward(self) -> None:
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path}")
        if self.server.fault is not None and self.server.fault(self):
            return
        url = urlsplit(self.server.endpoint)
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
        dropped = {"connection", *self.server.dropped_headers}
        headers = {name: text for name, text in self.headers.items() if name.lower() not in dropped}
        try:
            connection.request(self.command, self.path, self._read_body(), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, text)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class S3Proxy(ThreadingHTTPServer):
    """Use as a context manager."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.endpoint = endpoint
        self.fault: Fault | None = None
        self.dropped_headers: set[str] = set()
        """Headers, in small letters, that the storage never sees."""
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> S3Proxy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away is what tests are about
