"""An upstream that does what a test says, byte by byte: raw HTTP over a socket, so that it can
break every rule that a real one could break."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

RESET = object()
"""In a script: end the connection by a reset."""
HANG = object()
"""In a script: send nothing more, and keep the connection until the client ends it."""


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


Script = Callable[[Received], Iterable[Any]]
"""Yields bytes that are sent, seconds (float) that are waited, RESET or HANG."""


def reply(
    body: bytes | dict[str, Any],
    status: str = "200 OK",
    headers: Iterable[tuple[str, str]] = (("content-type", "application/json"),),
) -> bytes:
    """A whole reply with its length."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    lines.append(f"content-length: {len(content)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def stream_head(content_type: str = "text/event-stream", *more: str) -> bytes:
    """The beginning of a chunked reply."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {content_type}", "transfer-encoding: chunked"]
    return "\r\n".join([*lines, *more]).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked reply."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END = b"0\r\n\r\n"


def chat_reply(text: str = "hello", **more: Any) -> dict[str, Any]:
    """What OpenAI's chat API answers."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "large-2026",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **more,
    }


def chat_events(*pieces: str) -> list[bytes]:
    """The server-sent events of a streamed chat answer."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "large-2026"}

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        text = json.dumps({**head, "choices": [choice]}, ensure_ascii=False)
        return f"data: {text}\n\n".encode()

    events = [event({"role": "assistant", "content": ""})]
    events += [event({"content": piece}) for piece in pieces]
    return [*events, event({}, "stop"), b"data: [DONE]\n\n"]


@dataclass
class ScriptedUpstream:
    """Use as a context manager. `script` may be exchanged while it runs."""

    script: Script = field(default=lambda request: [reply(chat_reply())])
    requests: list[Received] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    """When clients ended connections that hung."""
    last_words: list[Received] = field(default_factory=list)
    """The last request of each connection that is closed on this side."""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> ScriptedUpstream:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        last = None
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := _read(stream)) is not None:
                last = request
                if not self._answer(connection, request):
                    break
        if last is not None:
            self.last_words.append(last)

    def _answer(self, connection: socket.socket, request: Received) -> bool:
        """Do the steps of the script; whether the connection goes on."""
        self.requests.append(request)
        return all(self._do(connection, step) for step in self.script(request))

    def _do(self, connection: socket.socket, step: Any) -> bool:
        """Do one step of a script; whether the connection goes on."""
        if step is RESET:
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
            )
            return False
        if step is HANG:
            with suppress(OSError):
                while connection.recv(1 << 16):
                    pass
            self.ended.append(time.monotonic())
            return False
        if isinstance(step, bytes):
            connection.sendall(step)
        else:
            time.sleep(step)
        return True


def _read(stream: Any) -> Received | None:
    line = stream.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode().split()
    headers = []
    while (line := stream.readline()).strip():
        name, _, value = line.decode("utf-8", "surrogateescape").rstrip("\r\n").partition(":")
        headers.append((name, value.strip()))
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Received(method, target, headers, stream.read(length))
