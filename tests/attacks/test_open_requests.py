"""A reader who opens streams of events without end, and a page that holds a token for less than
its maker may."""

from __future__ import annotations

import gzip
import json
import re
import socket
import tracemalloc
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import sqlalchemy as sa

from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running
from thumbwheel.access import keys
from thumbwheel.access.rate_limits import MOST_OPEN, PAGES_PER_MINUTE
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.routes import MOST_OF_PAGE
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.schema import feedback
from thumbwheel.jobs import queue
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent

INGESTED = tuple(
    prefix + path
    for prefix in ("", "/a/{agent}")
    for path in (
        "/api/traces",
        "/api/feedback",
        "/api/feedback-tokens",
        "/feedback",
        "/api/public/scores",
        "/api/public/ingestion",
        "/api/public/otel/v1/traces",
        "/v1/traces",
        "/v1/logs",
    )
)
"""Where apps on this machine send rows without a key."""
EVENTS = f"/api/agents/{AGENT}/decisions"


def reader(gateway: GatewayWorld, name: str) -> dict[str, str]:
    """Headers of a stream that a key of this name asks for."""
    secret = keys.add(gateway.ws, name, agents=[AGENT], verbs=["read"]).secret
    return {"authorization": f"Bearer {secret}", "accept": "text/event-stream"}


def test_a_key_opens_a_bounded_number_of_streams(gateway: GatewayWorld) -> None:
    ensure_agent(gateway.ws, AGENT)
    many, few = reader(gateway, "many"), reader(gateway, "few")
    statuses = []
    limits = httpx2.Limits(max_connections=None)
    with (
        httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False, limits=limits) as client,
        ExitStack() as streams,
    ):
        for _ in range(MOST_OPEN + 5):
            stream = client.stream("GET", EVENTS, headers=many)
            statuses.append(streams.enter_context(stream).status_code)
        assert statuses == [200] * MOST_OPEN + [429] * 5
        assert streams.enter_context(client.stream("GET", EVENTS, headers=few)).status_code == 200
        listed = client.get(EVENTS, headers={"authorization": many["authorization"]})
        assert listed.status_code == 200
    job = queue.enqueue(gateway.ws, "reward pending", {"agent": AGENT}, agent=AGENT)
    queue.cancel(gateway.ws, job.id)
    for _ in range(2 * MOST_OPEN):  # what has ended counts no more
        ended = gateway.client.get(f"/api/jobs/{job.id}/events", headers=many)
        assert ended.status_code == 200 and "event: end" in ended.text


@pytest.mark.parametrize("part", [b"[]", b"{}", b"0", b'""'])
def test_a_call_of_many_values_is_not_held_in_memory(gateway: GatewayWorld, part: bytes) -> None:
    headers = {"content-type": "application/json"}
    for count, expected in ((3_000_000, 413), (100_000, 404)):
        values = b",".join([part] * count)
        content = b'{"model": "nobody", "input": [' + values + b"]}"
        for path in ("/v1/embeddings", "/v1/chat/completions"):
            reply = gateway.client.post(path, content=content, headers=headers)
            assert reply.status_code == expected, reply.text
    text = json.dumps({"model": "nobody", "input": "[,{" * 3_000_000}).encode()
    assert gateway.client.post("/v1/embeddings", content=text, headers=headers).status_code == 404


def status_of_part(gateway: GatewayWorld, method: str, path: str, key: str | None) -> int:
    """Of the answer to a request that says that 10 MB come, and sends the first 200 kB; 0 if it
    waits for the rest."""
    server = urlsplit(gateway.url)
    lines = [
        f"{method.upper()} {path} HTTP/1.1",
        f"host: {server.netloc}",
        "content-type: application/json",
        "content-length: 10000000",
    ]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    head = "\r\n".join([*lines, "", ""]).encode()
    with socket.create_connection((str(server.hostname), server.port or 0), 60) as connection:
        with suppress(OSError):  # it may have answered already
            connection.sendall(head + b'{"name": "' + b"x" * 200_000)
        try:
            answer = connection.recv(1024)
        except TimeoutError:
            return 0
    return int(answer.split()[1]) if answer else 0


def test_a_stranger_fills_no_memory_with_bodies(gateway: GatewayWorld) -> None:
    """Bodies are read before a request is refused, so those of strangers are small: thousands of
    connections that each hold megabytes would take the memory."""
    tried = 0
    paths = gateway.application.api.openapi()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            is_json = "application/json" in operation.get("requestBody", {}).get("content", {})
            if not is_json or path in INGESTED:
                continue
            address = re.sub(r"{\w+}", "x", path)
            for key in (None, "tw_unknown"):
                status = status_of_part(gateway, method, address, key)
                assert status in (401, 413, 429), (method, path, status)
                tried += 1
    assert tried > 80
    assert status_of_part(gateway, "POST", "/mcp", None) in (401, 413)
    key = keys.add(gateway.ws, "owner").secret
    body = json.dumps({"method": "x" * 200_000})
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    reply = gateway.client.post("/api/agents/x/datasets", content=body, headers=headers)
    assert reply.status_code in (403, 422), "who is known may send more"


