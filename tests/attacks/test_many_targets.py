"""Rankings of 256 answers each: 39 KB of them were 320,000 rows, and everybody's writes waited."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.capture import inbox, ingest
from thumbwheel.importers.sources.jsonl import SOURCE

TARGETS = 250
"""Targets of a ranking here, so that four of them end a batch."""


def rankings(count: int, targets: int) -> list[dict[str, Any]]:
    """Rows that find all the same answers equally good."""
    names = [{"trace": f"t{number}"} for number in range(targets)]
    tie = {"ranking": [list(range(targets))]}
    return [
        {
            "type": "feedback",
            "agent": AGENT,
            "kind": "preference",
            "value": tie,
            "targets": names,
            "rater": f"r{number}",
        }
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "targets", "status"), [(4, 252, 202), (4, 254, 413)])
def test_a_request_has_so_many_targets(
    gateway: GatewayWorld, count: int, targets: int, status: int
) -> None:
    rows = rankings(count, targets)
    reply = gateway.client.post("/api/feedback", json=rows, headers=gateway.owner)
    assert reply.status_code == status, reply.text
    if status == 413:
        assert "it has 1,008 targets; 1,000 are the most" in reply.json()["why"]


def test_pairs_are_as_many_as_other_rows(gateway: GatewayWorld) -> None:
    reply = gateway.client.post("/api/feedback", json=rankings(2_000, 2), headers=gateway.owner)
    assert reply.status_code == 202, reply.text


def test_a_transaction_ends_at_so_many_targets() -> None:
    """Everybody waits for it; lines that are in the inbox already may have any number."""
    lines = [json.dumps(row) for row in rankings(10, TARGETS)]
    file = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    assert [len(batch) for batch in inbox._batches(file)] == [4, 4, 2]
    rows = [row | {"id": str(n)} for n, row in enumerate(rankings(10, TARGETS))]
    items = iter(
        [SOURCE.item(n, {k: row[k] for k in row if k != "agent"}, "") for n, row in enumerate(rows)]
    )
    assert [len(batch) for batch, _ in ingest._batches(items)] == [4, 4, 2]
