"""Who may rate takes the items of a queue in many names, and rates none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.capture.ingest import ingest
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.review import store
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.types import Queue, QueueConfig

ITEMS = 300
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def home_of_answers(tmp_path: Path) -> Iterator[Workspace]:
    lines = [{"type": "trace", "id": f"t{n}", "input": f"q{n}", "output": ""} for n in range(ITEMS)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with opened_home(tmp_path / "home") as ws:
        ingest(ws, AGENT, "jsonl", path)
        yield ws


def leased_queue(ws: Workspace) -> Queue:
    """A queue all of whose items are held, a hundred by each of many names."""
    agent = Agent.named(AGENT)
    queue = create(ws, agent, "q", QueueConfig(overlap=2), QueueSelection())
    for number in range(2 * ITEMS // 100):
        assert len(next_items(ws, queue, f"r{number}", 100, NOW).items) == 100
    assert not next_items(ws, queue, "nobody", 1, NOW).items
    return queue


def test_expired_leases_are_not_released_by_statements_a_lease(home_of_answers: Workspace) -> None:
    """Everybody's writes would wait for them."""
    queue = leased_queue(home_of_answers)
    statements: list[str] = []

    def count(*arguments: Any) -> None:
        statements.append(arguments[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        batch = next_items(home_of_answers, queue, "last", 1, LATER)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert len(batch.items) == 1
    assert len(statements) < 100


def test_a_request_releases_so_many_leases_and_the_next_one_more(
    home_of_answers: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queue(home_of_answers)
    monkeypatch.setattr(store, "MOST_RELEASED", 250)
    handed_out: set[str] = set()
    for name in ("a", "b", "c", "d", "e", "f"):
        items = next_items(home_of_answers, queue, name, 100, LATER).items
        assert len(items) == 100
        handed_out |= {item.id for item in items}
    assert len(handed_out) == ITEMS
    assert not next_items(home_of_answers, queue, "g", 1, LATER).items
