"""Traces that are kept out of datasets: with a reason, all or none, and taken in again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.capture.exclusion import exclude, readmit
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.traces import show_trace
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent

AGENT = Agent.named("support")


def fill(ws: Workspace, folder: Path) -> None:
    """Twelve rated traces; the last one is held out by its app."""
    lines: list[dict[str, Any]] = []
    for number in range(12):
        trace = {"type": "trace", "id": f"t{number}", "input": f"Where is order {number}?"}
        lines.append(trace | {"output": f"Order {number} is on its way to you."})
        thumb = {"type": "feedback", "kind": "thumb", "target": {"trace": f"t{number}"}}
        lines.append(thumb | {"value": number % 2 == 0, "rater": f"person-{number}"})
    lines[-2]["metadata"] = {"is_validation_data": True, "shop": "Ulm"}
    file = folder / "rated.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(ws, AGENT.slug, "jsonl", file)


def rows(ws: Workspace) -> int:
    return sum(build(ws, AGENT.slug, "labels", DatasetConfig()).counts.values())


def test_an_excluded_trace_is_in_no_dataset_until_it_is_taken_in_again(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    fill(empty_ws, tmp_path)
    before = rows(empty_ws)
    excluded = exclude(empty_ws, AGENT, ["t3", "t11", "t3"], "a test of ours", "ann")
    assert len(excluded.traces) == 2
    exclude(empty_ws, AGENT, ["t11"], "a test of ours, twice", "ben")
    assert rows(empty_ws) == before - 2
    metadata = show_trace(empty_ws, AGENT.slug, "t11")["metadata"]
    assert metadata["thumbwheel_exclusion"]["reason"] == "a test of ours, twice"
    assert metadata["thumbwheel_exclusion"]["by"] == "ben"
    assert len(readmit(empty_ws, AGENT, ["t3", "t11", "t4"]).traces) == 2
    assert rows(empty_ws) == before
    held_out = show_trace(empty_ws, AGENT.slug, "t11")["metadata"]
    assert held_out == {"is_validation_data": True, "shop": "Ulm"}
    assert show_trace(empty_ws, AGENT.slug, "t3")["metadata"] is None


def test_an_exclusion_takes_a_reason_and_traces_that_are_there(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    fill(empty_ws, tmp_path)
    before = rows(empty_ws)
    with pytest.raises(InputError, match="0 characters"):
        exclude(empty_ws, AGENT, ["t1"], "  ", "ann")
    with pytest.raises(NotFound, match="t99"):
        exclude(empty_ws, AGENT, ["t1", "t99"], "a test of ours", "ann")
    assert rows(empty_ws) == before, "all or none"