def test_who_may_not_do_it_has_no_body_read(gateway: GatewayWorld) -> None:
    """Megabytes of JSON take seconds of the event loop."""
    ensure_agent(gateway.ws, AGENT)
    key = keys.add(gateway.ws, "reads", agents=[AGENT], verbs=["read"]).secret
    for path in (f"/api/agents/{AGENT}/datasets", "/api/agents/another/feedback"):
        assert status_of_part(gateway, "POST", path, key) == 403
    allowed = keys.add(gateway.ws, "runs", agents=[AGENT], verbs=["read", "run"]).secret
    body = json.dumps({"method": "x" * 200_000})
    headers = {"content-type": "application/json", "authorization": f"Bearer {allowed}"}
    reply = gateway.client.post(f"/api/agents/{AGENT}/datasets", content=body, headers=headers)
    assert reply.status_code == 422


def web_token(gateway: GatewayWorld, **less: Any) -> dict[str, str]:
    """Headers with a token that the home's token was changed into."""
    reply = gateway.client.post("/api/web-tokens", json=less, headers=gateway.owner)
    return {"authorization": f"Bearer {reply.json()['token']}"}


def test_a_token_for_less_does_not_speak_as_the_homes_owner(tmp_path: Path) -> None:
    """The owner takes back everybody's words and moves an alias alone; a page that may rate does
    neither."""
    with opened_home(tmp_path / "home") as ws, running(ws) as gateway:
        trace = {"id": "t1", "input": "Where is it?", "output": "There."}
        gateway.client.post(f"/a/{AGENT}/api/traces", json=trace)
        word = {"id": "w1", "trace": "t1", "thumb": True, "rater": "carl"}
        gateway.client.post(f"/a/{AGENT}/api/feedback", json=word)
        drain_inbox(ws)
        with ws.db.read() as connection:
            word_id = connection.execute(sa.select(feedback.c.id)).scalar_one()
        page = web_token(gateway, agent=[AGENT], verb=["rate"])
        words = f"/api/agents/{AGENT}/feedback"
        body = {"target": "t1", "thumb": "down", "retracts": word_id}
        assert gateway.client.post(words, json=body, headers=page).status_code >= 400
        body = {"target": "t1", "thumb": "down"}
        assert gateway.client.post(words, json=body, headers=page).status_code == 200
        with ws.db.read() as connection:
            in_force = connection.execute(newest_words(Agent.named(AGENT).id)).scalars().all()
            senders = set(connection.execute(sa.select(feedback.c.sender)).scalars())
        assert word_id in in_force and "local" not in senders
        # a token for all that the owner may is the owner
        body = {"target": "t1", "thumb": "down", "retracts": word_id}
        assert gateway.client.post(words, json=body, headers=web_token(gateway)).status_code == 200


WORDS = f"/a/{AGENT}/api/feedback"


def say(gateway: GatewayWorld, token: str, content: bytes, **headers: str) -> int:
    """The status of the answer to a page with this token."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", **headers}
    return gateway.client.post(WORDS, content=content, headers=headers).status_code


def test_who_makes_up_a_feedback_token_fills_no_memory(gateway: GatewayWorld) -> None:
    """Whether a token holds is known when the body is read, so that bodies have to be small."""
    token = f"f2.99999999999.key_1.{'0' * 64}"
    row = {"trace": "t1", "thumb": True}
    large = json.dumps(row | {"comment": "x" * 100_000}).encode()
    bomb = gzip.compress(json.dumps(row | {"comment": "x" * (30 << 20)}).encode(), 9)
    assert len(bomb) < MOST_OF_PAGE
    assert say(gateway, token, large) == 413
    tracemalloc.start()
    status = say(gateway, token, bomb, **{"content-encoding": "gzip"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert status == 413 and peak < 8 << 20
    statuses = [say(gateway, token, json.dumps(row).encode()) for _ in range(80)]
    assert set(statuses) == {403, 429}


def test_a_page_says_little_and_in_no_other_source(gateway: GatewayWorld) -> None:
    reply = gateway.client.post(f"{WORDS}-tokens", json={"trace": "t1"})
    token = reply.json()["token"]
    row: dict[str, Any] = {"trace": "t1", "thumb": True}
    assert say(gateway, token, json.dumps(row | {"source": "langfuse"}).encode()) == 403
    target = {"trace": "t1", "source": "langfuse"}
    other: dict[str, Any] = {"target": target, "kind": "thumb", "value": True}
    assert say(gateway, token, json.dumps(other).encode()) == 403
    long = json.dumps(row | {"comment": "x" * MOST_OF_PAGE}).encode()
    assert say(gateway, token, long) == 413
    statuses = [say(gateway, token, json.dumps(row).encode()) for _ in range(PAGES_PER_MINUTE + 20)]
    assert statuses[0] == 202 and statuses[-1] == 429
    assert statuses.count(202) <= 2 * PAGES_PER_MINUTE  # the window slides
