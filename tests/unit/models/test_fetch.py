"""Bases from a package index: whole, of the right hash, and a broken download goes on."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.command_line import Run
from thumbwheel.core.errors import NotFound, StorageError
from thumbwheel.models import base, fetch, known_bases
from thumbwheel.models.known_bases import KNOWN_BASES, KnownBase

CONTENT = b"GGUF" + bytes(range(256)) * 2000


class Index:
    """A package index with one wheel. `cut`: bytes after which a download breaks off; it takes a
    range unless `ranges` is False."""

    def __init__(self, wheel: Path, html: bool = False) -> None:
        self.wheel, self.html, self.cut, self.ranges = wheel, html, 0, True
        self.asked: list[str | None] = []
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"index": self})
        )
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()


class Handler(BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        name = self.index.wheel.name
        if self.path == "/simple/small/":
            address = f"/files/{name}"
            kind, page = (
                "application/vnd.pypi.simple.v1+json",
                json.dumps({"files": [{"filename": name, "url": address, "hashes": {}}]}),
            )
            if self.index.html:
                kind, page = "text/html", f'<a href="{address}#sha256=0">{name}</a>'
            self.answer(200, page.encode(), kind)
        elif self.path == f"/files/{name}":
            content, status = self.index.wheel.read_bytes(), 200
            asked = self.headers.get("Range")
            self.index.asked.append(asked)
            if asked and self.index.ranges:
                content, status = content[int(asked[6:-1]) :], 206
            self.answer(status, content, "application/octet-stream", self.index.cut)
            self.index.cut = 0
        else:
            self.answer(404, b"", "text/plain")

    def answer(self, status: int, content: bytes, kind: str, cut: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut] if cut else content)
        self.close_connection = True

    def log_message(self, format: str, *values: object) -> None:
        """Nothing: the test looks at what was asked."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/model.gguf", CONTENT)
    server = Index(wheel)
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def small(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownBase:
    """A base in that index, and a cache of its own."""
    for module in (fetch, base):
        if hasattr(module, "cache_folder"):
            monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    content = index.wheel.read_bytes()
    entry = replace(
        KNOWN_BASES["smollm2-135m"],
        id="small",
        package="small",
        version="1.0",
        wheel=index.wheel.name,
        wheel_sha256=hashlib.sha256(content).hexdigest(),
        wheel_size=len(content),
        member="small/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )
    monkeypatch.setitem(known_bases.KNOWN_BASES, "small", entry)
    return entry


@pytest.mark.parametrize("html", [False, True])
def test_a_base_arrives_whole_and_once(index: Index, small: KnownBase, html: bool) -> None:
    index.html = html
    fetched = fetch.fetch(small, index.url)
    assert fetched.path.read_bytes() == CONTENT
    assert fetched.downloaded == small.wheel_size
    again = fetch.fetch(small, index.url)
    assert (again.path, again.downloaded) == (fetched.path, 0)
    assert index.asked == [None]
    assert sorted(path.name for path in fetched.path.parent.iterdir()) == [
        "fetch.lock",
        "model.gguf",
    ]


def test_a_download_that_breaks_off_goes_on(index: Index, small: KnownBase) -> None:
    index.cut = 300
    fetch.fetch(small, index.url)
    assert index.asked == [None, "bytes=300-"]


def test_what_came_is_kept_for_the_next_command(
    index: Index, small: KnownBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    index.cut = 400
    with pytest.raises(StorageError, match="run the same command again"):
        fetch.fetch(small, index.url)
    fetched = fetch.fetch(small, index.url)
    assert fetched.downloaded == small.wheel_size - 400
    assert index.asked == [None, "bytes=400-"]


def test_a_server_without_ranges_begins_anew(
    index: Index, small: KnownBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last block is smaller than what came at first."""
    in_small_blocks = partialmethod(httpx2.Response.iter_raw, chunk_size=100)
    monkeypatch.setattr(httpx2.Response, "iter_raw", in_small_blocks)
    index.cut, index.ranges = 300, False
    assert fetch.fetch(small, index.url).path.read_bytes() == CONTENT


def test_a_file_of_another_hash_is_kept_nowhere(index: Index, small: KnownBase) -> None:
    content = bytearray(index.wheel.read_bytes())
    content[200] ^= 1
    index.wheel.write_bytes(content)
    with pytest.raises(StorageError, match="its hash differs"):
        fetch.fetch(small, index.url)
    folder = fetch.fetched_file(small).parent
    assert [path.name for path in folder.iterdir()] == ["fetch.lock"]
    with pytest.raises(NotFound, match="thumbwheel models fetch small"):
        base.gguf_file("small")


def test_a_file_without_end_does_not_fill_the_disk(index: Index, small: KnownBase) -> None:
    index.ranges = False
    with index.wheel.open("ab") as wheel:
        wheel.write(bytes(64 << 20))
    written: list[int] = []
    sizes = fetch._sizes

    def noted(*arguments: Any) -> Any:
        for size in sizes(*arguments):
            written.append(size)
            yield size

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StorageError, match="its hash"):
        patch.setattr(fetch, "_sizes", noted)
        fetch.fetch(small, index.url)
    assert max(written) < small.wheel_size + (4 << 20)
    assert not list(fetch.fetched_file(small).parent.glob("*.part"))


def test_the_password_of_an_index_is_not_shown(small: KnownBase) -> None:
    for address in ("http://user:hunter2@127.0.0.1:9/simple", "http://u:hunter2@[::1]:9/simple"):
        with pytest.raises(StorageError) as raised:
            fetch.fetch(small, address)
        assert "hunter2" not in str(raised.value)


def test_an_index_without_the_file_says_so(index: Index, small: KnownBase) -> None:
    with pytest.raises(StorageError, match=r"has no other-1.0"):
        fetch.fetch(replace(small, wheel="other-1.0-py3-none-any.whl"), index.url)


def test_the_index_is_that_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert fetch.index_url() == "https://mirror.example/simple"


def test_the_command_lists_what_it_can_fetch(command_line: Run) -> None:
    code, out, _ = command_line("models", "fetch", "--json")
    assert code == 0
    assert [entry["id"] for entry in json.loads(out)] == list(KNOWN_BASES)
    code, _, err = command_line("models", "fetch", "smollm2-135")
    assert code == 2
    assert "Did you mean 'smollm2-135m'?" in err
