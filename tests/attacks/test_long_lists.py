"""An app that sends rows of megabytes, packed to a few bytes, and then asks for a list of them."""

from __future__ import annotations

from typing import Any

import pytest

from thumbwheel.capture.feedback import add_feedback, list_feedback
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import list_traces
from thumbwheel.db import page_content
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.models.versions import require_agent
from thumbwheel.review import hand_out
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import add_or_create

AGENT = "desk"
COUNT = 12
LONG = "x" * 4_000
ROOM = 10_000
"""Characters of a page here: a trace with its feedback, or two pieces of feedback."""


@pytest.fixture
def long_rows(empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Traces with long questions, answers, steps and comments."""
    for number in range(COUNT):
        row: dict[str, Any] = {
            "type": "trace",
            "id": f"t{number:02}",
            "input": f"{number} {LONG[:500]}",
            "output": f"{number} {LONG[:3_000]}",
            "metadata": {"note": LONG},
        }
        item = SOURCE.item(number + 1, row, "")
        assert isinstance(item, Line), item
        save(empty_ws, scope_of(empty_ws, AGENT, "sdk"), [item])
        comment = f"{number} {LONG}"
        add_feedback(empty_ws, AGENT, row["id"], "thumb", True, rater="ann", comment=comment)
    monkeypatch.setattr(page_content, "MOST_CONTENT", ROOM)
    monkeypatch.setattr(hand_out, "MOST_CONTENT", ROOM)
    return empty_ws


@pytest.mark.parametrize(
    "wanted", [TraceFilter(), TraceFilter(text="xxx"), TraceFilter(judged=Judged.GOOD)]
)
def test_a_page_of_traces_ends_at_its_content(long_rows: Workspace, wanted: TraceFilter) -> None:
    sizes, names, after = [], [], None
    while True:
        page = list_traces(long_rows, AGENT, wanted, limit=1000, after=after)
        sizes.append(len(page.traces))
        names += [trace.external_id for trace in page.traces]
        after = page.after
        if after is None:
            break
    assert max(sizes) == 1, sizes
    assert names == [f"t{number:02}" for number in reversed(range(COUNT))]


def test_a_page_of_feedback_ends_at_its_content(long_rows: Workspace) -> None:
    names: list[str] = []
    after = None
    while page := list_feedback(long_rows, AGENT, limit=1000, after=after):
        assert len(page) <= 2
        names += [row["targets"][0]["external_id"] for row in page]
        after = page[-1]["id"]
    assert names == [f"t{number:02}" for number in reversed(range(COUNT))]


def test_a_row_longer_than_a_page_is_a_page(
    long_rows: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_content, "MOST_CONTENT", 10)
    assert len(list_traces(long_rows, AGENT, limit=1000).traces) == 1
    assert len(list_feedback(long_rows, AGENT, limit=1000)) == 1


def test_a_rater_gets_as_many_items_as_a_page_has_room_for(long_rows: Workspace) -> None:
    names = [f"t{number:02}" for number in range(COUNT)]
    queue, _ = add_or_create(long_rows, require_agent(long_rows, AGENT), "all", names)
    items = next_items(long_rows, queue, "bea", 100).items
    assert 1 < len(items) < COUNT
    again = next_items(long_rows, queue, "bea", 100).items
    assert [item.id for item in again] == [item.id for item in items], "they are held"
