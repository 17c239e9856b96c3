"""The collector: files in day folders with the listed keys, labels, statistics, and the same run in
the home's inbox."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
from tests.command_line import Run
from thumbwheel.compat.isaa import ExecutionTrace, TraceCollector
from thumbwheel.models.types import Agent

KEYS = [
    "trace_id",
    "session_id",
    "timestamp",
    "user_query",
    "tool_calls",
    "reasoning_steps",
    "tasks_created",
    "tasks_completed",
    "tasks_failed",
    "final_response",
    "total_tokens_in",
    "total_tokens_out",
    "total_cost",
    "execution_duration_ms",
    "llm_calls_count",
    "label",
    "reward_score",
    "manual_review",
    "review_notes",
]


@pytest.fixture
def app_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(
    collector: TraceCollector, query: str = "hi", tools: int = 1, **totals: Any
) -> ExecutionTrace:
    collector.start_trace("s1", query)
    for _ in range(tools):
        collector.record_tool_call("search", {"q": query}, "x" * 3000, True, 12.5)
    collector.record_reasoning_step("internal_reasoning", "y" * 2000, 0.5, ["a"], [])
    collector.record_task({"task_id": "t", "type": "LLMTask", "description": "z" * 900}, "created")
    collector.record_task(
        {"task_id": "t", "type": "LLMTask", "description": "z", "error": "e" * 900}, "failed"
    )
    return collector.finish_trace("ho", **totals)


def test_a_file_has_the_listed_keys_in_a_folder_of_its_day(app_home: Path) -> None:
    collector = TraceCollector()
    trace = record(collector, "Grüße", total_tokens_in=3, total_cost=0.5)
    path = app_home / "rl_traces" / f"{datetime.now():%Y-%m-%d}" / f"{trace.trace_id}.json"
    text = path.read_text(encoding="utf-8")
    stored = json.loads(text)
    assert list(stored) == KEYS == [field.name for field in fields(ExecutionTrace)][:-1]
    assert "Grüße" in text and "\n  " in text
    (call,) = stored["tool_calls"]
    assert list(call) == [
        "tool_name",
        "arguments",
        "result",
        "success",
        "duration_ms",
        "error",
        "timestamp",
    ]
    assert (len(call["result"]), call["arguments"]) == (2000, {"q": "Grüße"})
    assert [
        len(stored["reasoning_steps"][0]["content"]),
        len(stored["tasks_created"][0]["description"]),
    ] == [1000, 500]
    assert len(stored["tasks_failed"][0]["error"]) == 500
    assert (
        stored["total_tokens_in"],
        stored["total_tokens_out"],
        stored["total_cost"],
        stored["llm_calls_count"],
    ) == (3, None, 0.5, None)
    assert list(path.parent.iterdir()) == [path]


def test_with_an_agent_the_run_is_a_trace_of_it_too(app_home: Path) -> None:
    from thumbwheel.app.open import opener
    from thumbwheel.capture.feedback import list_feedback
    from thumbwheel.db.schema import steps, traces

    collector = TraceCollector(agent="desk")
    outer = collector.start_trace("s1", "outer")
    inner = record(collector, "inner", total_tokens_in=3, total_tokens_out=4)
    collector.finish_trace("done")
    collector.label_trace(inner.trace_id, False, "wrong shelf")
    with opener(app_home, None, "warning")() as ws, ws.db.read() as connection:
        rows = {row["external_id"]: row for row in connection.execute(traces.select()).mappings()}
        kinds = [
            row["kind"]
            for row in connection.execute(steps.select().order_by(steps.c.position)).mappings()
            if row["trace_id"] == rows[inner.trace_id]["id"]
        ]
        (feedback_rows,) = list_feedback(ws, "desk")
    assert rows[inner.trace_id]["parent_id"] == rows[outer.trace_id]["id"]
    assert rows[inner.trace_id]["output"] == "ho"
    assert kinds == ["reasoning", "tool", "task", "task", "llm"]
    assert (
        feedback_rows["kind"],
        feedback_rows["value"],
        feedback_rows["targets"][0]["target_id"],
    ) == (
        "thumb",
        False,
        rows[inner.trace_id]["id"],
    )


def test_secrets_stand_neither_in_the_file_nor_in_the_home_and_one_label_is_one_voice(
    app_home: Path,
) -> None:
    from thumbwheel.app.open import opener
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.rewards.label import judgements

    folder = app_home.parent / "rl_traces"
    collector = TraceCollector(folder, agent="desk")
    collector.start_trace("s1", "who am I?")
    collector.record_tool_call("ask", {"api_key": "sk-0123456789abcdefghij"}, "ok", True, 1.0)
    finished = collector.finish_trace("you")
    collector.label_trace(finished.trace_id, False, "my key is sk-0123456789abcdefghij")
    with opener(app_home, None, "warning")() as ws:
        report = ingest(ws, "desk", "flowagent", folder)
        with ws.db.read() as connection:
            (judged,) = judgements(connection, Agent.named("desk"))
    assert (report.refused, judged.good, judged.conflict, len(judged.feedback_ids)) == (
        0,
        False,
        False,
        1,
    )
    for path in (*app_home.rglob("*"), *folder.rglob("*.json")):
        assert not path.is_file() or b"0123456789abcdefghij" not in path.read_bytes(), path


def test_labels_statistics_and_what_is_still_unlabelled(app_home: Path) -> None:
    collector = TraceCollector()
    empty = collector.get_statistics()
    assert (empty["total"], empty["avg_cost"], empty["avg_tool_calls"]) == (0, None, None)
    good, bad, left = (
        record(collector, name, tools, total_cost=cost)
        for name, tools, cost in (("a", 0, 1.0), ("b", 1, None), ("c", 2, 2.0))
    )
    collector.label_trace(good.trace_id, True)
    labelled = collector.label_trace(bad.trace_id, False, "no")
    assert (labelled.manual_review, labelled.review_notes) == (True, "no")
    assert collector.get_statistics() == {
        "total": 3,
        "labeled": 2,
        "unlabeled": 1,
        "positive_labels": 1,
        "negative_labels": 1,
        "avg_tool_calls": 1.0,
        "avg_reasoning_steps": 1.0,
        "avg_cost": 1.5,
    }
    assert [trace.trace_id for trace in collector.get_unlabeled_traces()] == [left.trace_id]
    assert collector.get_unlabeled_traces(limit=0) == []
    assert len(collector.load_traces(labeled_only=True)) == 2
    assert [call.user_query for call in collector.load_traces(min_tool_calls=2)] == ["c"]
    today = date.today()
    assert len(collector.load_traces(start_date=today, end_date=datetime.now().isoformat())) == 3
    assert collector.load_traces(start_date=today + timedelta(days=1)) == []
    for wrong in ("nope", "../../etc/passwd", "*"):
        with pytest.raises(KeyError):
            collector.label_trace(wrong, True)
    with pytest.raises(TypeError):
        collector.label_trace(good.trace_id, 1)  # type: ignore[arg-type]


def test_a_file_of_another_writer_keeps_its_own_keys_and_a_broken_one_costs_itself(
    app_home: Path,
) -> None:
    collector = TraceCollector()
    folder = app_home / "rl_traces" / "2026-01-05"
    folder.mkdir(parents=True)
    (folder / "abc123.json").write_text(
        '{"trace_id": "abc123", "user_query": "q", "colour": "red", "tool_calls": [{"tool_name": '
        '"t", "new": 1}]}'
    )
    for name, text in {
        "broken": "{",
        "list": "[]",
        "other": '{"a": 1}',
        "calls": '{"trace_id": "x", "tool_calls": [1]}',
    }.items():
        (folder / f"{name}.json").write_text(text)
    with pytest.warns(UserWarning, match="left out"):
        (trace,) = collector.load_traces()
    assert (
        trace.extra == {"colour": "red"}
        and trace.tool_calls[0].tool_name == "t"
        and trace.total_tokens_in is None
    )
    with pytest.warns(UserWarning, match="left out"):
        assert collector.get_statistics()["total"] == 1
    collector.label_trace("abc123", True)
    assert json.loads((folder / "abc123.json").read_text())["colour"] == "red"


def test_nothing_open_is_an_error_and_a_wrong_word_too(app_home: Path) -> None:
    collector = TraceCollector()
    for call in (
        lambda: collector.record_tool_call("t", {}, "", True),
        lambda: collector.record_reasoning_step("x", "y"),
        lambda: collector.record_task({}, "created"),
        lambda: collector.finish_trace("x"),
    ):
        with pytest.raises(RuntimeError, match="start_trace"):
            call()
    collector.start_trace("s", "q")
    with pytest.raises(ValueError, match="done"):
        collector.record_task({}, "done")  # type: ignore[arg-type]
    other = TraceCollector(app_home / "other")
    assert other.current() is None
    collector.finish_trace("")
    assert collector.current() is None


def test_defect_0c10_equal_queries_at_one_time_are_two_traces(app_home: Path) -> None:
    collector = TraceCollector()
    assert (
        len({record(collector, "same").trace_id for _ in range(20)}) == 20 == len(collector.files())
    )


def test_traces_and_runs_of_a_collector_nest_in_each_other(app_home: Path, tmp_path: Path) -> None:
    collector = TraceCollector(tmp_path / "runs", agent="a")
    with thumbwheel.trace("a", input="outer") as run:
        inner = collector.start_trace("s", "middle")
        thumbwheel.trace("a", input="x", output="innermost")
        collector.finish_trace("middle")
        run.output = "outer"
    texts = [path.read_text() for path in sorted((app_home / "inbox").glob("spool-*"))]
    rows = [json.loads(line) for line in "".join(texts).splitlines()]
    lines = {row["output"]: row for row in rows if row["type"] == "trace"}
    assert lines["middle"]["parent"] == run.id
    assert lines["innermost"]["parent"] == inner.trace_id


def test_a_full_disk_costs_the_file_and_not_the_app(app_home: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"not written|not recorded"):
        collector = TraceCollector("/dev/full/traces", agent="support")
        collector.start_trace("s1", "hi")
        assert collector.finish_trace("ho").final_response == "ho"


def test_a_collector_s_label_counts_once(
    command_line: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    collector = TraceCollector(tmp_path / "runs", agent="support")
    collector.start_trace("s1", "Opening hours?")
    trace = collector.finish_trace("Nine to five.")

    def stats() -> Any:
        assert command_line("import", "flowagent", "runs", "--agent", "support")[0] == 0
        code, out, _ = command_line("feedback", "stats", "--agent", "support", "--json")
        assert code == 0
        return json.loads(out)

    for label in (True, False, True):
        collector.label_trace(trace.trace_id, label)
        counts = stats()
        assert counts["signals"]["thumb"]["count"] == 1
        assert counts["signals"]["thumb"]["share_positive"] == float(label)
        assert sum(counts["raters"].values()) == 1


def test_recording_is_light() -> None:
    """It runs in the agent's own process, which has no use for training or the database."""
    code = (
        "from thumbwheel.compat.isaa import TraceCollector, hook_into_agent\n"
        "import sys; print(*(name for name in sys.modules if name.startswith('thumbwheel.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    stages = {name.split(".")[1] for name in done.stdout.split()}
    assert stages == {"compat", "sdk"}
