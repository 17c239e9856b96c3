"""Strangers who keep others out with a byte now and then, on each listener that we start: the
server with its gateway, and the server of the embedded model."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.models.tiny_models import tiny_base
from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.deploy.targets.embedded import SPEC, TOKEN
from thumbwheel.gateway import patience
from thumbwheel.gateway.patience import Patience

HEAD = b"POST /api/feedback HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
LONG = HEAD + b"content-length: 100000\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ASKED = b"GET /api/openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
FEW_FILES = 200


def connected(url: str, receive_buffer: int | None = None) -> closing[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return closing(connection)


def ends(connection: socket.socket, piece: bytes = b"") -> bool:
    """Whether the server ends a connection on which `piece` is sent again and again, within some
    seconds."""
    connection.settimeout(0.05)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            connection.sendall(piece)
            if connection.recv(10_000) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(patience, name, 0.5)


@pytest.mark.parametrize("head", [LONG, CHUNKED], ids=["length", "chunks"])
def test_a_body_of_a_byte_now_and_then_ends(
    gateway: GatewayWorld, short_waits: None, head: bytes
) -> None:
    piece = b"1\r\n \r\n" if head == CHUNKED else b" "
    with connected(gateway.url) as slow:
        slow.sendall(head)
        assert ends(slow, piece)


@pytest.mark.parametrize("before", [b"", ASKED], ids=["new", "after an answer"])
def test_line_ends_keep_no_connection_open(
    gateway: GatewayWorld, short_waits: None, before: bytes
) -> None:
    with connected(gateway.url) as silent:
        if before:
            silent.sendall(before)
            while silent.recv(1 << 20)[-1:] != b"}":
                pass
        silent.sendall(b"\r\n")
        assert ends(silent)


def test_the_rest_of_a_refused_body_keeps_no_connection_open(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gateway.client.get("/nothing").status_code == 404  # the first one makes all routes
    monkeypatch.setattr(patience, "BODY_SECONDS", 5.0)
    head = HEAD.replace(b"/api/feedback", b"/nothing")
    with connected(gateway.url) as refused:
        refused.sendall(head + b"content-length: 5\r\n\r\n")
        assert refused.recv(10_000).startswith(b"HTTP/1.1 404")
        refused.sendall(b"12345")
        assert ends(refused)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"2\r\n{}\r\n0\r\n", b"x-a: " + b"y" * 1000 + b"\r\n"),
        (b"2\r\n{}\r\n0\r\nx-a: ", b"y" * 1000),
        (b"2;x=", b"y" * 1000),
    ],
    ids=["many trailers", "a long trailer", "a long extension"],
)
def test_beside_its_content_a_body_is_as_short_as_headers(
    gateway: GatewayWorld, beginning: bytes, piece: bytes
) -> None:
    """Headers behind a body are kept in memory until it ends, and each byte that comes to a long
    one copies it."""
    sent = 0
    with connected(gateway.url) as connection:
        connection.sendall(CHUNKED + beginning)
        with suppress(OSError):
            while sent < 20 << 20:
                connection.sendall(piece)
                sent += len(piece)
    assert sent < 10 << 20, "what is under way in the system's buffers is sent, too"


def test_who_reads_no_answer_is_not_waited_for(
    gateway: GatewayWorld, short_waits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are larger than the buffers of the system."""
    ended: list[Patience] = []
    end = Patience.connection_lost

    def noted(protocol: Patience, error: Exception | None) -> None:
        ended.append(protocol)
        end(protocol, error)

    monkeypatch.setattr(Patience, "connection_lost", noted)
    with ExitStack() as stack:
        for _ in range(3):
            deaf = stack.enter_context(connected(gateway.url, receive_buffer=2048))
            deaf.sendall(ASKED * 8)
        until(lambda: len(ended) == 3)


