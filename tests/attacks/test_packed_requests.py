"""A packed request that unpacks a thousandfold fills the disk: 398 KB were 405 MB of rows."""

from __future__ import annotations

import gzip
import json
import uuid
from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, GatewayWorld

MEBIBYTE = 2**20


def post_packed(gateway: GatewayWorld, path: str, value: Any) -> Any:
    headers = {
        **gateway.owner,
        "content-type": "application/json",
        "content-encoding": "gzip",
    }
    content = gzip.compress(json.dumps(value).encode(), 9)
    return gateway.client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_of_a_bomb_are_refused(gateway: GatewayWorld, rows: int) -> None:
    text = "a" * (8 * MEBIBYTE // rows)
    bomb = [{"agent": AGENT, "id": f"t{n}", "input": "Hi", "output": text} for n in range(rows)]
    reply = post_packed(gateway, "/api/traces", bomb)
    assert reply.status_code == 413 and "that a body of its size may" in reply.text
    assert "send it unpacked" in reply.json()["fix"]


def test_a_call_that_is_a_bomb_is_refused(gateway: GatewayWorld) -> None:
    messages = [{"role": "user", "content": "a" * 8 * MEBIBYTE}]
    reply = post_packed(gateway, "/v1/chat/completions", {"model": AGENT, "messages": messages})
    assert reply.status_code == 413 and "that one of its size may" in reply.text


def test_rows_with_one_system_prompt_are_taken(gateway: GatewayWorld) -> None:
    system = {"role": "system", "content": "You are helpful. " * 120}
    rows = [
        {
            "agent": AGENT,
            "id": uuid.uuid4().hex,
            "input": [system, {"role": "user", "content": f"Question {number}?"}],
            "output": f"Answer {number}.",
        }
        for number in range(300)
    ]
    assert post_packed(gateway, "/api/traces", rows).status_code == 202
