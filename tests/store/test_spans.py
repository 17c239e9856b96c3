"""Spans that wait for their run, on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.capture import span_store
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.ingest import scope_of
from thumbwheel.capture.span_store import ABANDONED, QUIET, remove_spans, save_spans, settled_runs
from thumbwheel.capture.traces import list_traces
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.schema import steps
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment


@pytest.fixture
def spans_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path), Sources({}, "none", {})) as workspace:
        yield workspace


def row(run: int, span: int, parent: int | None = None) -> dict[str, Any]:
    prompt = '[{"role": "user", "content": "Hi"}]'
    return {
        "trace_id": f"{run:032x}",
        "span_id": f"{span:016x}",
        "parent_id": None if parent is None else f"{parent:016x}",
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": prompt},
    }


def save(ws: Workspace, *rows: dict[str, Any]) -> int:
    agent_id = scope_of(ws, "desk", "sdk").agent_id
    return ws.db.write(partial(save_spans, agent_id=agent_id, rows=rows))


def settled(ws: Workspace, later: timedelta = timedelta()) -> dict[str, int]:
    """The last digit of each run that is settled so much later -> its spans."""
    now = datetime.now(UTC) + later
    with ws.db.read() as connection:
        return {run.trace_id[-1]: len(run.spans) for run in settled_runs(connection, now, {})}


def test_a_run_is_settled_when_it_is_whole_and_quiet_or_abandoned(spans_ws: Workspace) -> None:
    assert save(spans_ws, row(1, 1), row(1, 2, 1), row(2, 3, 9)) == 3
    assert save(spans_ws, row(1, 2, 1)) == 0
    assert settled(spans_ws) == {}
    assert settled(spans_ws, QUIET + timedelta(seconds=60)) == {"1": 2}
    assert settled(spans_ws, ABANDONED + timedelta(seconds=60)) == {"1": 2, "2": 1}


def test_runs_that_wait_for_their_root_hold_up_no_other(
    spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_store, "MOST_TRACES", 3)
    save(spans_ws, *(row(run, run, 99) for run in range(1, 8)))
    save(spans_ws, row(9, 9))
    assert settled(spans_ws, QUIET + timedelta(seconds=60)) == {"9": 1}


def test_everything_is_everything(spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_store, "MOST_TRACES", 3)
    save(spans_ws, *(row(run, run, 99) for run in range(1, 9)))
    drain_inbox(spans_ws, everything=True)
    assert len(list_traces(spans_ws, "desk").traces) == 8
    with spans_ws.db.read() as connection:
        assert list(settled_runs(connection, datetime.now(UTC), {}, everything=True)) == []


def test_a_span_that_comes_while_its_run_is_stored_stays(spans_ws: Workspace) -> None:
    save(spans_ws, row(1, 1))
    with spans_ws.db.read() as connection:
        (run,) = settled_runs(connection, datetime.now(UTC), {}, everything=True)
    save(spans_ws, row(1, 2, 1))
    spans_ws.db.write(
        partial(remove_spans, agent_id=scope_of(spans_ws, "desk", "sdk").agent_id, run=run)
    )
    with spans_ws.db.read() as connection:
        (rest,) = settled_runs(connection, datetime.now(UTC), {}, everything=True)
    assert [span.span_id for span in rest.spans] == [f"{2:016x}"]


def spoken(span: int, second: int, answer: str, parent: int | None = None) -> dict[str, Any]:
    """A call of a model that began in that second."""
    call = row(1, span, parent)
    call["attributes"] |= {
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": answer}])
    }
    started_at = datetime(2026, 1, 5, 8, 0, second, tzinfo=UTC)
    return call | {"name": f"call {span}", "started_at": started_at.isoformat()}


def stored_answers(ws: Workspace) -> list[str]:
    query = sa.select(steps.c.output).order_by(steps.c.position)
    with ws.db.read() as connection:
        return list(connection.execute(query).scalars())


@pytest.mark.parametrize("judged", [False, True])
def test_spans_that_come_when_their_run_is_stored_become_steps_of_it(
    spans_ws: Workspace, judged: bool
) -> None:
    save(spans_ws, spoken(1, 0, "first"), spoken(3, 20, "third", 1))
    drain_inbox(spans_ws, everything=True)
    name = f"{1:032x}"
    if judged:
        judgement = {"type": "feedback", "agent": "desk", "kind": "thumb", "value": True}
        segment = Segment(spans_ws.home.inbox)
        line = judgement | {"target": {"step": [name, 1]}}
        segment.append(json.dumps(line).encode()).result()
        segment.close()
    save(spans_ws, spoken(2, 10, "second", 1), spoken(3, 20, "third", 1))
    drain_inbox(spans_ws, everything=True)
    order = ["first", "third", "second"] if judged else ["first", "second", "third"]
    assert stored_answers(spans_ws) == order

    # what was sent again changes nothing; what differs is set aside
    save(spans_ws, spoken(1, 0, "first"), spoken(2, 10, "second", 1))
    drain_inbox(spans_ws, everything=True)
    assert not (spans_ws.home.inbox / "rejected.jsonl").exists()
    save(spans_ws, spoken(2, 10, "something else", 1))
    drain_inbox(spans_ws, everything=True)
    assert "differs from what is stored" in (spans_ws.home.inbox / "rejected.jsonl").read_text()
    assert stored_answers(spans_ws) == order
    assert len(list_traces(spans_ws, "desk").traces) == 1
