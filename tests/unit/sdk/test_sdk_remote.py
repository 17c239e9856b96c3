"""Recording over HTTP: with the product's own routes, and with servers that fail."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import thumbwheel
from tests.waiting import until
from tests.worlds.api_world import opened_api
from thumbwheel.capture import routes
from thumbwheel.capture.feedback_token import FeedbackTokens
from thumbwheel.sdk import record, remote
from thumbwheel.sdk.segment import Segment


@pytest.fixture(autouse=True)
def app_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of an app that is on another machine than the server, so to speak."""
    home = tmp_path / "app"
    monkeypatch.setenv("THUMBWHEEL_HOME", str(home))
    monkeypatch.setattr(remote, "RETRY", 0.05)
    monkeypatch.setattr(remote, "PATIENCE", 1.0)
    yield home
    for way in record._REMOTES.values():
        way.leave()
        if way._thread is not None:
            way._thread.join(60)
    record._REMOTES.clear()


def lines(folder: Path, pattern: str = "spool-*") -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted(folder.glob(pattern))]
    return [json.loads(line) for line in "".join(texts).splitlines()]


def unsent(home: Path) -> Path:
    """The folder for the one server that the app has."""
    (folder,) = (home / "unsent").iterdir()
    return folder


@pytest.fixture
def server_inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The inbox behind the product's own routes, to which THUMBWHEEL_URL leads."""
    inbox = tmp_path / "server" / "inbox"
    segment = Segment(inbox)
    router = routes.router(segment, FeedbackTokens.with_key(tmp_path / "key"))
    with opened_api(inbox.parent, router) as app:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        monkeypatch.setenv("THUMBWHEEL_URL", f"http://127.0.0.1:{port}/")
        yield inbox
        server.should_exit = True
        thread.join()
    segment.close()


def test_traces_and_feedback_reach_the_server(server_inbox: Path, app_home: Path) -> None:
    for number in range(250):
        name = thumbwheel.trace("Support", input="hi", output=str(number), id=f"t{number}")
    with thumbwheel.trace("Support", input="hi") as run:
        run.output = "block"
    thumbwheel.feedback("Support", name, thumb=True, id="f1", rater="ann")
    assert thumbwheel.flush(60)
    arrived = lines(server_inbox)
    assert [line["id"] for line in arrived if line["type"] == "trace"] == [
        *(f"t{number}" for number in range(250)),
        run.id,
    ]
    (judgement,) = (line for line in arrived if line["type"] == "feedback")
    assert (judgement["targets"], judgement["rater"]) == ([{"trace": "t249"}], "ann")
    assert not app_home.exists()


def test_what_the_server_refuses_spoils_nothing_else(
    server_inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True):
        for number in range(20):
            fields = {"mood": "good"} if number % 5 == 0 else {}
            thumbwheel.trace("a", input="hi", output="ho", id=f"t{number}", **fields)
        assert thumbwheel.flush(60)
    assert {line["id"] for line in lines(server_inbox)} == {
        f"t{number}" for number in range(20) if number % 5
    }
    assert caplog.text.count("the server refuses it: ") == 4
    with pytest.raises(ValueError, match="the server refuses it"):
        thumbwheel.sdk.spool(
            "a", {"type": "feedback", "kind": "thumb", "value": "?", "targets": []}
        )


