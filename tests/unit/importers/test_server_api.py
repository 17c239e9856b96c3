"""A server of somebody else's: what an import asks it, where its key goes, and what every fault of
it is called."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.command_line import Run
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.importers import server_api
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.server_api import Key, ServerUrl, connected, server_name


@dataclass
class Answer:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class StrangeServer:
    """Answers every question with the next of `answers` (the last one again and again)."""

    url: str
    answers: list[Answer]
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, header Authorization)."""


StartServer = Callable[..., StrangeServer]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    started = []

    def start(*answers: Answer) -> StrangeServer:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append((self.path, self.headers["authorization"]))
                answer = server.answers[0]
                if len(server.answers) > 1:
                    server.answers.pop(0)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server = StrangeServer(f"http://127.0.0.1:{listener.server_port}", list(answers))
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        started.append(listener)
        return server

    yield start
    for listener in started:
        listener.shutdown()
        listener.server_close()


def ask(url: str, key: Key | None = None) -> object:
    with connected(path_or_address(url), "Phoenix", ["project"], key) as api:
        return api.get("/v1/projects")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401), r"wants a key \(HTTP 401.*secrets set NAME.*--key NAME"),
        (Answer(403), r"wants a key \(HTTP 403"),
        (Answer(404, b"<html>no</html>"), r"HTTP 404.*<html>no</html>.*address of Phoenix"),
        (Answer(500, b"\x00\xff oops"), r"HTTP 500.*oops"),
        (Answer(200, b"<html>hello</html>"), r"it is no JSON.*Is it Phoenix"),
        (Answer(200, b'{"a": NaN}'), r"no NaN"),
        (Answer(200, b"[" * 9_999), r"it is no JSON"),
        (Answer(200, b"\xff\xfe{}"), r"not UTF-8"),
    ],
)
def test_a_fault_is_named_with_its_server(
    answer: Answer, words: str, start_server: StartServer
) -> None:
    server = start_server(answer)
    with pytest.raises(InputError, match=words) as caught:
        ask(server.url)
    assert caught.value.what == f"Phoenix at {server.url}"


def test_a_refused_key_is_named_and_not_shown(start_server: StartServer) -> None:
    server = start_server(Answer(401))
    with pytest.raises(InputError, match=r"refuses the key DESK .*secrets set DESK") as caught:
        ask(server.url, Key("DESK", "sesame99"))
    assert "sesame99" not in f"{caught.value!r} {Key('DESK', 'sesame99')!r}"
    assert server.requests == [("/v1/projects", "Bearer sesame99")]


def test_a_name_and_password_are_sent_as_such(start_server: StartServer) -> None:
    server = start_server(Answer())
    ask(server.url, Key("DESK", "ann:secret"))
    assert server.requests == [("/v1/projects", "Basic YW5uOnNlY3JldA==")]


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(
    start_server: StartServer,
) -> None:
    other = start_server(Answer())
    location = {"location": f"{other.url}/v1/projects?token=sesame99"}
    server = start_server(Answer(302, b"", location))
    with pytest.raises(InputError, match=f"sends GET /v1/projects on to {other.url}") as caught:
        ask(server.url, Key("DESK", "sesame99"))
    assert other.requests == []
    assert "sesame99" not in str(caught.value)


def test_a_busy_server_is_asked_again(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(server_api.time, "sleep", waits.append)
    busy = Answer(429, b"", {"retry-after": "7"})
    server = start_server(busy, Answer(503), Answer(200, b'{"data": []}'))
    assert ask(server.url) == {"data": []}
    assert waits == [7.0, 2.0]
    with pytest.raises(InputError, match="HTTP 503"):
        ask(start_server(Answer(503)).url)


def test_nobody_there_and_too_long_a_reply_end_clearly(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"nothing answers there.*Start it"):
        ask("http://127.0.0.1:9")
    monkeypatch.setattr(server_api, "LONGEST_REPLY", 1_000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        ask(start_server(Answer(200, b"1" * 2_000)).url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://ann:sesame99@127.0.0.1:6006", r"contains a password.*--key NAME"),
        ("http://127.0.0.1:6006/?experiment=a", r"'experiment' is unknown.*\?project=, \?since="),
        ("http:///x", "names no host"),
        ("postgresql://localhost/desk", "not the address of a server"),
    ],
)
def test_an_address_that_cannot_be_meant(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        ServerUrl.of(path_or_address(url), "Phoenix", ["project"])
    assert "sesame99" not in str(caught.value)


def test_an_address_taken_apart() -> None:
    path = path_or_address("https://host/phoenix/?project=a%20b&since=2026-01-05")
    url = ServerUrl.of(path, "Phoenix", ["project"])
    assert (url.base, url.parameters["project"]) == ("https://host/phoenix", "a b")
    assert url.since and url.since.isoformat() == "2026-01-05T00:00:00+00:00"
    assert server_name(path) == "https://host/phoenix/?project=a%20b"
    with pytest.raises(InputError, match="is no possible time"):
        _ = ServerUrl.of(path_or_address("http://h/?since=soon"), "Phoenix", []).since


def test_the_command_takes_a_stored_key_by_name_only(
    command_line: Run, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"data": [{"id": "p1", "name": "desk"}], "next_cursor": None}
    server = start_server(Answer(200, json.dumps(listed).encode()), Answer(200, b'{"data": []}'))
    code, _, err = command_line("import", "phoenix", server.url, "--agent", "a", "--key", "DESK")
    assert code == 2 and "thumbwheel secrets set DESK" in err
    assert server.requests == []
    command = ("import", "phoenix", server.url, "--agent", "a", "--key", "DESK")
    monkeypatch.setenv("DESK", "never-sent")
    code, _, err = command_line(*command)
    assert code == 2 and "the home has no such secret" in err and server.requests == []
    SecretStore(Home.at(tmp_path / "home").secrets).set("DESK", "sesame99")
    code, out, err = command_line(*command)
    assert code == 2 and "it has no traces" in err, err
    assert {urlsplit(path).path for path, _ in server.requests} == {
        "/v1/projects",
        "/v1/projects/p1/traces",
    }
    assert {header for _, header in server.requests} == {"Bearer sesame99"}
    assert "sesame99" not in out + err
    file = tmp_path / "x.jsonl"
    file.write_text("{}\n")
    code, _, err = command_line("import", "jsonl", str(file), "--agent", "a", "--key", "DESK")
    assert code == 2 and "is not a server" in err
