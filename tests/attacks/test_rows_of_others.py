"""Rows that name rows of another agent by their ids, which nobody keeps secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.worlds.gateway_world import opened_home
from thumbwheel.capture.cases import add_case
from thumbwheel.capture.ingest import ingest
from thumbwheel.datasets.store import asked_traces
from thumbwheel.db.schema import cases, feedback_targets, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent


def import_lines(ws: Workspace, agent: str, folder: Path, *lines: dict[str, Any]) -> None:
    """Import lines for an agent."""
    path = folder / f"{agent}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(ws, agent, "jsonl", path)


def test_a_case_of_another_agent_is_no_case_of_a_trace(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:
        for agent in ("alpha", "beta"):
            ensure_agent(ws, agent)
        case = {"input": "The secret question?", "reference": "5", "checker": "exact_answer"}
        add_case(ws, "beta", "boss", **case)
        trace = {"type": "trace", "id": "t1", "input": "Where?", "output": "There."}
        import_lines(ws, "beta", tmp_path, trace)
        with ws.db.read() as connection:
            case_id = connection.execute(sa.select(cases.c.id)).scalar_one()
            trace_id = connection.execute(sa.select(traces.c.id)).scalar_one()
        import_lines(
            ws,
            "alpha",
            tmp_path,
            {**trace, "id": "own", "case": case_id, "parent": trace_id},
            {"type": "feedback", "target": {"trace": "own"}, "kind": "thumb", "value": True},
            {"type": "feedback", "target": {"trace": trace_id}, "kind": "thumb", "value": True},
        )
        with ws.db.read() as connection:
            (asked,) = asked_traces(connection, Agent.named("alpha").id)
            targets = connection.execute(sa.select(feedback_targets.c.target_id)).scalars().all()
        assert (asked.gold, asked.case_prompt_id) == (False, None)
        assert trace_id not in targets
