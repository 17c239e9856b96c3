"""No request makes the server fail: it gets thousands of broken ones, answers, stays green and
stores what is whole. `make fuzz` sends twenty thousand."""

from __future__ import annotations

import http.client
import json
import os
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.hostile_requests import BODIES, CALLS, TRACE, HostileRequest, hostile_requests
from tests.servers.scripted_upstream import ScriptedUpstream, reply
from tests.servers.thumbwheel_server import ThumbwheelServer, running
from tests.worlds.gateway_world import LOOPBACK, serve_remote
from thumbwheel.capture.traces import list_traces
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress

COUNT = int(os.environ.get("THUMBWHEEL_FUZZ", "1500"))
SEED = int(os.environ.get("THUMBWHEEL_FUZZ_SEED", "1"))


def status(server: ThumbwheelServer, request: HostileRequest) -> int:
    """The status of the answer; the connection is new, because some requests end it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {name: value.encode("latin-1") for name, value in request.headers.items()}
    path = quote(request.path, safe="/%")
    connection.request("POST", path, request.content, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.slow
def test_no_request_makes_the_server_fail(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    statuses: Counter[int] = Counter()
    with ScriptedUpstream(lambda request: [reply({"object": "anything"})]) as upstream:
        with Workspace.open(home, Sources({"endpoints": LOOPBACK}, "", {})) as ws:
            serve_remote(ws, EndpointAddress(upstream.url, "m"))
        with running(home.path) as server:
            _attack(server, statuses)
            health = server.health()
    assert health["status"] == "green", health
    assert statuses[202] > COUNT / 200  # some survive their change, so the paths behind are tested
    assert statuses[200] > COUNT / 100
    assert statuses[400] and statuses[422]
    with Workspace.open(home) as ws:
        traces = list_traces(ws, "desk", limit=COUNT).traces
    assert "whole" in {trace.external_id for trace in traces}
    rejected = home.inbox / "rejected.jsonl"
    if rejected.exists():
        assert "cannot be stored" not in rejected.read_text()


def _attack(server: ThumbwheelServer, statuses: Counter[int]) -> None:
    """Send the broken requests, and a whole one at the end."""
    for number, request in enumerate(hostile_requests(SEED, COUNT, {**BODIES, **CALLS})):
        code = status(server, request)
        statuses[code] += 1
        assert code < 500, (number, request.path, request.headers, request.content[:500])
    content = json.dumps({**TRACE, "id": "whole"}).encode()
    whole = HostileRequest("/a/desk/api/traces", {"content-type": "application/json"}, content)
    assert status(server, whole) == 202