class Script(ThreadingHTTPServer):
    """A server that answers as `answers` says, and afterwards takes every line. What it says with
    200 is no answer of ours."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.rows: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()


class Scripted(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.keys.add(self.headers["authorization"])
        status, headers = self.server.answers.pop(0) if self.server.answers else (202, {})
        if status == 202:
            self.server.rows += rows
        if status == 0:  # in the middle of the answer
            self.close_connection = True
            return
        names = [row["id"] for row in rows] if status == 202 else []
        content = json.dumps({"ids": names, "detail": "scripted"}).encode()
        self.send_response(status)
        for name, value in ({"content-length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    server = Script()
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    monkeypatch.setenv("THUMBWHEEL_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("THUMBWHEEL_KEY", "secret")
    yield server
    server.shutdown()
    server.server_close()


def test_a_busy_server_is_asked_again(script: Script, app_home: Path) -> None:
    script.answers = [(429, {"retry-after": "0"}), (503, {"retry-after": "0"})]
    thumbwheel.feedback("a", "t1", thumb=True, id="f1")
    assert [row["id"] for row in script.rows] == ["f1"]
    assert script.keys == {"Bearer secret"}
    assert not (app_home / "unsent").exists()


@pytest.mark.parametrize("status", [0, 200, 301, 401, 404, 500])
def test_what_a_server_does_not_take_waits_on_the_disk_until_it_does(
    script: Script, app_home: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    script.answers = [(status, {"location": "http://127.0.0.1:9/"})] * (2 if status == 0 else 1)
    thumbwheel.feedback("a", "t1", thumb=True, id="f1")
    assert "kept in" in caplog.text
    thumbwheel.trace("a", input="hi", output="ho", id="t2")
    until(lambda: {row["id"] for row in script.rows} == {"f1", "t2"})
    until(lambda: not list(unsent(app_home).iterdir()))


def test_a_server_that_is_away_costs_nothing_and_gets_everything_later(
    script: Script, app_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    def away(*_: object, timeout: float) -> http.client.HTTPConnection:
        attempts.append(timeout)
        return http.client.HTTPConnection("127.0.0.1", 9, timeout=timeout)  # nobody listens there

    with monkeypatch.context() as network:
        network.setitem(remote.CONNECTIONS, "http", away)  # type: ignore[arg-type]
        network.setattr(remote, "RETRY", 3600.0)
        names = [thumbwheel.trace("a", input="hi", output="ho") for _ in range(100)]
        names.append(thumbwheel.feedback("a", names[0], thumb=True))
        assert thumbwheel.flush(60)
        assert len(attempts) == 1  # and the next one an hour later
        assert {line["id"] for line in lines(unsent(app_home), "*.jsonl")} == set(names)
    torn = unsent(app_home) / "spool-0000000000001-1-x.jsonl"
    torn.write_text('{"type": "trace", "id": "to')
    record._REMOTES.clear()  # the process ends, and another one finds the server there again
    names.append(thumbwheel.trace("a", input="hi", output="ho"))
    until(lambda: {row["id"] for row in script.rows} == set(names))


def test_a_file_that_cannot_be_read_holds_up_no_other_and_no_line_goes_to_another_server(
    script: Script, app_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script.answers = [(500, {})]
    thumbwheel.feedback("a", "t1", thumb=True, id="f1")
    until(lambda: {row["id"] for row in script.rows} == {"f1"})
    folder = unsent(app_home)
    (folder / "spool-0000000000001-1-x.jsonl").mkdir()
    trace = '{"type": "trace", "id": "t2"}\n'
    (folder / "spool-0000000000002-1-x.jsonl").write_text("[]\n" + '{"type": "case"}\n' + trace)
    other = app_home / "unsent" / "elsewhere-0"
    other.mkdir()
    (other / "spool-0000000000003-1-x.jsonl").write_text(trace)
    record._REMOTES.clear()
    for number in range(3, 6):
        thumbwheel.feedback("a", "t1", thumb=True, id=f"f{number}")
    until(lambda: len(script.rows) == 5)
    assert [row["id"] for row in script.rows].count("t2") == 1
    assert caplog.text.count("cannot be read") == 1 and f"{other} has lines" in caplog.text
    assert len((folder / "rejected.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in other.iterdir()] == ["spool-0000000000003-1-x.jsonl"]


def test_neither_server_nor_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("THUMBWHEEL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("THUMBWHEEL_HOME", "/dev/full/home")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert thumbwheel.trace("a", input="hi", output="ho", id="t1") == "t1"
        thumbwheel.flush(60)
    assert "not recorded" in str(caught[-1].message)
    with pytest.raises(OSError, match="Not a directory"):
        thumbwheel.feedback("a", "t1", thumb=True)
    (way,) = record._REMOTES.values()
    assert way.lost == 2
    until(lambda: "nothing can be kept in /dev/full" in caplog.text)
    way._has_unsent, way._down_until, way._resend_at = True, 0.0, 0.0
    way._resend()
    assert caplog.text.count("nothing can be kept in /dev/full") == 1
    assert "Traceback" not in caplog.text


def test_the_thread_ends_with_the_recording(script: Script) -> None:
    thumbwheel.trace("a", input="hi", output="ho", id="t1")
    (way,) = record._REMOTES.values()
    thread = way._thread
    assert thread is not None
    way.leave()
    thread.join(60)
    assert not thread.is_alive()
    assert [row["id"] for row in script.rows] == ["t1"]


@pytest.mark.parametrize(("bound", "most"), [("LINES", 3), ("SIZE", 1000)])
def test_more_than_the_queue_holds_goes_to_the_disk(
    script: Script, app_home: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(remote, bound, most)
    script.answers = [(503, {"retry-after": "0"})] * 50
    names = [thumbwheel.trace("a", input="hi", output="ho") for _ in range(60)]
    until((app_home / "unsent").exists)
    until(lambda: {row["id"] for row in script.rows} == set(names))


LAST = """
import os, thumbwheel
for number in range(30):
    thumbwheel.trace("a", input="hi", output="ho", id=f"t{number}")
