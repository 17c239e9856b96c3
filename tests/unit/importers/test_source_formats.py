"""What each format becomes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from tests.public_data import public_data
from thumbwheel.compat.rlhf_plan import source as feedback_jsonl
from thumbwheel.importers.source import AnyRecord, Line
from thumbwheel.importers.sources import SOURCES, jsonl, preference
from thumbwheel.importers.sources.published_benchmarks import graded
from thumbwheel.importers.types import CaseRecord, FeedbackRecord, TraceRecord, Unreadable, explain


def refusal(module: Any, row: dict[str, Any]) -> str:
    try:
        module.parse(row)
    except Unreadable as error:
        return str(error)
    except ValidationError as error:
        return explain(error)
    raise AssertionError(f"{row} was taken")


def split(
    records: list[AnyRecord],
) -> tuple[list[TraceRecord], list[FeedbackRecord], list[CaseRecord]]:
    return (
        [record for record in records if isinstance(record, TraceRecord)],
        [record for record in records if isinstance(record, FeedbackRecord)],
        [record for record in records if isinstance(record, CaseRecord)],
    )


class TestJsonl:
    def trace(self, **row: Any) -> TraceRecord:
        (record,) = jsonl.parse({"type": "trace", "input": "hi", **row})
        assert isinstance(record, TraceRecord)
        return record

    def feedback(self, **row: Any) -> FeedbackRecord:
        (record,) = jsonl.parse(
            {"type": "feedback", "target": {"trace": "t"}, "kind": "thumb", "value": True, **row}
        )
        assert isinstance(record, FeedbackRecord)
        return record

    def test_the_model_call_is_the_one_step(self) -> None:
        (step,) = self.trace(
            output="ho", model="a", served_model="b", finish_reason="stop", tokens={"prompt": 3}
        ).steps
        assert (step.kind, step.model, step.served_model, step.finish_reason) == (
            "llm",
            "a",
            "b",
            "stop",
        )
        assert step.tokens and (step.tokens.prompt, step.tokens.completion) == (3, None)

    def test_with_steps_the_model_call_belongs_to_the_last_llm_step(self) -> None:
        steps = [
            {"kind": "llm", "model": "plan"},
            {"kind": "tool", "name": "search"},
            {"kind": "llm"},
            {"kind": "task"},
        ]
        assert [step.model for step in self.trace(steps=steps, model="m").steps] == [
            "plan",
            None,
            "m",
            None,
        ]
        assert [step.kind for step in self.trace(steps=steps[1:2], model="m").steps] == [
            "tool",
            "llm",
        ]
        assert [step.kind for step in self.trace(steps=steps[1:2]).steps] == ["tool"]
        row = {
            "type": "trace",
            "input": "hi",
            "steps": [{"kind": "llm", "model": "a"}],
            "model": "b",
        }
        assert "differ about 'model'" in refusal(jsonl, row)

    def test_targets(self) -> None:
        assert self.feedback(target={"step": ["t", 2], "source": "otel"}).targets[
            0
        ].model_dump() == {
            "kind": "step",
            "id": "t",
            "step": 2,
            "source": "otel",
        }
        assert self.feedback(target={"session": 4}).targets[0].id == "4"
        for target in (
            {"trase": "t"},
            {"trace": "t", "session": "s"},
            {"step": "t"},
            {"step": ["t", -1]},
            "t",
            {"trace": ""},
            3,
            {"trace": "t", "x": 1},
        ):
            assert refusal(
                jsonl, {"type": "feedback", "target": target, "kind": "thumb", "value": True}
            )

    @pytest.mark.parametrize(
        ("value", "ranking"),
        [(1, [[1], [0, 2]]), (None, [[0, 1, 2]]), ({"ranking": [[2], [0], [1]]}, [[2], [0], [1]])],
    )
    def test_preferences_may_be_short(self, value: Any, ranking: Any) -> None:
        targets = [{"trace": name} for name in "abc"]
        (record,) = jsonl.parse(
            {
                "type": "feedback",
                "targets": targets,
                "kind": "preference",
                "value": value,
                "shown": [2, 0, 1],
            }
        )
        assert isinstance(record, FeedbackRecord)
        assert record.value == {"ranking": ranking}
        assert record.metadata == {"shown": [2, 0, 1]}

    def test_impossible_preferences(self) -> None:
        row = {
            "type": "feedback",
            "targets": [{"trace": "a"}, {"trace": "b"}],
            "kind": "preference",
        }
        for more in (
            {"value": 2},
            {"value": True},
            {"value": -1},
            {"value": 0, "shown": [0, 0]},
            {"value": 0, "shown": 1},
            {},
        ):
            assert refusal(jsonl, row | more)

    def test_labels_and_outcomes_may_go_without_a_name(self) -> None:
        assert (
            self.feedback(kind="label", value="spam").name,
            self.feedback(kind="label", value="spam").value,
        ) == ("spam", True)
        assert self.feedback(kind="outcome", value=1.0).name == "outcome"

    def test_a_rater_is_an_id_or_an_object(self) -> None:
        assert self.feedback(rater="ann").rater == self.feedback(rater={"id": "ann"}).rater
        weighted = self.feedback(rater={"id": "ann", "kind": "model", "weight": 0.5}).rater
        assert weighted and (weighted.kind, weighted.weight) == ("model", 0.5)

    def test_a_retraction_is_short(self) -> None:
        (record,) = jsonl.parse({"type": "feedback", "id": "f2", "retracts": "f1"})
        assert isinstance(record, FeedbackRecord)
        assert (record.kind, record.value, record.targets, record.retracts) == (
            "comment",
            "",
            [],
            "f1",
        )

    @pytest.mark.parametrize(
        ("row", "hint"),
        [
            ({"type": "trase"}, "Did you mean 'trace'"),
            ({"type": "trace", "input": "x", "ouput": "y"}, "Did you mean 'output'"),
            (
                {"type": "feedback", "target": {"trace": "t"}, "kind": "thumb", "valu": True},
                "Did you mean 'value'",
            ),
            ({"type": "case", "input": "x", "refrence": "y"}, "Did you mean 'reference'"),
            ({"type": ["trace"]}, "none of trace, feedback, case"),
            ({"input": "x"}, "type None"),
            (
                {
                    "type": "feedback",
                    "target": {"trace": "t"},
                    "targets": [],
                    "kind": "thumb",
                    "value": True,
                },
                "both target and targets",
            ),
        ],
    )
    def test_what_is_unknown_names_the_nearest(self, row: dict[str, Any], hint: str) -> None:
        assert hint in refusal(jsonl, row)


class TestCollector:
    LINE: ClassVar[dict[str, Any]] = {
        "query": "q",
        "response": "r",
        "feedback_type": "thumbs_up",
        "rating": None,
        "correction": None,
        "timestamp": "2024-01-01 10:00:00.123",
        "metadata": {},
    }

    def signals(self, **more: Any) -> list[tuple[str, Any]]:
        traces, feedback, _ = split(feedback_jsonl.parse(self.LINE | more))
        assert [trace.output for trace in traces] == ["r"]
        assert {record.targets[0].id for record in feedback} == {traces[0].external_id}
        assert {record.occurred_at for record in feedback} == {traces[0].occurred_at}
        return [(record.kind, record.value) for record in feedback]

    def test_null_beside_a_thumb_is_fine(self) -> None:
        assert self.signals() == [("thumb", True)]
        assert self.signals(feedback_type="thumbs_down", rating=1) == [
            ("thumb", False),
            ("rating", 1),
        ]

    def test_a_correction_is_kept(self) -> None:
        assert self.signals(feedback_type="correction", correction="better") == [
            ("correction", "better")
        ]
        assert self.signals(feedback_type="rating", rating=3) == [("rating", 3)]

    @pytest.mark.parametrize(
        "more",
        [
            {"feedback_type": "rating"},
            {"feedback_type": "correction"},
            {"rating": 6},
            {"timestamp": "2024-13-01 10:00:00"},
            {"query": ""},
            {"feedback_type": None},
        ],
    )
    def test_what_cannot_be_is_refused(self, more: dict[str, Any]) -> None:
        if more == {"query": ""}:
            assert feedback_jsonl.parse(self.LINE | more)
        else:
            assert refusal(feedback_jsonl, self.LINE | more)


class TestPreference:
    def pair(self, **row: Any) -> tuple[list[dict[str, Any]], str, str]:
        traces, judged, _ = split(preference.parse(row))
        chosen, rejected = traces
        assert chosen.input == rejected.input
        assert [target.id for target in judged[0].targets] == [
            trace.external_id for trace in traces
        ]
        assert judged[0].value == {"ranking": [[0], [1]]}
        return chosen.input, chosen.output or "", rejected.output or ""

    USER: ClassVar[dict[str, Any]] = {"role": "user", "content": "Hi"}

    def feedback(self, text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    def test_the_same_pair_in_every_form(self) -> None:
        wanted = ([self.USER], "Hello!", "What?")
        assert self.pair(prompt="Hi", chosen="Hello!", rejected="What?") == wanted
        assert (
            self.pair(
                prompt=[self.USER],
                chosen=[self.feedback("Hello!")],
                rejected=[self.feedback("What?")],
            )
            == wanted
        )
        assert (
            self.pair(
                prompt="Hi",
                chosen=[self.USER, self.feedback("Hello!")],
                rejected=[self.USER, self.feedback("What?")],
            )
            == wanted
        )
        assert (
            self.pair(
                chosen=[self.USER, self.feedback("Hello!")],
                rejected=[self.USER, self.feedback("What?")],
            )
            == wanted
        )
        human = "\n\nHuman: Hi\n\nAssistant:"
        assert self.pair(chosen=human + " Hello!", rejected=human + " What?") == wanted
        assert (
            self.pair(prompt=human, chosen=human + " Hello!", rejected=human + " What?") == wanted
        )
        assert self.pair(prompt=human, chosen="Hello!", rejected="What?")[1:] == wanted[1:]

    def test_texts_without_a_prompt_share_their_beginning(self) -> None:
        assert self.pair(chosen="Q: red fruit? cherry", rejected="Q: red fruit? cheese") == (
            [{"role": "user", "content": "Q: red fruit?"}],
            "cherry",
            "cheese",
        )

    def test_a_longer_dialogue(self) -> None:
        start = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
        prompt, chosen, rejected = self.pair(chosen=start + " d", rejected=start)
        assert [message["content"] for message in prompt] == ["a", "b", "c"]
        assert (chosen, rejected) == ("d", "")

    def test_other_columns_are_kept(self) -> None:
        _, judged, _ = split(
            preference.parse({"prompt": "p", "chosen": "a", "rejected": "b", "margin": 2})
        )
        assert judged[0].metadata == {"margin": 2}

    @pytest.mark.parametrize(
        "row",
        [
            {"chosen": "a"},
            {"chosen": "a", "rejected": None},
            {"prompt": "p", "chosen": "a", "rejected": "a"},
            {"chosen": "a", "rejected": "b"},
            {"prompt": 3, "chosen": "a", "rejected": "b"},
            {
                "prompt": {},
                "chosen": "\n\nHuman: a\n\nAssistant: b",
                "rejected": "\n\nHuman: a\n\nAssistant: c",
            },
            {"chosen": [1, 2], "rejected": [1, 3]},
            {
                "chosen": [{"role": "user", "content": "x"}],
                "rejected": [{"role": "user", "content": "x"}],
            },
            {"prompt": "p", "chosen": ["a", "c"], "rejected": "b"},
            {"instruction": "i", "response1": "a", "response2": "b"},
            {"instruction": "i", "response1": "a", "response2": "b", "annotator1": 3},
            {"instruction": "i", "response1": "a", "response2": None, "annotator1": 1},
            {"response1": "a", "response2": "b", "annotator1": 1},
            {
                "prompt": "p",
                "chosen": [{"role": "user", "content": "q"}, {"role": "user", "content": "r"}],
                "rejected": [],
            },
        ],
    )
    def test_what_is_no_pair_is_refused(self, row: dict[str, Any]) -> None:
        assert refusal(preference, row)

    def test_annotators_are_raters_who_may_disagree(self) -> None:
        row = {
            "idx": 1,
            "instruction": "i",
            "input": "x",
            "response1": True,
            "response2": "True.",
            "annotator1": 1,
            "annotator2": 0,
            "annotator3": 2,
        }
        traces, judged, _ = split(preference.parse(row))
        assert [trace.output for trace in traces] == ["True", "True."]
        assert traces[0].input == [{"role": "user", "content": "i\n\nx"}]
        rankings = {record.rater.id: record.value["ranking"] for record in judged if record.rater}
        assert rankings == {
            "annotator1": [[0], [1]],
            "annotator2": [[0, 1]],
            "annotator3": [[1], [0]],
        }
        assert len({record.external_id for record in judged}) == 3


class TestGraded:
    ROW: ClassVar[dict[str, Any]] = {
        "question": "3 + 4?",
        "ground_truth": "x\nA: 1,007",
        "m1": {"is_correct": True, "solution": "A: 1007"},
        "m2": {"is_correct": False, "solution": "A: 8"},
    }

    def test_case_traces_and_labels(self) -> None:
        traces, labels, cases = split(graded.parse(self.ROW))
        assert [(case.reference, case.checker) for case in cases] == [("1007", "exact_answer")]
        assert [
            (trace.steps[0].served_model, trace.steps[0].model, trace.case) for trace in traces
        ] == [
            ("m1", None, cases[0].external_id),
            ("m2", None, cases[0].external_id),
        ]
        assert [
            (label.name, label.value, label.rater and label.rater.kind) for label in labels
        ] == [
            ("correct", True, "reference"),
            ("correct", False, "reference"),
        ]

    def test_a_question_alone_is_a_case(self) -> None:
        (case,) = graded.parse({"question": "q", "answer": "so\n#### -3.5"})
        assert isinstance(case, CaseRecord)
        assert case.reference == "-3.5"

    @pytest.mark.parametrize(
        "more",
        [
            {"question": ""},
            {"question": 3},
            {"ground_truth": "seven"},
            {"ground_truth": None},
            {"ground_truth": "#### "},
            {"m1": {"is_correct": 1, "solution": "a"}},
            {"m1": {"is_correct": True}},
            {"m1": {}},
            {"m1": {"is_correct": True, "solution": "a", "x": 1}},
        ],
    )
    def test_what_is_not_graded_is_refused(self, more: dict[str, Any]) -> None:
        assert refusal(graded, self.ROW | more)


@pytest.mark.parametrize(
    ("source", "file", "lines", "counts"),
    [
        (
            "preference",
            "preferences/hh-rlhf-harmless-base-test.jsonl",
            1156,
            {"TraceRecord": 2312, "FeedbackRecord": 1156},
        ),
        (
            "preference",
            "preferences/pandalm-testset-v1-3annotators.jsonl",
            404,
            {"TraceRecord": 808, "FeedbackRecord": 1212},
        ),
        (
            "graded",
            "math/gsm8k-model-solutions-graded.jsonl",
            652,
            {"CaseRecord": 652, "TraceRecord": 2608, "FeedbackRecord": 2608},
        ),
        ("graded", "math/gsm8k-train.jsonl", 3739, {"CaseRecord": 3739}),
    ],
)
def test_the_real_files_are_read_to_the_last_line(
    source: str, file: str, lines: int, counts: dict[str, int]
) -> None:
    items = list(SOURCES.get(source).read(public_data(file), lambda position: None))
    assert [item.number for item in items] == list(range(1, lines + 1))
    assert (
        Counter(
            type(record).__name__
            for item in items
            if isinstance(item, Line)
            for record in item.records
        )
        == counts
    )


def test_pandalm_keeps_ties_and_disagreement() -> None:
    path = public_data("preferences/pandalm-testset-v1-3annotators.jsonl")
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    items = list(SOURCES.get("preference").read(path, lambda position: None))
    ties = disagreements = 0
    for item, row in zip(items, rows, strict=True):
        assert isinstance(item, Line)
        rankings = [
            record.value["ranking"] for record in item.records if isinstance(record, FeedbackRecord)
        ]
        assert rankings == [
            {0: [[0, 1]], 1: [[0], [1]], 2: [[1], [0]]}[row[f"annotator{n}"]] for n in (1, 2, 3)
        ]
        ties += rankings.count([[0, 1]])
        disagreements += any(ranking != rankings[0] for ranking in rankings)
    assert ties > 30
    assert disagreements > 30


def test_hh_answers_are_the_end_of_the_dialogue() -> None:
    path = public_data("preferences/hh-rlhf-harmless-base-test.jsonl")
    for item, text in zip(
        SOURCES.get("preference").read(path, lambda position: None),
        path.read_text(encoding="utf-8").splitlines(),
        strict=True,
    ):
        assert isinstance(item, Line)
        row = json.loads(text)
        traces, _, _ = split(item.records)
        for trace, key in zip(traces, ("chosen", "rejected"), strict=True):
            dialogue = "".join(
                f"\n\n{'Human' if m['role'] == 'user' else 'Assistant'}: {m['content']}"
                for m in trace.input
            )
            assert "".join(row[key].split()) == "".join(
                f"{dialogue}\n\nAssistant: {trace.output}".split()
            )
