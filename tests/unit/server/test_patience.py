"""Clients that send next to nothing keep nobody out."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing

import pytest

from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.gateway import patience


def connected(gateway: GatewayWorld) -> closing[socket.socket]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return closing(socket.create_connection((host, int(port)), timeout=60))


HEADERS = b"POST /api/feedback HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
BODY = b'{"agent": "support", "trace": "t1", "thumb": true}'


def test_headers_that_trickle_in_end_the_connection(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEADER_SECONDS", 0.5)
    answer = b""
    with connected(gateway) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        slow.settimeout(0.1)

        def has_ended() -> bool:
            nonlocal answer
            try:
                slow.sendall(b"x-a: b\r\n")
                answer = slow.recv(1000)
            except TimeoutError:
                return False
            except OSError:
                return True
            return True

        until(has_ended)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408")


def test_a_connection_without_a_request_ends(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEADER_SECONDS", 0.5)
    with connected(gateway) as silent:
        assert silent.recv(1000).startswith(b"HTTP/1.1 408")
        assert silent.recv(1000) == b""


def test_a_body_that_stands_still_ends_the_connection(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "BODY_SECONDS", 0.5)
    with connected(gateway) as stalled:
        stalled.sendall(HEADERS + b"content-length: 100\r\n\r\n" + BODY[:5])
        with pytest.raises(ConnectionResetError):
            stalled.recv(1000)
            raise ConnectionResetError  # an orderly end is one as well


def test_a_body_that_goes_on_is_read_however_long_it_takes(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time begins anew whenever enough of it has come."""
    monkeypatch.setattr(patience, "LEAST_BYTES", 10)
    waits: list[float] = []
    wait = patience.Patience._wait

    def counted(protocol: patience.Patience, seconds: float) -> None:
        waits.append(seconds)
        wait(protocol, seconds)

    monkeypatch.setattr(patience.Patience, "_wait", counted)
    with connected(gateway) as slow:
        slow.sendall(HEADERS + f"content-length: {len(BODY)}\r\n\r\n".encode())
        until(lambda: waits == [patience.HEADER_SECONDS, patience.BODY_SECONDS])
        pieces = [BODY[start : start + 10] for start in range(0, len(BODY), 10)]
        for number, piece in enumerate(pieces[:-1], 1):
            slow.sendall(piece)
            until(lambda number=number: waits[2:] == [patience.BODY_SECONDS] * number)
        slow.sendall(pieces[-1])
        assert slow.recv(1000).startswith(b"HTTP/1.1 202")
        monkeypatch.setattr(patience, "HEADER_SECONDS", 0.1)
        time.sleep(0.3)  # a connection that is kept alive may be silent longer
        whole = HEADERS + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY
        slow.sendall(whole)
        assert slow.recv(1000).startswith(b"HTTP/1.1 202")


def test_headers_without_an_end_are_refused(gateway: GatewayWorld) -> None:
    with connected(gateway) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        try:
            for _ in range(400):
                endless.sendall(b"x: " + b"y" * 2000 + b"\r\n")
            answer = endless.recv(1000)
        except OSError:
            pass  # it is closed while more is sent
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
    assert gateway.client.get("/health").status_code == 200


def test_many_slow_clients_keep_nobody_out(
    gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEADER_SECONDS", 600.0)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(gateway)).sendall(b"GET / HT")
        assert gateway.client.get("/health").status_code == 200
