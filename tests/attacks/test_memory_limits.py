"""Big bodies and files while the server may have no more memory: it refuses them or reads them, and
answers what comes next."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.servers import thumbwheel_server
from tests.servers.thumbwheel_server import ThumbwheelServer
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import ensure_agent

pytestmark = pytest.mark.repeat

MIB = 2**20
SPARE = 500 * MIB
"""Address space that the server has beyond what it has after its start."""
PRELUDE = f"""
import resource, threading, time
def bound():
    time.sleep(6)
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    limit = mapped + {SPARE}
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    open("bounded", "w").close()
threading.Thread(target=bound, daemon=True).start()
"""
CHAT = "/a/support/v1/chat/completions"
TRACES = "/a/support/api/traces"


@pytest.fixture(scope="module")
def bounded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThumbwheelServer]:
    folder = tmp_path_factory.mktemp("bounded")
    with Workspace.open(Home(folder / "home"), Sources({}, "", {})) as ws:
        ensure_agent(ws, "support")
    prelude = PRELUDE.replace('"bounded"', repr(str(folder / "bounded")))
    with thumbwheel_server.running(folder / "home", prelude=prelude) as server:
        for _ in range(300):
            if (folder / "bounded").exists():
                break
            threading.Event().wait(0.1)
        assert (folder / "bounded").exists()
        yield server
        server.process.kill()  # threads that could not start may be waited for


def bodies() -> dict[str, tuple[str, bytes, dict[str, str]]]:
    """Name -> (path, body, headers) of requests that ask for memory."""
    plain = {"content-type": "application/json"}
    packed = plain | {"content-encoding": "gzip"}
    long_text = json.dumps({"model": "support", "messages": [{"content": "x" * (30 * MIB)}]})
    deep = b'{"model": "support", "messages": ' + b"[" * MIB + b"]" * MIB + b"}"
    values = b'{"model": "support", "messages": [' + b"0," * (15 * MIB) + b"0]}"
    keys = json.dumps({f"k{number}": 0 for number in range(MIB)}).encode()
    rows = b"[" + b",".join([b'{"id":"a","input":"x","output":"y"}'] * 400_000) + b"]"
    bomb = gzip.compress(b"[" + b"1," * (200 * MIB) + b"1]", 1)
    text_bomb = gzip.compress(b'{"input": "' + b"x" * (60 * MIB) + b'", "output": "y"}', 1)
    return {
        "a long text": (CHAT, long_text.encode(), plain),
        "deep": (CHAT, deep, plain),
        "many values": (CHAT, values, plain),
        "many keys": (CHAT, keys, plain),
        "a chat bomb": (CHAT, bomb, packed),
        "many rows": (TRACES, rows, plain),
        "a bomb of rows": (TRACES, bomb, packed),
        "a bomb of text": (TRACES, text_bomb, packed),
        "spans": ("/v1/traces", bomb, packed),
        "parameters": ("/api/web-tokens", long_text.encode(), plain),
    }


def post(server: ThumbwheelServer, path: str, body: bytes, headers: dict[str, str]) -> Any:
    """The status of the answer, or how the connection ended."""
    try:
        return httpx2.post(
            f"{server.url}{path}", content=body, headers=headers, timeout=120, trust_env=False
        ).status_code
    except httpx2.HTTPError as error:
        return type(error).__name__


def require_answers(server: ThumbwheelServer) -> None:
    """The server runs, and takes a small trace."""
    assert server.process.poll() is None
    row = {"id": "small", "input": "Hi", "output": "Hello"}
    content = json.dumps(row).encode()
    assert post(server, TRACES, content, {"content-type": "application/json"}) == 202
    reply = httpx2.get(f"{server.url}/live", timeout=30, trust_env=False)
    assert reply.status_code == 200


def test_a_big_body_ends_no_server(bounded_server: ThumbwheelServer) -> None:
    for name, (path, body, headers) in bodies().items():
        status = post(bounded_server, path, body, headers)
        assert status not in (200, 202) or name in ("a long text", "many rows"), (name, status)
        assert status in (202, 400, 401, 403, 404, 413, 422, 500, 503, "ReadError"), (name, status)
        require_answers(bounded_server)


def test_a_big_file_ends_no_server(bounded_server: ThumbwheelServer, tmp_path: Path) -> None:
    token = (Path(str(bounded_server.process.args[4])) / "access.token").read_text().strip()  # type: ignore[index]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/octet-stream"}
    line = json.dumps({"type": "trace", "id": "t", "input": "x" * (120 * MIB), "output": "y"})
    files = {
        "line.jsonl": line.encode(),
        "array.json": b"[" + b"[" * 1000 + b"1," * (40 * MIB),
        "packed.jsonl.gz": gzip.compress(b"x" * (400 * MIB), 1),
        "table.csv": b'"' + b"x" * (150 * MIB),
    }
    for name, content in files.items():
        path = f"/api/agents/support/imports?path={name}&source=jsonl&wait=60"
        status = post(bounded_server, path, content, headers)
        assert status in (200, 400, 413, 422, 500, 503, 507, "ReadError"), (name, status)
        require_answers(bounded_server)
