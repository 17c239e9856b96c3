"""A short request with a new idempotency key each time, and a long answer that is stored for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.capture.ingest import ingest
from thumbwheel.db.schema import request_keys
from thumbwheel.models.types import Agent
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.types import QueueConfig
from thumbwheel.server.api import request_keys as stored_answers

OF_AGENT = f"/api/agents/{AGENT}"


def add_trace(world: GatewayWorld, folder: Path, output: str) -> None:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"type": "trace", "id": "t1", "input": "q", "output": output}))
    ingest(world.ws, AGENT, "jsonl", path)


def stored_bytes(world: GatewayWorld) -> int:
    with world.ws.db.read() as connection:
        answers = connection.execute(sa.select(request_keys.c.answer)).scalars()
        return sum(len(json.dumps(answer)) for answer in answers)


def test_items_that_are_handed_out_are_not_stored_again(
    gateway: GatewayWorld, tmp_path: Path
) -> None:
    add_trace(gateway, tmp_path, "x" * 5_000)
    create(gateway.ws, Agent.named(AGENT), "q", QueueConfig(), QueueSelection())
    handed_out = []
    for number in range(5):
        headers = gateway.owner | {"idempotency-key": f"k{number}"}
        reply = gateway.client.post(
            f"{OF_AGENT}/queues/q/next", json={"rater": "r"}, headers=headers
        )
        assert reply.status_code == 200 and len(reply.content) > 5_000, reply.text
        handed_out += [item["id"] for item in reply.json()["items"]]
    assert len(handed_out) == 5 and len(set(handed_out)) == 1
    assert stored_bytes(gateway) == 0


def test_a_long_answer_is_not_stored_and_its_request_not_repeated(
    gateway: GatewayWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trace(gateway, tmp_path, "x")
    monkeypatch.setattr(stored_answers, "MOST_STORED", 10)
    headers = gateway.owner | {"idempotency-key": "k"}
    body = {"target": "t1", "thumb": "down", "rater": "ann"}
    first = gateway.client.post(f"{OF_AGENT}/feedback", json=body, headers=headers)
    assert first.status_code == 200, first.text
    again = gateway.client.post(f"{OF_AGENT}/feedback", json=body, headers=headers)
    assert again.status_code == 409
    assert "was carried out with status 200" in again.json()["why"]
    listed = gateway.client.get(f"{OF_AGENT}/feedback", headers=gateway.owner).json()
    assert len(listed) == 1
    other = gateway.client.post(
        f"{OF_AGENT}/feedback", json=body | {"thumb": "up"}, headers=headers
    )
    assert other.status_code == 422 and "other parameters" in other.text
