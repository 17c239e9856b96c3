"""`thumbwheel serve` as a program: it says where it is, records, and stops without losing
anything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream, chat_reply, reply
from tests.servers.thumbwheel_server import LOOPBACK
from tests.waiting import until
from tests.worlds.gateway_world import CHAT, HELLO, opened_home, serve_remote
from thumbwheel.core.errors import Conflict
from thumbwheel.db.schema import steps, traces
from thumbwheel.models.types import EndpointAddress
from thumbwheel.server.serve import listening


@pytest.fixture
def priced_model_home(upstream: ScriptedUpstream, tmp_path: Path) -> Path:
    with opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large", price_in=2.0, price_out=10.0))
    return tmp_path / "home"


def started(home: Path) -> tuple[subprocess.Popen[str], str]:
    """The server, and its URL as it says it."""
    command = [
        sys.executable,
        "-m",
        "thumbwheel",
        "--home",
        str(home),
        "serve",
        "--workers",
        "0",
        "--port",
        "0",
    ]
    environment = {**os.environ, **LOOPBACK}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"OPENAI_BASE_URL=(\S+)/v1", line):
            return process, match[1]
    raise AssertionError("it did not start")


@pytest.mark.slow
def test_a_server_that_is_stopped_ends_its_calls_and_keeps_what_they_said(
    priced_model_home: Path, upstream: ScriptedUpstream
) -> None:
    upstream.script = lambda request: [1.0, reply(chat_reply())]
    upstream.requests.clear()
    process, url = started(priced_model_home)
    statuses: list[int] = []

    def ask() -> None:
        answer = httpx2.post(f"{url}{CHAT}", json=HELLO, timeout=120, trust_env=False)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(upstream.requests) == 8)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert process.stderr is not None
    assert process.wait(120) == 0, process.stderr.read()
    process.stderr.close()
    assert statuses == [200] * 8
    with opened_home(priced_model_home) as ws, ws.db.read() as connection:
        outputs = list(connection.execute(sa.select(traces.c.output)).scalars())
        (step,) = set(connection.execute(sa.select(steps.c.served_model, steps.c.cost)))
    assert outputs == ["hello"] * 8
    assert (step.served_model, round(step.cost, 8)) == ("large-2026", 0.00007)


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}"), listening("127.0.0.1", port):
            pass
