"""Lists of traces: what their calls took together, how many match, and which are asked by id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import count_matching, list_traces
from thumbwheel.db.workspace import Workspace

AGENT = "support"


def fill(ws: Workspace, folder: Path) -> None:
    """Ten traces of two sessions; the first has two calls, with tags and a thumb."""
    call: dict[str, Any] = {"kind": "llm", "started_at": "2026-11-20T09:30:00Z"}
    first = call | {"ended_at": "2026-11-20T09:30:01Z", "tokens": {"prompt": 10, "completion": 2}}
    second = call | {"ended_at": "2026-11-20T09:30:04Z", "tokens": {"prompt": 30}}
    lines: list[dict[str, Any]] = []
    for number in range(10):
        trace = {"type": "trace", "id": f"t{number}", "session": f"s{number % 2}"}
        lines.append(trace | {"input": f"Question {number}", "output": "Yes."})
    lines[0]["steps"] = [first, second]
    about = {"type": "feedback", "target": {"trace": "t0"}, "rater": "ann"}
    lines.append(about | {"kind": "thumb", "value": True})
    lines.append(about | {"kind": "label", "name": "rude", "value": True})
    lines.append(about | {"kind": "label", "name": "topic", "value": "order"})
    file = folder / "traces.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(ws, AGENT, "jsonl", file)


def test_a_row_adds_up_its_calls(empty_ws: Workspace, tmp_path: Path) -> None:
    fill(empty_ws, tmp_path)
    by_name = {trace.external_id: trace for trace in list_traces(empty_ws, AGENT).traces}
    first, other = by_name["t0"], by_name["t1"]
    assert (first.seconds, first.prompt_tokens, first.completion_tokens) == (4.0, 40, 2)
    assert first.cost is None, "nobody said a price"
    assert first.tags == ("rude",)
    assert (other.seconds, other.prompt_tokens, other.tags) == (None, None, ())


def test_matches_are_counted_up_to_a_bound(empty_ws: Workspace, tmp_path: Path) -> None:
    fill(empty_ws, tmp_path)
    assert count_matching(empty_ws, AGENT, TraceFilter(session="s0"), 100) == 5
    assert count_matching(empty_ws, AGENT, TraceFilter(rated=False), 100) == 9
    assert count_matching(empty_ws, AGENT, TraceFilter(), 4) == 4
    for searched in (TraceFilter(text="Question"), TraceFilter(judged=Judged.GOOD)):
        assert count_matching(empty_ws, AGENT, searched, 100) is None


def test_traces_are_listed_by_their_ids(empty_ws: Workspace, tmp_path: Path) -> None:
    fill(empty_ws, tmp_path)
    chosen = [trace.id for trace in list_traces(empty_ws, AGENT).traces][2:4]
    listed = list_traces(empty_ws, AGENT, TraceFilter(trace_ids=(*chosen, "trc_unknown"))).traces
    assert [trace.id for trace in listed] == chosen
