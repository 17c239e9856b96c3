"""Searches for more than a database looks for: they are refused as bad requests, and not answered
with the database's own words, which name its file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.models.versions import ensure_agent


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("traces", {"text": "a" * 60_000}),
        ("traces", {"text": "é" * 9_000}),
        ("data-plan", {"tag": ["a" * 60_000]}),
        ("data-plan", {"without_tag": ["a" * 60_000]}),
        ("data-plan", {"tag": [f"t{number}" for number in range(3_000)]}),
        ("data-plan", {"without_tag": [f"t{number}" for number in range(3_000)]}),
    ],
)
def test_a_search_for_too_much_is_a_bad_request(
    gateway: GatewayWorld, path: str, query: dict[str, Any]
) -> None:
    ensure_agent(gateway.ws, AGENT)
    url = f"/api/agents/{AGENT}/{path}"
    reply = gateway.client.get(url, params=query, headers=gateway.owner)
    assert reply.status_code == 422
    assert str(gateway.ws.home.path) not in reply.text
