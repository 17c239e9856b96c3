"""What task sets, logged runs and feedback rows become; counts are those of the files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.public_data import public_data
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import AnyRecord, JsonLines, Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.sources.published_benchmarks.code_tasks import entry_point
from thumbwheel.importers.types import CaseRecord, FeedbackRecord, TraceRecord
from thumbwheel.training.data_plan import plan_file


def records(name: str, path: Path) -> list[AnyRecord]:
    items = list(SOURCES.get(name).read(path, lambda position: None))
    assert all(isinstance(item, Line) for item in items), [
        item for item in items if isinstance(item, Refused)
    ][:3]
    return [record for item in items if isinstance(item, Line) for record in item.records]


def kinds(all_records: list[AnyRecord]) -> Counter[str]:
    """How many different ones there are of each noun."""
    return Counter(
        noun
        for noun, _ in {
            (type(record).__name__.removesuffix("Record"), record.external_id)
            for record in all_records
        }
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def item(name: str, row: dict[str, Any]) -> Any:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)
    return source.item(1, row, "")


class TestN3:
    ROW: ClassVar[Any] = {
        "prompt": "p",
        "response": "r",
        "score": 0.7,
        "runId": "run-1",
        "notes": "fine",
    }

    @pytest.mark.parametrize("dialect", ["runId", "run_id"])
    def test_both_dialects(self, dialect: str) -> None:
        row = {key: value for key, value in self.ROW.items() if key != "runId"} | {dialect: "run-1"}
        trace, score = item("n3", row).records
        assert (trace.session, trace.output) == ("run-1", "r")
        assert (score.kind, score.value, score.scale.max, score.comment) == (
            "score",
            0.7,
            1,
            "fine",
        )

    def test_a_dataset_of_the_server_keeps_the_scale_that_it_was_brought_to(self) -> None:
        scores = [-1, -0.5, 0, 0.5, 1]
        examples = [
            {"prompt": f"p{index}", "response": "r", "score": score, "run_id": f"r{index}"}
            for index, score in enumerate(scores)
        ]
        feedback = [
            record
            for record in item("n3", {"examples": examples, "max_length": 512}).records
            if isinstance(record, FeedbackRecord)
        ]
        assert [(record.value, record.scale and record.scale.min) for record in feedback] == [
            (score, -1) for score in scores
        ]

    @pytest.mark.parametrize("score", [1.5, -0.1, "NaN", "inf", True, None, [], "much"])
    def test_defect_1c4_a_score_out_of_range_or_nan_is_refused(self, score: Any) -> None:
        refused = item("n3", self.ROW | {"score": score})
        assert isinstance(refused, Refused)
        assert "score" in refused.reason

    def test_defect_1c6_the_rows_are_not_changed(self) -> None:
        row = dict(self.ROW)
        item("n3", row)
        assert row == self.ROW


class TestFeedbackJsonl:
    ROW: ClassVar[Any] = {
        "query": "q",
        "response": "r",
        "feedback_type": "thumbs_up",
        "rating": None,
        "correction": None,
        "timestamp": "2026-01-05 09:12:44.120000",
        "metadata": {},
    }

    def feedback(self, **more: Any) -> list[tuple[str, Any]]:
        return [
            (record.kind, record.value)
            for record in item("feedback_jsonl", self.ROW | more).records
            if isinstance(record, FeedbackRecord)
        ]

    def test_defect_3c1_a_null_rating_beside_a_thumb_is_no_opinion(self) -> None:
        assert self.feedback() == [("thumb", True)]

    def test_defect_3c2_a_correction_is_kept_and_a_rating_of_three_is_not_bad(self) -> None:
        assert self.feedback(feedback_type="correction", correction="better") == [
            ("correction", "better")
        ]
        assert self.feedback(feedback_type="rating", rating=3) == [("rating", 3)]

    def test_defect_3c3_a_bad_line_kills_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "feedback.jsonl"
        path.write_text(
            "\n".join([json.dumps(self.ROW), "{broken", json.dumps(self.ROW | {"query": "other"})])
        )
        assert [
            type(item) for item in SOURCES.get("feedback_jsonl").read(path, lambda position: None)
        ] == [Line, Refused, Line]

    def test_who_and_where_stand_in_the_metadata(self) -> None:
        metadata = {"user_id": "ann", "session_id": 7, "page": "/help"}
        trace, thumb, rating = item(
            "feedback_jsonl",
            self.ROW | {"metadata": metadata, "rating": 4, "channel": "web", "unset": None},
        ).records
        assert (trace.session, trace.subject) == ("7", "ann")
        assert trace.metadata == metadata | {"channel": "web"}
        assert {thumb.rater.id, rating.rater.id} == {"ann"}
        refused = item("feedback_jsonl", self.ROW | {"metadata": {"user_id": ["ann"]}})
        assert isinstance(refused, Refused) and "is no id" in refused.reason

    @pytest.mark.parametrize(
        "written",
        ["2026-01-05 09:12:44", "2026-01-05T09:12:44.120000", "2026-01-05 09:12:44.120000"],
    )
    def test_times_of_both_spellings_are_utc(self, written: str) -> None:
        trace = item("feedback_jsonl", self.ROW | {"timestamp": written}).records[0]
        assert (
            trace.occurred_at.isoformat().startswith("2026-01-05T09:12:44")
            and trace.occurred_at.tzinfo
        )


def test_tau_runs() -> None:
    path = public_data("agent-trajectories/tau-bench-gpt4o-airline.jsonl")
    raw, all_records = lines(path), records("tau", path)
    assert kinds(all_records) == {
        "Case": len({row["task_id"] for row in raw}),
        "Trace": len(raw),
        "Feedback": len(raw),
    }
    rewards = [record.value for record in all_records if isinstance(record, FeedbackRecord)]
    assert (rewards, sum(rewards)) == ([row["reward"] for row in raw], 33)
    assert all(
        record.rater and record.rater.kind == "checker"
        for record in all_records
        if isinstance(record, FeedbackRecord)
    )
    for row, trace in zip(
        raw, (record for record in all_records if isinstance(record, TraceRecord)), strict=True
    ):
        roles = Counter(message["role"] for message in row["traj"])
        steps = Counter(step.kind for step in trace.steps)
        assert (steps["llm"], steps["tool"] + steps["reasoning"]) == (
            roles["assistant"],
            roles["tool"],
        )
        heard = [
            message
            for step in trace.steps
            if step.kind == "llm" and step.input
            for message in step.input["messages"]
        ]
        after = next(
            index for index, message in enumerate(row["traj"]) if message["role"] == "assistant"
        )
        last = max(
            index for index, message in enumerate(row["traj"]) if message["role"] == "assistant"
        )
        assert len(heard) == sum(
            message["role"] != "assistant" for message in row["traj"][after:last]
        )
    by_case = Counter(record.case for record in all_records if isinstance(record, TraceRecord))
    assert set(by_case.values()) == {4}


@pytest.mark.parametrize(
    "name",
    [
        "live_simple",
        "multiple",
        "parallel",
        "parallel_multiple",
        "simple_python",
        "multi_turn_base",
        "irrelevance",
    ],
)
def test_bfcl_questions_with_their_expected_calls(name: str) -> None:
    path = public_data(f"tool-calls/bfcl-v4-{name}.jsonl")
    raw, all_records = lines(path), records("bfcl", path)
    assert kinds(all_records) == {"Case": len(raw), "Trace": len(raw)}
    beside = path.with_name(f"bfcl-v4-{name}-expected.jsonl")
    expected = {row["id"]: row["ground_truth"] for row in lines(beside)} if beside.exists() else {}
    for row, case, trace in zip(raw, all_records[::2], all_records[1::2], strict=True):
        assert isinstance(case, CaseRecord) and isinstance(trace, TraceRecord)
        assert (case.id, case.checker, case.reference) == (
            row["id"],
            "tool_match",
            expected.get(row["id"], []),
        )
        assert len(case.input) == sum(map(len, row["question"]))
        assert [tool["function"]["name"] for tool in (trace.metadata or {}).get("tools", [])] == [
            function["name"] for function in row.get("function", [])
        ]
        calls = [
            call
            for expectation in case.reference
            for call in (expectation if isinstance(expectation, list) else [expectation])
        ]
        assert sum(step.kind == "tool" for step in trace.steps) == len(calls)


def test_bfcl_without_its_expected_calls_is_refused(tmp_path: Path) -> None:
    row = {
        "id": "simple_1",
        "question": [[{"role": "user", "content": "3 + 4?"}]],
        "function": [{"name": "add"}],
    }
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(row))
    (refused,) = SOURCES.get("bfcl").read(path, lambda position: None)
    assert isinstance(refused, Refused)
    assert "nor in q-expected.jsonl or possible_answer/q.jsonl" in refused.reason
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "possible_answer" / "q.jsonl").write_text(
        '{"id": "simple_1", "ground_truth": [{"add": {"a": [3], "c": ["", 1]}}]}'
    )
    (line,) = SOURCES.get("bfcl").read(path, lambda position: None)
    assert isinstance(line, Line)
    trace = line.records[1]
    assert isinstance(trace, TraceRecord)
    assert [(step.name, step.input) for step in trace.steps if step.kind == "tool"] == [
        ("add", {"a": 3})
    ]


def test_code_tasks_keep_their_tests_and_their_solutions() -> None:
    mbpp, humaneval = (
        public_data("code-tasks/mbpp.jsonl"),
        public_data("code-tasks/humaneval.jsonl"),
    )
    for name, path in (("mbpp", mbpp), ("humaneval", humaneval)):
        raw, all_records = lines(path), records(name, path)
        assert kinds(all_records) == {"Case": len(raw), "Trace": len(raw)}
        for row, case, trace in zip(raw, all_records[::2], all_records[1::2], strict=True):
            assert isinstance(case, CaseRecord) and isinstance(trace, TraceRecord)
            assert (case.checker, set(case.reference)) == (
                "code_execution",
                {"tests", "setup", "entry_point", "check"},
            )
            assert trace.case == case.id and trace.output
            if name == "mbpp":
                assert case.reference["tests"] == row["test_list"] + row["challenge_test_list"]
                first, *hidden = case.reference["tests"]
                assert str(case.reference["entry_point"]) in first
                assert first in case.input[0]["content"]
                assert not [
                    test for test in hidden if test != first and test in case.input[0]["content"]
                ]
            else:
                assert (
                    case.reference["check"] == row["test"]
                    and case.reference["entry_point"] == row["entry_point"]
                )
                compile(
                    trace.output.removeprefix("```python\n").removesuffix("\n```"),
                    "solution",
                    "exec",
                )


PAIR = "class Pair:\n    pass\ndef longest(pairs): return 1"
ENTRY_POINTS = {
    "one function": ("def f(x): return x", ["assert f(1) == 1", "assert f(2) == 2"], "f"),
    "a name of a builtin": ("def sum(a, b): return a + b", ["assert sum(1, 2) == 3"], "sum"),
    "helpers that no test calls": (
        "def help(x): return x\ndef f(x): return help(x)",
        ["assert f(1) == 1"],
        "f",
    ),
    "a class beside it": (PAIR, ["assert longest([Pair(), Pair()]) == 1"], "longest"),
    "a class": (
        "class Stack:\n    def push(self, x): return self",
        ["assert Stack().push(1) is not None"],
        "Stack",
    ),
    "a lambda": ("f = lambda x: x", ["assert f(1) == 1"], "f"),
    "what it imports": ("from math import gcd as f", ["assert f(4, 6) == 2"], "f"),
    "a function that judges": (
        "def close(a, b): return a == b\ndef f(x): return x",
        ["assert close(f(2), 2) == True"],
        "f",
    ),
    "each test another": (
        "def f(x): return x\ndef g(x): return x",
        ["assert f(1) == 1", "assert g(1) == 1"],
        None,
    ),
    "no function of its own": ("x = 1", ["assert len([1]) == 1"], None),
    "no Python": ("def f(x", ["assert f(1) == 1"], None),
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_entry_point_is_the_function_of_the_solution_that_the_tests_call(name: str) -> None:
    code, tests, expected = ENTRY_POINTS[name]
    assert entry_point(code, tests) == expected


def test_llmfao_comparisons_of_the_crowd_and_of_the_judge() -> None:
    crowd = records("llmfao", public_data("preferences/llmfao-crowd-comparisons.csv"))
    feedback = [record for record in crowd if isinstance(record, FeedbackRecord)]
    assert kinds(crowd)["Feedback"] == len(feedback) == 4789
    assert sum(len(record.value["ranking"]) == 1 for record in feedback) == 1823
    assert len({record.rater.id for record in feedback if record.rater}) == 123
    judge = records("llmfao", public_data("preferences/llmfao-gpt4-crowd-comparisons.csv"))
    verdicts = [record for record in judge if isinstance(record, FeedbackRecord)]
    assert len(verdicts) == 1146 and {record.rater.kind for record in verdicts if record.rater} == {
        "model"
    }
    assert kinds(records("llmfao", public_data("preferences/llmfao-results.jsonl"))) == {
        "Trace": 786
    }


def test_mt_bench_turns_with_a_reference() -> None:
    path = public_data("prompts/mt-bench-questions.jsonl")
    raw = lines(path)
    items = list(SOURCES.get("mt_bench").read(path, lambda position: None))
    cases = [record for item in items if isinstance(item, Line) for record in item.records]
    assert len(cases) == sum(len(row.get("reference", [])) for row in raw) == 48
    assert (
        sum(isinstance(item, Refused) for item in items)
        == sum("reference" not in row for row in raw)
        == 20
    )
    assert {len(case.input) for case in cases if isinstance(case, CaseRecord)} == {1, 3}


FILES = [
    ("tau", "agent-trajectories/tau-bench-gpt4o-airline.jsonl", 0),
    ("bfcl", "tool-calls/bfcl-v4-irrelevance.jsonl", 0),
    ("humaneval", "code-tasks/humaneval.jsonl", 0),
    ("mt_bench", "prompts/mt-bench-questions.jsonl", 20),
    ("langfuse", "otel-traces/langfuse-export/crewai-2025-07-11.json", 0),
    ("otlp", "otel-traces/any-agent-otlp-derived/tinyagent.otlp.json", 0),
    ("openinference", "otel-traces/openinference-vercel-v6-spans.jsonl", 1),
    ("swe_agent", "agent-trajectories/swe-agent/marshmallow-1867.default.traj.json", 0),
    ("llmfao", "preferences/llmfao-gpt4-crowd-comparisons.csv", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "file", "refused"), FILES)
def test_a_second_import_adds_nothing_and_a_plan_says_what_was_read(
    source: str, file: str, refused: int, tmp_path: Path
) -> None:
    path = public_data(file)
    with Workspace.open(Home.at(tmp_path)) as ws:
        first, second = (ingest(ws, "a", source, path) for _ in range(2))
    assert (first.refused, second.refused) == (refused, refused)
    assert first.stored == first.read - refused - first.duplicates and first.stored
    assert (second.stored, second.duplicates, sum(second.records.values())) == (
        0,
        second.read - refused,
        0,
    )
    plan = plan_file(path)
    assert plan.to_words()[0].startswith(f"Read as source {source}: ")
