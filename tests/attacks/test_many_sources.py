"""Feedback about traces that never come, and traces of many sources: rows of an app may name any
source, and the target of feedback is also looked for in others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.capture import store
from thumbwheel.capture.inbox import Drainer, drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment
from thumbwheel.sdk.spool_files import take_files

Row = dict[str, Any]


@pytest.fixture
def waiting_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path), Sources({}, "none", {})) as workspace:
        yield workspace


def spool(ws: Workspace, *rows: Row) -> None:
    """Put rows into the inbox as the server does."""
    segment = Segment(ws.home.inbox)
    lines = [json.dumps({"agent": "desk", **row}).encode() for row in rows]
    segment.append_all(lines).result()
    segment.close()


def trace(name: str, **more: Any) -> Row:
    return {"type": "trace", "id": name, "input": "Hi", "output": "Ho", **more}


def thumb(name: str, number: int, step: int | None = None) -> Row:
    about: Row = {"trace": name} if step is None else {"step": [name, step]}
    row = {"type": "feedback", "id": f"f{number}", "kind": "thumb", "value": True}
    return {**row, "rater": f"r{number}", "target": about}


def n_linked(ws: Workspace) -> int:
    query = sa.select(sa.func.count()).select_from(schema.feedback_targets)
    with ws.db.read() as connection:
        linked = query.where(schema.feedback_targets.c.target_id.is_not(None))
        return int(connection.execute(linked).scalar_one())


def test_targets_are_looked_for_in_few_sources(
    waiting_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        spool(waiting_ws, trace(f"t{number}", source=f"source {number}"))
    spool(waiting_ws, *(thumb(f"never {number}", number) for number in range(200)))
    n_targets = 0
    original = store._target

    def counted(*arguments: Any) -> Any:
        nonlocal n_targets
        n_targets += 1
        return original(*arguments)

    monkeypatch.setattr(store, "_target", counted)
    drain_inbox(waiting_ws)
    assert n_targets <= 200 * (store.MOST_SOURCES + 2)


def test_what_waits_is_not_read_again_for_everything_that_comes(
    waiting_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looked_at: list[int] = []
    original = store.waiting_for_other_sources

    def counted(*arguments: Any) -> list[str]:
        feedback_ids = original(*arguments)
        n_looked_at.append(len(feedback_ids))
        return feedback_ids

    monkeypatch.setattr(store, "waiting_for_other_sources", counted)
    spool(waiting_ws, trace("t1", source="a"), trace("t2", source="b"))
    spool(waiting_ws, *(thumb("late", number) for number in range(50)))
    drain = Drainer(waiting_ws)._drain

    def drained(*rows: Row) -> int:
        spool(waiting_ws, *rows)
        for path in take_files(waiting_ws.home.inbox):
            assert drain.drain(path)
        drain.link()
        return n_looked_at[-1]

    assert drained() == 50  # the first time, also what an earlier process left
    assert drained(trace("t3")) == 0
    assert drained(thumb("late", 51)) == 1
    assert n_linked(waiting_ws) == 0
    assert drained(trace("late", source="a")) == 51
    assert n_linked(waiting_ws) == 51
    # two sources have one of that name, and it means neither
    assert drained(trace("torn", source="a"), trace("torn", source="b")) == 0
    assert drained(thumb("torn", 52)) == 1
    assert drained(trace("torn", source="c")) == 0
    assert n_linked(waiting_ws) == 51


def test_an_import_that_is_repeated_reads_what_its_own_raters_said(
    waiting_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [trace("t0")]
    for number in range(300):
        row = thumb("t0", number)
        del row["id"]
        rows.append(row)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ingest(waiting_ws, "desk", "jsonl", path)
    n_read = 0
    original = store._select

    def counted(connection: Any, key: Any, wanted: Any, *columns: Any) -> Iterator[Any]:
        nonlocal n_read
        for stored_row in original(connection, key, wanted, *columns):
            n_read += key is schema.feedback_targets.c.feedback_id
            yield stored_row

    monkeypatch.setattr(store, "_select", counted)
    report = ingest(waiting_ws, "desk", "jsonl", path)
    assert report.duplicates == 301
    assert n_read == 300


def test_of_a_trace_with_thousands_of_steps_those_are_read_that_are_judged(
    waiting_ws: Workspace,
) -> None:
    steps = [{"kind": "tool", "name": "t", "output": f"x{number}"} for number in range(3_000)]
    spool(waiting_ws, trace("t1", steps=steps))
    drain_inbox(waiting_ws)
    n_statements = 0

    def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal n_statements
        if "FROM steps" in statement:
            n_statements += 1
            assert "steps.position IN" in statement

    sa.event.listen(sa.engine.Engine, "after_cursor_execute", count)
    try:
        spool(waiting_ws, thumb("t1", 1, step=2_999), thumb("t1", 2, step=3_000))
        drain_inbox(waiting_ws)
    finally:
        sa.event.remove(sa.engine.Engine, "after_cursor_execute", count)
    assert n_statements
    assert n_linked(waiting_ws) == 1