def test_who_reads_slowly_gets_all_of_an_answer(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(gateway.client.get("/api/openapi.json").content)
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(patience, "LEAST_BYTES", 1000)
    received = 0
    with connected(gateway.url, receive_buffer=2048) as slow:
        slow.sendall(ASKED)
        while received < whole:
            piece = slow.recv(64 * 1024)
            assert piece, f"{received:,} of {whole:,} bytes"
            received += len(piece)
            time.sleep(0.01)


@pytest.mark.parametrize("count", [1, patience.MOST_WAITING + 1], ids=["one", "as many as wait"])
def test_requests_sent_ahead_are_all_answered(gateway: GatewayWorld, count: int) -> None:
    with connected(gateway.url) as connection:
        connection.sendall(LIVE * count)
        assert answers(connection, count) == count
        connection.sendall(LIVE)
        assert answers(connection, 1) == 1, "the connection goes on"


def test_who_sends_requests_without_end_fills_no_memory(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that waits for an answer takes some kilobytes, so that only a few may."""
    longest = 0
    begin = Patience.on_headers_complete

    def noted(protocol: Patience) -> None:
        nonlocal longest
        begin(protocol)
        longest = max(longest, len(protocol.pipeline))

    monkeypatch.setattr(Patience, "on_headers_complete", noted)
    with connected(gateway.url) as greedy:
        with suppress(OSError):  # the server closes it before everything is sent
            greedy.sendall(LIVE * 5000)
        received = answers(greedy, 5000)
    assert longest == 16
    assert received == 1 + 16


def answers(connection: socket.socket, most: int) -> int:
    """Count the answers that come until the connection ends, at most `most`."""
    received = b""
    with suppress(OSError):
        while received.count(b"HTTP/1.1 200") < most or not received.endswith(b"}"):
            piece = connection.recv(1 << 16)
            if not piece:
                break
            received += piece
    return received.count(b"HTTP/1.1 200")


@dataclass
class Process:
    """A server in a process of its own, with few open files."""

    url: str
    pid: int

    def answers(self, path: str) -> int:
        """The status of an answer, of several tries."""
        for _ in range(5):
            with suppress(httpx2.HTTPError):
                return httpx2.get(f"{self.url}{path}", timeout=20, trust_env=False).status_code
        return 0


@contextmanager
def process(
    command: list[str], url: str, path: str, folder: Path, **variables: str
) -> Iterator[Process]:
    """A server that runs, once it answers."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))

    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
            preexec_fn=few_files,
        )
    server = Process(url, child.pid)
    try:
        until(lambda: server.answers(path) != 0, 120)
        yield server
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def assert_nobody_is_kept_out(server: Process, path: str) -> None:
    with ExitStack() as stack:
        for number in range(2 * FEW_FILES):
            with suppress(OSError):
                slow = stack.enter_context(connected(server.url))
                slow.sendall(LONG if number % 2 else b"GET / HT")
        assert server.answers(path) in (200, 401)
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < FEW_FILES - 20


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of a process")
def test_more_slow_clients_than_open_files_keep_nobody_out_of_the_server(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "thumbwheel", "--home", str(tmp_path / "home"), "serve"]
    command += ["--port", str(port), "--workers", "0"]
    with process(command, f"http://127.0.0.1:{port}", "/health", tmp_path) as server:
        assert_nobody_is_kept_out(server, "/health")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of a process")
def test_more_slow_clients_than_open_files_keep_nobody_out_of_the_embedded_model(
    tmp_path: Path,
) -> None:
    """Its token is asked for by what comes after the headers."""
    spec = {"base": str(tiny_base(tmp_path / "base")), "dtype": "float32", "device": "cpu"}
    (tmp_path / SPEC).write_text(json.dumps(spec))
    port = free_port()
    command = [sys.executable, "-m", "thumbwheel.deploy.embedded", str(tmp_path)]
    command += [str(port), "127.0.0.1"]
    url = f"http://127.0.0.1:{port}"
    with process(command, url, "/v1/models", tmp_path, **{TOKEN: "token"}) as server:
        assert_nobody_is_kept_out(server, "/v1/models")
