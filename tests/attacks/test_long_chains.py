"""Chains of thousands of traces, statements and turns that belong to one person: they are erased
whole, and each link is read a few times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.capture.ingest import ingest
from thumbwheel.db import stored_rows
from thumbwheel.db.schema import feedback, messages, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.models.types import Agent
from thumbwheel.report import store

Row = dict[str, Any]
SUBJECT = "ann"


def trace(name: str, **more: Any) -> Row:
    return {"type": "trace", "id": name, "input": f"Question {name}?", "output": "Yes.", **more}


def statement(number: int, **more: Any) -> Row:
    row = {"type": "feedback", "id": f"f{number}", "kind": "thumb", "value": True, "rater": "bob"}
    return {**row, "target": {"trace": "t0"}, **more}


def nested_traces(count: int) -> list[Row]:
    """Traces that call each other; the first says whose they are."""
    first = trace("t0", subject=SUBJECT)
    return [first, *(trace(f"t{n}", parent=f"t{n - 1}") for n in range(1, count))]


def sessions_in_turn(count: int) -> list[Row]:
    """Traces of sessions of which each has one that is called from the session before."""
    rows = [trace("t0", subject=SUBJECT, session="s0")]
    for number in range(1, count):
        parent, session = f"t{number - 1}", f"s{number}"
        rows.append(trace(f"t{number}", parent=parent, session=session))
        rows.append(trace(f"u{number}", session=session))
    return rows


def statements_in_turn(count: int) -> list[Row]:
    """Statements about somebody else's traces that each replace the one before."""
    rows = [trace("t0", subject=SUBJECT), trace("other", subject="carl"), statement(0)]
    for number in range(1, count):
        about = {"target": {"trace": "other"}, "supersedes": f"f{number - 1}"}
        rows.append(statement(number, **about))
    return rows


def long_conversation(count: int) -> list[Row]:
    """One conversation of as many turns."""
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": f"turn {n}"} for n in range(2 * count + 1)]
    return [trace("t0", subject=SUBJECT) | {"input": turns}]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many keys are looked for in the tables."""
    counts = [0]
    original = stored_rows.select

    def select(connection: Any, columns: Any, key: Any, wanted: Any, *where: Any) -> Any:
        keys = list(wanted)
        counts[0] += len(keys)
        return original(connection, columns, key, keys, *where)

    monkeypatch.setattr(store, "select", select)
    yield counts
    monkeypatch.setattr(store, "select", original)


def n_rows(ws: Workspace) -> list[int]:
    """Of traces, feedback and messages."""
    with ws.db.read() as connection:
        queries = [sa.select(sa.func.count()).select_from(t) for t in (traces, feedback, messages)]
        return [int(connection.execute(query).scalar_one()) for query in queries]


def n_looked_for(folder: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many keys are looked for to say what an erasure would take."""
    folder.mkdir()
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with opened_home(folder / "home") as ws:
        ingest(ws, AGENT, "jsonl", path)
        with counted(monkeypatch) as counts:
            erase(ws, Agent.named(AGENT), SUBJECT, dry_run=True)
        erase(ws, Agent.named(AGENT), SUBJECT)
        n_traces, n_feedback, n_messages = n_rows(ws)
    assert n_feedback == 0
    assert n_traces == n_messages <= 1
    return counts[0]


@pytest.mark.parametrize(
    "shape", [nested_traces, sessions_in_turn, statements_in_turn, long_conversation]
)
def test_each_link_of_a_chain_is_read_a_few_times(
    shape: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = n_looked_for(tmp_path / "once", shape(30), monkeypatch)
    twice = n_looked_for(tmp_path / "twice", shape(60), monkeypatch)
    assert twice <= 2.1 * once + 20
