"""A reader of one agent who asks for a large export on many connections and reads next to nothing
of it: each has a file on the server's disk meanwhile."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.waiting import until
from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.access import keys
from thumbwheel.access.rate_limits import MOST_DOWNLOADS, MOST_DOWNLOADS_OF_SHARE
from thumbwheel.core import present
from thumbwheel.models.versions import ensure_agent
from thumbwheel.server.api import endpoint

FILES = f"/api/agents/{AGENT}/datasets/d1/files"
SIZE = 16 << 20
"""More than the buffers of the system hold."""


@pytest.fixture
def exports(gateway: GatewayWorld, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make every export a large file; return the folder in which they are prepared."""
    ensure_agent(gateway.ws, AGENT)

    def export(home: Any, signature: Any, values: dict[str, Any]) -> present.Answer[Any]:
        values["to"].mkdir()
        (values["to"] / "train.jsonl").write_bytes(bytes(SIZE))
        return present.page({}, [])

    monkeypatch.setattr(endpoint, "run", export)
    return gateway.ws.home.cache


def reader(gateway: GatewayWorld, name: str) -> dict[str, str]:
    secret = keys.add(gateway.ws, name, agents=[AGENT], verbs=["read"]).secret
    return {"authorization": f"Bearer {secret}"}


def begin(gateway: GatewayWorld, headers: dict[str, str]) -> tuple[socket.socket, int]:
    """Ask for the export, and read no more than the status; return the connection and the
    status."""
    server = urlsplit(gateway.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(60)
    connection.connect((server.hostname, server.port))
    lines = [f"GET {FILES} HTTP/1.1", f"host: {server.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection, int(connection.recv(100).split()[1])


def downloads(cache: Path) -> list[Path]:
    return list(cache.glob("download-*"))


def test_a_key_has_few_downloads_at_once(gateway: GatewayWorld, exports: Path) -> None:
    many, few = reader(gateway, "many"), reader(gateway, "few")
    with ExitStack() as stack:
        statuses = []
        for _ in range(MOST_DOWNLOADS + 3):
            connection, status = begin(gateway, many)
            stack.callback(connection.close)
            statuses.append(status)
        assert statuses == [200] * MOST_DOWNLOADS + [429] * 3
        assert gateway.client.get(FILES, headers=many).headers["retry-after"]
        held = [path for path in exports.rglob("*") if path.is_file()]
        assert [path.name for path in held] == ["files.tar"] * MOST_DOWNLOADS, "and no copies"
        assert len(gateway.client.get(FILES, headers=few).content) > SIZE
    until(lambda: downloads(exports) == [])
    assert gateway.client.get(FILES, headers=many).status_code == 200


def test_many_keys_of_an_agent_have_few_downloads_together(
    gateway: GatewayWorld, exports: Path
) -> None:
    with ExitStack() as stack:
        statuses = []
        for number in range(MOST_DOWNLOADS_OF_SHARE // MOST_DOWNLOADS + 1):
            headers = reader(gateway, f"reader-{number}")
            for _ in range(MOST_DOWNLOADS):
                connection, status = begin(gateway, headers)
                stack.callback(connection.close)
                statuses.append(status)
        assert statuses.count(200) == MOST_DOWNLOADS_OF_SHARE
        assert statuses.count(429) == MOST_DOWNLOADS


def test_an_invalid_range_leaves_no_file_behind(gateway: GatewayWorld, exports: Path) -> None:
    headers = reader(gateway, "ranges")
    for _ in range(2 * MOST_DOWNLOADS):
        reply = gateway.client.get(FILES, headers={**headers, "range": "bytes=99999999999-"})
        assert reply.status_code == 416
    until(lambda: downloads(exports) == [])


def test_a_failed_export_leaves_no_file_behind(
    gateway: GatewayWorld, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    headers = reader(gateway, "wrong")
    for _ in range(2 * MOST_DOWNLOADS):
        assert gateway.client.get(FILES, headers=headers).status_code == 404
    until(lambda: downloads(exports) == [])
