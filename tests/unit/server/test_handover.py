"""A server takes another one's place while it is asked all the time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import (
    END,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.servers.thumbwheel_server import LOOPBACK, lasting_port
from tests.waiting import until
from tests.worlds.gateway_world import CHAT, HELLO, opened_home, serve_remote
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.errors import Conflict
from thumbwheel.db.schema import traces
from thumbwheel.models.types import EndpointAddress
from thumbwheel.server.handover import notify_manager, offered, passed_socket, take
from thumbwheel.server.serve import listening

CLIENTS = 6


@pytest.fixture
def remote_model_home(upstream: ScriptedUpstream, tmp_path: Path) -> Path:
    with opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
    return tmp_path / "home"


def start(home: Path, port: int, *options: str) -> subprocess.Popen[str]:
    """A server, once it says that it answers."""
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), "serve", "--workers", "0"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **LOOPBACK},
    )
    await_answer(process)
    return process


def await_answer(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "OPENAI_BASE_URL=" in line:
            return
    raise AssertionError(f"it did not start: {lines}")


class Crowd:
    """Clients with connections that stay open, each asking again as soon as it has its answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers = 0
        self.failures: list[str] = []
        self.is_over = False

    async def goes_on(self) -> None:
        """Wait until each client has had some more answers."""
        enough = self.answers + 10 * CLIENTS
        await asyncio.to_thread(until, lambda: self.answers >= enough)

    async def client(self, is_stream: bool) -> None:
        async with aiohttp.ClientSession() as session:
            while not self.is_over:
                try:
                    body = HELLO | {"stream": is_stream}
                    async with session.post(f"{self.url}{CHAT}", json=body) as answer:
                        content = await answer.read()
                except (aiohttp.ClientError, OSError) as error:
                    self.failures.append(repr(error))
                    continue
                self.answers += 1
                if answer.status != 200 or (is_stream and not content.endswith(b"[DONE]\n\n")):
                    self.failures.append(f"{answer.status} {content!r}")


@pytest.mark.slow
def test_requests_all_the_time(remote_model_home: Path, upstream: ScriptedUpstream) -> None:
    """By `--replace`, and by the signal: no request fails, and each is a row."""
    events = chat_events("hel", "lo")

    def script(request: object) -> list[object]:
        if b'"stream": true' in request.body or b'"stream":true' in request.body:  # type: ignore[attr-defined]
            pieces: list[object] = [stream_head()]
            for event in events:
                pieces += [chunk(event), 0.01]
            return [*pieces, END]
        return [reply(chat_reply())]

    upstream.script = script
    port = lasting_port()
    first = start(remote_model_home, port)
    crowd = Crowd(f"http://127.0.0.1:{port}")

    async def run() -> None:
        clients = [asyncio.create_task(crowd.client(n % 2 == 0)) for n in range(CLIENTS)]
        await crowd.goes_on()
        second = await asyncio.to_thread(start, remote_model_home, port, "--replace")
        assert await asyncio.to_thread(first.wait, 120) == 0
        await crowd.goes_on()
        second.send_signal(signal.SIGUSR2)
        await asyncio.to_thread(await_answer, second)
        assert await asyncio.to_thread(second.wait, 120) == 0
        await crowd.goes_on()
        crowd.is_over = True
        await asyncio.gather(*clients)

    try:
        asyncio.run(run())
    finally:
        note = (remote_model_home / "serving" / f"{port}.json").read_text()
        third = int(re.findall(r'"pid": (\d+)', note)[0])
        os.kill(third, signal.SIGTERM)
    assert crowd.failures == []
    until(lambda: not (remote_model_home / "serving" / f"{port}.json").exists())
    with opened_home(remote_model_home) as ws:

        def drained() -> int:
            drain_inbox(ws)
            with ws.db.read() as connection:
                query = sa.select(sa.func.count()).select_from(traces)
                return int(connection.execute(query).scalar_one())

        until(lambda: drained() == crowd.answers)


def test_a_successor_that_does_not_start_takes_nothing(tmp_path: Path) -> None:
    left: list[bool] = []
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with offered(tmp_path, "127.0.0.1", listener, lambda: left.append(True)):
            handover = take(tmp_path, "127.0.0.1", port)
            assert handover is not None
            handover.listener.close()
            handover.connection.close()
            assert left == []
            again = take(tmp_path, "127.0.0.1", port)
            assert again is not None
            with again.listener, socket.create_connection(("127.0.0.1", port)):
                again.listener.accept()[0].close()
                again.answers()
                until(lambda: left)
    assert left == [True]
    assert not list((tmp_path / "serving").iterdir())


def test_a_note_of_a_killed_server(tmp_path: Path) -> None:
    assert take(tmp_path, "127.0.0.1", 8787) is None
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "8787.json").write_text(
        '{"pid": 1, "host": "127.0.0.1", "socket": "/nothing/here"}'
    )
    assert take(tmp_path, "127.0.0.1", 8787) is None
    with pytest.raises(Conflict, match=r"--host 127\.0\.0\.1"):
        take(tmp_path, "0.0.0.0", 8787)


def test_the_socket_of_a_service_manager() -> None:
    """A process gets it as descriptor 3, and only where it is meant."""
    code = (
        "import os, socket\n"
        "from thumbwheel.server.handover import passed_socket\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "listener = passed_socket()\n"
        "assert passed_socket() is None\n"
        "listener.accept()[0].sendall(b'here')\n"
    )
    with listening("127.0.0.1", 0) as listener:
        environment = os.environ | {"LISTEN_FDS": "1", "HANDLE": str(listener.fileno())}
        prepare = f'exec {sys.executable} -c "$CODE" 3<&{listener.fileno()}'
        process = subprocess.Popen(
            ["bash", "-c", prepare],
            pass_fds=[listener.fileno()],
            env=environment | {"CODE": code, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with socket.create_connection(listener.getsockname(), timeout=60) as client:
            assert client.recv(4) == b"here"
        assert process.wait(60) == 0
    assert passed_socket() is None


def test_a_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"\0thumbwheel-test-{os.getpid()}"
        manager.bind(name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name[1:])
        notify_manager("MAINPID=7", "READY=1")
        assert manager.recv(100) == b"MAINPID=7\nREADY=1"
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_manager("READY=1")
