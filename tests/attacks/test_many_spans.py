"""Runs of OpenTelemetry with thousands of spans: agents that call each other, spans whose parents
never come, and spans that come one by one and late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.capture import span_store, store
from thumbwheel.capture.inbox import REJECTED, drain_inbox
from thumbwheel.capture.ingest import scope_of
from thumbwheel.capture.span_store import QUIET, save_spans, settled_runs
from thumbwheel.capture.traces import list_traces
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.otlp import assemble
from thumbwheel.importers.otlp.span import Span

PROMPT = '[{"role": "user", "content": "Hi"}]'


@pytest.fixture
def spans_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path), Sources({}, "none", {})) as workspace:
        yield workspace


def row(
    span: int, parent: int | None = None, operation: str = "chat", run: int = 1, minute: int = 0
) -> dict[str, Any]:
    """A span as the server spools it."""
    started_at = datetime(2026, 1, 5, 8, minute, tzinfo=UTC) + timedelta(milliseconds=span)
    return {
        "trace_id": f"{run:032x}",
        "span_id": f"{span + 1:016x}",
        "parent_id": None if parent is None else f"{parent + 1:016x}",
        "name": f"span {span}",
        "attributes": {"gen_ai.operation.name": operation, "gen_ai.input.messages": PROMPT},
        "started_at": started_at.isoformat(),
    }


def save(ws: Workspace, *rows: dict[str, Any]) -> None:
    agent_id = scope_of(ws, "desk", "sdk").agent_id
    ws.db.write(partial(save_spans, agent_id=agent_id, rows=rows))


def n_steps(ws: Workspace) -> int:
    with ws.db.read() as connection:
        query = sa.select(sa.func.count()).select_from(schema.steps)
        return int(connection.execute(query).scalar_one())


def test_agents_that_call_each_other_a_thousand_deep_hold_up_nobody(spans_ws: Workspace) -> None:
    depth = 1_500
    chain = [row(1, None, "invoke_agent")]
    for number in range(2, 2 * depth, 2):
        chain.append(row(number, number - 1, "chat"))
        chain.append(row(number + 1, number - 1, "invoke_agent"))
    save(spans_ws, *chain)
    save(spans_ws, row(1, run=2))
    drain_inbox(spans_ws, everything=True)
    with spans_ws.db.read() as connection:
        query = sa.select(sa.func.count()).select_from(schema.traces)
        assert connection.execute(query).scalar_one() >= depth
    assert list_traces(spans_ws, "desk").traces


def test_a_run_that_cannot_be_put_together_holds_up_no_other(
    spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = span_store.records_of

    def failing(spans: Any) -> Any:
        if spans[0].trace_id.endswith("1"):
            raise RecursionError("too deep")
        return original(spans)

    monkeypatch.setattr(span_store, "records_of", failing)
    save(spans_ws, row(1), row(1, run=2))
    drain_inbox(spans_ws, everything=True)
    assert len(list_traces(spans_ws, "desk").traces) == 1
    assert "too deep" in (spans_ws.home.inbox / REJECTED).read_text()
    with spans_ws.db.read() as connection:
        assert connection.execute(sa.select(schema.waiting_spans)).first() is None


@pytest.mark.parametrize("operation", ["chat", "invoke_agent", "execute_tool"])
def test_spans_are_not_compared_with_each_other(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(span: Span, other: object) -> bool:
        raise AssertionError("two spans are compared")

    monkeypatch.setattr(Span, "__eq__", compared)
    spans = [span_store.span_of_row(row(n, 99_999, operation)) for n in range(200)]
    spans += [span_store.span_of_row(row(200 + n, n, operation)) for n in range(200)]
    spans.append(span_store.span_of_row(row(1_000, 1)))
    assert assemble.runs_of(spans)


def test_an_incomplete_run_is_read_again_when_more_of_it_came(
    spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read = 0
    original = span_store.span_of_row

    def counted(content: Any) -> Span:
        nonlocal n_read
        n_read += 1
        return original(content)

    save(spans_ws, *(row(number, 9_999) for number in range(300)))
    monkeypatch.setattr(span_store, "span_of_row", counted)
    incomplete: dict[tuple[str, str], datetime] = {}
    later = datetime.now(UTC) + QUIET + timedelta(seconds=1)

    def read_all() -> int:
        nonlocal n_read
        n_read = 0
        with spans_ws.db.read() as connection:
            assert list(settled_runs(connection, later, incomplete)) == []
        return n_read

    assert [read_all() for _ in range(3)] == [300, 0, 0]
    n_read = 0
    save(spans_ws, row(300, 9_999))
    assert n_read == 1  # beside the three hundred that wait
    later += timedelta(seconds=5)
    assert read_all() == 301


def test_a_run_that_never_ends_becomes_a_trace_and_grows_no_more(
    spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_store, "MOST_SPANS", 20)
    monkeypatch.setattr(store, "MOST_STEPS", 30)
    for start in range(0, 60, 20):
        save(spans_ws, *(row(number, 9_999) for number in range(start, start + 20)))
        now = datetime.now(UTC)  # nobody waits until it is quiet
        with spans_ws.db.read() as connection:
            assert len(list(settled_runs(connection, now, {}))) == 1
        drain_inbox(spans_ws, everything=True)
    assert n_steps(spans_ws) == 40
    assert "differs from what is stored" in (spans_ws.home.inbox / REJECTED).read_text()


def test_late_steps_move_no_thousands_of_others(
    spans_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_MOVED", 10)
    save(spans_ws, *(row(number, 9_999, minute=1) for number in range(20)))
    drain_inbox(spans_ws, everything=True)
    n_written = 0
    original = store.insert_rows

    def counted(connection: Any, table: Any, rows: Any) -> None:
        nonlocal n_written
        n_written += len(rows) if table is schema.steps else 0
        original(connection, table, rows)

    monkeypatch.setattr(store, "insert_rows", counted)
    save(spans_ws, row(100, 9_999, minute=0))
    drain_inbox(spans_ws, everything=True)
    assert (n_steps(spans_ws), n_written) == (21, 1)
    with spans_ws.db.read() as connection:
        positions = connection.execute(sa.select(schema.steps.c.position)).scalars().all()
    assert sorted(positions) == list(range(21))
