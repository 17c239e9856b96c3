"""A server that redacts writes nothing of what it looks for into the home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import (
    END,
    ScriptedUpstream,
    chat_events,
    chunk,
    reply,
    stream_head,
)
from tests.worlds.gateway_world import LOOPBACK, running, serve_remote
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress

CARD, MAIL, KEY = "4111 1111 1111 1111", "jane.doe@mail.example.org", "sk-a1b2c3d4e5f6g7h8i9j0"
SECRETS = (CARD, "41111111", MAIL, "jane.doe", KEY, "a1b2c3d4")


def dirty_files(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path.name
        for path in files
        if any(secret.encode() in path.read_bytes() for secret in SECRETS)
    ]


@pytest.mark.parametrize("mode", ["off", "on", "strict"])
def test_calls_traces_and_feedback(tmp_path: Path, mode: str) -> None:
    sources = Sources(
        {"capture": {"redaction": mode}, "endpoints": LOOPBACK}, "thumbwheel.yaml", {}
    )
    home = tmp_path / "home"
    with ScriptedUpstream() as upstream, Workspace.open(Home(home), sources) as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        events = b"".join(chat_events(*f"I noted {CARD} and {MAIL}."))
        pieces = [events[start : start + 50] for start in range(0, len(events), 50)]
        upstream.script = lambda request: [stream_head(), *map(chunk, pieces), END]
        with running(ws) as gateway:
            answer = gateway.ask(
                {
                    "messages": [{"role": "user", "content": f"My key is {KEY}"}],
                    "stream": True,
                    "user": MAIL if mode != "on" else "u1",
                },
                headers={"x-thumbwheel-metadata": json.dumps({"card": CARD})},
            )
            assert answer.content == events
            echo = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
            upstream.script = lambda request: [reply(echo, "401 Unauthorized")]
            assert KEY in gateway.ask().text
            trace: dict[str, Any] = {"agent": "support", "input": MAIL, "output": CARD}
            trace_id = gateway.client.post("/api/traces", json=trace).json()["ids"][0]
            feedback = {"agent": "support", "trace": trace_id, "correction": f"Ask {MAIL}"}
            assert gateway.client.post("/api/feedback", json=feedback).status_code == 202
            lines = gateway.lines(4)
            in_inbox = dirty_files(home)
        in_home = dirty_files(home)
        with ws.db.read() as connection:
            stored = len(connection.execute(schema.traces.select()).all())
            stored += len(connection.execute(schema.feedback.select()).all())
    if mode == "off":
        assert in_inbox and in_home
        return
    assert (in_inbox, in_home) == ([], [])
    assert stored == 4
    noted = "I noted [card removed] and [email removed]."
    (call,) = [line for line in lines if line.get("output") == noted]
    assert call["metadata"]["redacted"]["card"] == 2