"""


def test_the_end_of_the_process_waits_for_what_is_on_its_way(script: Script) -> None:
    done = subprocess.run([sys.executable, "-c", LAST], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["id"] for row in script.rows} == {f"t{number}" for number in range(30)}


CHILD = """
import atexit, multiprocessing, sys, thumbwheel
def record():
    thumbwheel.trace("a", input="hi", output="ho", id="child")
def forgotten():
    thumbwheel.trace("a", input="hi", output="ho", id="after everything")
if __name__ == "__main__":
    atexit.register(forgotten)  # runs after the sdk's own, which is registered later
    thumbwheel.trace("a", input="hi", output="ho", id="parent")
    process = multiprocessing.get_context(sys.argv[1]).Process(target=record)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_and_late_traces_lose_nothing(
    script: Script, app_home: Path, tmp_path: Path, method: str
) -> None:
    (tmp_path / "app.py").write_text(CHILD)
    command = [sys.executable, str(tmp_path / "app.py"), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    rows = script.rows + lines(app_home / "unsent", "*/spool-*")
    assert sorted(row["id"] for row in rows) == ["after everything", "child", "parent"]


def test_what_goes_to_no_server_and_what_nobody_foresaw_do_not_end_the_thread(
    script: Script,
    app_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="of no kind"):
        thumbwheel.sdk.spool("a", {"type": "of no kind"})
    with monkeypatch.context() as broken:
        broken.setitem(remote.CONNECTIONS, "http", None)  # type: ignore[arg-type]
        for _ in range(2):
            thumbwheel.feedback("a", "t1", thumb=True)
            until(lambda: "stays in" in caplog.text)
    until(lambda: not list(unsent(app_home).iterdir()))
    assert len(script.rows) == 2


def test_a_key_that_was_read_from_a_file_has_a_line_end(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THUMBWHEEL_KEY", "secret\n")
    thumbwheel.feedback("a", "t1", thumb=True)
    assert script.keys == {"Bearer secret"}
    monkeypatch.setenv("THUMBWHEEL_KEY", "sec\nret")
    with pytest.raises(ValueError, match="THUMBWHEEL_KEY") as raised:
        thumbwheel.feedback("a", "t1", thumb=True)
    assert "sec" not in str(raised.value).replace("THUMBWHEEL_KEY", "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host:99999", "no address"),
        ("http://host:port", "no address"),
        ("127.0.0.1:8787", "no address"),
        ("ftp://host", "no address"),
        ("http://", "no address"),
        ("http://me:secret@host", "THUMBWHEEL_KEY"),
        ("http://host/?key=secret", "THUMBWHEEL_KEY"),
    ],
)
def test_what_is_no_address_is_told_at_the_call(
    monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setenv("THUMBWHEEL_URL", url)
    with pytest.raises(ValueError, match=words) as raised:
        thumbwheel.feedback("a", "t1", thumb=True)
    assert "secret" not in str(raised.value)
