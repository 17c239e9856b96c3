"""What exports of other programs become: Open WebUI, Langfuse, files for OpenAI and TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from tests.public_data import public_data
from thumbwheel.importers.source import AnyRecord, JsonLines, Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import FeedbackRecord, TraceRecord, Unreadable


def read(name: str, row: dict[str, Any]) -> list[AnyRecord]:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)
    item = source.item(1, row, "")
    assert isinstance(item, Line), item
    return item.records


def reason(name: str, row: dict[str, Any]) -> str:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)
    item = source.item(1, row, "")
    assert isinstance(item, Refused), item
    return item.reason


def traces(records: list[AnyRecord]) -> list[TraceRecord]:
    return [record for record in records if isinstance(record, TraceRecord)]


def feedback_in(records: list[AnyRecord]) -> list[tuple[str, Any]]:
    return [(record.kind, record.value) for record in records if isinstance(record, FeedbackRecord)]


class TestOpenWebUI:
    def row(self, data: dict[str, Any] | None = None, **answer: Any) -> dict[str, Any]:
        messages = {
            "a": {
                "id": "a",
                "parentId": None,
                "childrenIds": ["b"],
                "role": "user",
                "content": "Hi",
            },
            "b": {
                "id": "b",
                "parentId": "a",
                "childrenIds": ["c"],
                "role": "assistant",
                "content": "Hello!",
                "model": "m1",
            },
            "c": {
                "id": "c",
                "parentId": "b",
                "childrenIds": ["d", "e"],
                "role": "user",
                "content": "Is it wet?",
            },
            "d": {
                "id": "d",
                "parentId": "c",
                "role": "assistant",
                "content": "Yes.",
                "model": "m1",
                "timestamp": 1767600000,
            }
            | answer,
            "e": {"id": "e", "parentId": "c", "role": "assistant", "content": "No.", "model": "m2"},
        }
        return {
            "id": "f1",
            "user_id": "u1",
            "version": 0,
            "type": "rating",
            "data": {
                "rating": 1,
                "model_id": "m1",
                "sibling_model_ids": None,
                "reason": "",
                "comment": "",
                "details": {},
            }
            | (data or {}),
            "meta": {"model_id": "m1", "message_id": "d", "message_index": 4, "chat_id": "chat-1"},
            "snapshot": {
                "chat": {
                    "id": "chat-1",
                    "user_id": "u9",
                    "chat": {"history": {"messages": messages, "currentId": "d"}},
                }
            },
            "created_at": 1767600005,
            "updated_at": 1767600009,
        }

    def test_the_rated_message_is_the_trace_and_what_came_before_it_the_prompt(self) -> None:
        (trace, thumb) = read("openwebui", self.row())
        assert isinstance(trace, TraceRecord)
        assert [(message["role"], message["content"]) for message in trace.input] == [
            ("user", "Hi"),
            ("assistant", "Hello!"),
            ("user", "Is it wet?"),
        ]
        assert (
            trace.id,
            trace.output,
            trace.session,
            trace.subject,
            trace.steps[0].served_model,
        ) == ("d", "Yes.", "chat-1", "u9", "m1")
        assert isinstance(thumb, FeedbackRecord)
        assert (thumb.kind, thumb.value, thumb.rater.id if thumb.rater else None) == (
            "thumb",
            True,
            "u1",
        )
        assert thumb.occurred_at and thumb.occurred_at.timestamp() == 1767600009

    @pytest.mark.parametrize(("rating", "up"), [(1, True), (-1, False), ("1", True), ("-1", False)])
    def test_a_rating_is_a_thumb(self, rating: Any, up: bool) -> None:
        assert feedback_in(read("openwebui", self.row({"rating": rating}))) == [("thumb", up)]

    def test_details_are_a_rating_of_ten_and_a_comment_stays_with_them(self) -> None:
        row = self.row(
            {
                "rating": None,
                "details": {"rating": 7},
                "comment": "long",
                "reason": "too_verbose",
                "tags": ["style"],
            }
        )
        (feedback,) = [
            record for record in read("openwebui", row) if isinstance(record, FeedbackRecord)
        ]
        assert (feedback.kind, feedback.value, feedback.comment) == ("rating", 7, "long")
        assert feedback.scale and (feedback.scale.min, feedback.scale.max) == (1, 10)
        assert feedback.metadata == {"reason": "too_verbose", "tags": ["style"]}

    def test_an_edited_answer_is_a_correction_of_the_original(self) -> None:
        records = read("openwebui", self.row(originalContent="Yess."))
        assert traces(records)[0].output == "Yess."
        assert ("correction", "Yes.") in feedback_in(records)

    def test_named_siblings_are_preferred_over_or_less(self) -> None:
        for rating, ranking in ((1, [[0], [1]]), (-1, [[1], [0]])):
            records = read("openwebui", self.row({"rating": rating, "sibling_model_ids": ["m2"]}))
            assert [trace.output for trace in traces(records)] == ["Yes.", "No."]
            assert feedback_in(records)[-1] == ("preference", {"ranking": ranking})
        assert len(traces(read("openwebui", self.row({"sibling_model_ids": ["m3"]})))) == 1

    def test_without_a_snapshot_the_feedback_waits_for_its_trace(self) -> None:
        row = self.row()
        row["snapshot"] = None
        (thumb,) = read("openwebui", row)
        assert isinstance(thumb, FeedbackRecord)
        assert thumb.targets[0].id == "d"

    def test_a_changed_rating_is_another_one(self) -> None:
        first, later = self.row(), self.row({"rating": -1}) | {"updated_at": 1767600999}
        names = [
            record.id
            for row in (first, later)
            for record in read("openwebui", row)
            if isinstance(record, FeedbackRecord)
        ]
        assert len(set(names)) == 2

    def test_rated_messages_of_exported_chats(self) -> None:
        chat = self.row(annotation={"rating": -1, "comment": "wrong"}, feedbackId="f7")["snapshot"][
            "chat"
        ]
        assert feedback_in(read("openwebui", chat)) == [("thumb", False)]
        assert "none of its messages was rated" in reason(
            "openwebui", self.row()["snapshot"]["chat"]
        )

    def test_a_sibling_that_failed_costs_no_rating(self) -> None:
        row = self.row({"sibling_model_ids": ["m2"]})
        messages = row["snapshot"]["chat"]["chat"]["history"]["messages"]
        messages["e"] |= {"content": "", "error": {"content": "boom"}}
        assert feedback_in(read("openwebui", row)) == [("thumb", True)]
        chat = row["snapshot"]["chat"]
        messages["e"]["annotation"] = messages["d"]["annotation"] = {"rating": 1}
        assert feedback_in(read("openwebui", chat)) == [("thumb", True)]

    def test_in_an_arena_the_model_is_the_one_that_was_chosen(self) -> None:
        row = self.row({"sibling_model_ids": ["m2"]}, model="arena-model", selectedModelId="m1")
        row["snapshot"]["chat"]["chat"]["history"]["messages"]["e"] |= {
            "model": "arena-model",
            "selectedModelId": "m2",
        }
        records = read("openwebui", row)
        assert [trace.steps[0].served_model for trace in traces(records)] == [
            "m1",
            "m2",
        ] and feedback_in(records)[-1][0] == "preference"

    def test_a_thumb_that_was_turned_in_a_chat_is_another_one(self) -> None:
        chats = [
            self.row(annotation={"rating": rating}, feedbackId="f7")["snapshot"]["chat"]
            for rating in (1, -1, -1)
        ]
        names = [
            record.id
            for chat in chats
            for record in read("openwebui", chat)
            if isinstance(record, FeedbackRecord)
        ]
        assert names[0] != names[1] == names[2]

    def test_what_cannot_be_is_refused(self) -> None:
        assert "neither 1 (up) nor -1" in reason("openwebui", self.row({"rating": 5}))
        assert "names no message_id" in reason("openwebui", self.row() | {"meta": {"chat_id": "c"}})
        assert "neither a rating nor a comment" in reason("openwebui", self.row({"rating": None}))
        assert "no answer of the assistant" in reason("openwebui", self.row(role="user"))
        circle = self.row()
        circle["snapshot"]["chat"]["chat"]["history"]["messages"]["a"]["parentId"] = "d"
        assert len(read("openwebui", circle)) == 2


class TestLangfuse:
    def score(self, **more: Any) -> dict[str, Any]:
        base = {
            "id": "s1",
            "traceId": "t1",
            "name": "user-feedback",
            "value": 1,
            "dataType": "NUMERIC",
            "source": "API",
            "comment": None,
        }
        return base | more

    def trace(self, **more: Any) -> dict[str, Any]:
        base = {
            "id": "t1",
            "timestamp": "2026-01-05T09:00:00Z",
            "input": "Hi",
            "output": "Hello!",
            "sessionId": "s",
            "userId": "u",
        }
        return {"trace": base | more, "observations": []}

    @pytest.mark.parametrize(
        "text",
        [
            "What?",
            '"What?"',
            '"\\"What?\\""',
            {"prompt": "What?"},
            {"contents": "What?"},
            {"contents": [{"role": "user", "parts": [{"text": "What?"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}]}]},
            [{"role": "user", "parts": [{"type": "text", "content": "What?"}]}],
            {"args": ["What?"], "kwargs": {}},
        ],
    )
    def test_an_input_of_any_framework_is_opened(self, text: Any) -> None:
        (trace,) = traces(read("langfuse", self.trace(input=text)))
        assert trace.input == [{"role": "user", "content": "What?"}]

    @pytest.mark.parametrize(
        "text",
        [
            "That.",
            '"That."',
            {"role": "assistant", "content": "That."},
            {"choices": [{"message": {"role": "assistant", "content": "That."}}]},
            {"candidates": [{"content": {"role": "model", "parts": [{"text": "That."}]}}]},
            [
                {"role": "user", "content": "no"},
                {
                    "role": "assistant",
                    "parts": [{"type": "text", "content": "That."}],
                    "finish_reason": "stop",
                },
            ],
        ],
    )
    def test_an_output_of_any_framework_is_opened(self, text: Any) -> None:
        assert traces(read("langfuse", self.trace(output=text)))[0].output == "That."

    def test_a_metric_of_unknown_direction_teaches_nothing_and_is_kept(self) -> None:
        for name, value in (("toxicity", 0.8), ("hallucination", 1)):
            assert feedback_in(
                read("langfuse", self.score(name=name, value=value, source="EVAL"))
            ) == [("label", f"{value:g}")]

    def test_opinions_are_known_by_name_and_by_what_a_person_says(self) -> None:
        assert feedback_in(read("langfuse", self.score())) == [("thumb", True)]
        assert feedback_in(read("langfuse", self.score(name="user_feedback", value=0))) == [
            ("thumb", False)
        ]
        assert feedback_in(
            read("langfuse", self.score(name="helpful", value=1, dataType="BOOLEAN"))
        ) == [("label", True)]
        assert "--scale quality=WORST:BEST" in reason(
            "langfuse", self.score(name="quality", value=4)
        )
        source: Any = SOURCES.get("langfuse")
        source = source.with_mapping({"score": "brand fit"}, {"brand fit": (1.0, 10.0)})
        (parsed,) = source.parse(self.score(name="brand fit", value=4))
        assert (parsed.kind, parsed.value, parsed.scale.max) == ("score", 4, 10)

    def test_table_rows_in_both_spellings_and_pages_of_the_api(self) -> None:
        snake = {
            "id": "s1",
            "trace_id": "t1",
            "name": "rating",
            "value": "4",
            "data_type": "NUMERIC",
            "source": "ANNOTATION",
            "author_user_id": "ann",
        }
        (records,) = read("langfuse", snake)
        assert isinstance(records, FeedbackRecord)
        assert (
            records.kind,
            records.value,
            records.rater and records.rater.id,
            records.targets[0].id,
        ) == (
            "rating",
            4,
            "ann",
            "t1",
        )
        session = self.score(traceId=None, sessionId="x")
        assert [
            record.targets[0].kind
            for record in read("langfuse", session)
            if isinstance(record, FeedbackRecord)
        ] == ["session"]

    def test_an_element_of_a_page_costs_no_other(self, tmp_path: Path) -> None:
        page = {
            "data": [
                self.score(),
                {"id": "t9", "timestamp": "x", "input": None},
                5,
                self.score(id="s2"),
            ],
            "meta": {"page": 1},
        }
        (path := tmp_path / "page.jsonl").write_text(
            json.dumps(page) + "\n" + json.dumps(self.score(id="s3")) + "\n"
        )
        items = list(SOURCES.get("langfuse").read(path, lambda position: None))
        assert [type(item) for item in items] == [Line, Refused, Refused, Line, Line]
        assert [item.number for item in items] == [1, 2, 3, 4, 5]

    def test_a_score_that_was_changed_is_another_one(self) -> None:
        times = {"timestamp": "2026-01-05T09:00:00Z"}
        forms = [times, times, times | {"updatedAt": "2026-01-06T09:00:00Z"}]
        first, again, later = (
            record for more in forms for record in read("langfuse", self.score(**more))
        )
        assert (
            first.id == again.id != later.id
            and isinstance(later, FeedbackRecord)
            and later.occurred_at is not None
        )
        assert later.occurred_at.day == 6

    def test_what_cannot_be_is_refused(self) -> None:
        assert "holds an input" in reason("langfuse", self.trace(input=None))
        assert "neither a trace nor a session" in reason("langfuse", self.score(traceId=None))
        assert "no number" in reason("langfuse", self.score(value="much"))

    @pytest.mark.parametrize(
        ("file", "steps", "scores", "corrections"),
        [
            ("crewai-2025-07-11", 6, 2, 0),
            ("csharp-agent-with-gemini-2026-03-09", 8, 0, 0),
            ("google-gemini-2025-08-01", 1, 2, 0),
            ("llamaindex-2025-06-05", 2, 0, 0),
            ("pydantic-ai-2025-06-06", 3, 0, 1),
            ("pydantic-ai-tools-2025-12-04", 12, 0, 0),
            ("vercel-aisdk-2025-11-17", 3, 2, 0),
            ("vertex-ai-2025-08-01", 1, 2, 0),
        ],
    )
    def test_real_downloads(self, file: str, steps: int, scores: int, corrections: int) -> None:
        path = public_data(f"otel-traces/langfuse-export/{file}.json")
        raw = json.loads(path.read_text())
        assert (len(raw["observations"]), len(raw["trace"]["scores"])) == (steps, scores)
        (item,) = SOURCES.get("langfuse").read(path, lambda position: None)
        assert isinstance(item, Line), item
        trace, *feedback = item.records
        assert isinstance(trace, TraceRecord)
        assert (trace.id, len(trace.steps)) == (raw["trace"]["id"], steps)
        assert sum(step.kind == "tool" for step in trace.steps) == sum(
            observation["type"] == "TOOL" for observation in raw["observations"]
        )
        assert trace.output and not trace.output.startswith("null")
        kinds = [record.kind for record in feedback if isinstance(record, FeedbackRecord)]
        assert kinds == ["label"] * scores + ["correction"] * corrections


class TestOpenAI:
    ASKED: ClassVar[Any] = {"role": "user", "content": "2 + 2?"}

    def test_a_chat_is_a_good_answer_with_its_tools(self) -> None:
        tools = [{"type": "function", "function": {"name": "add"}}]
        row = {
            "messages": [
                {"role": "system", "content": "Be short."},
                self.ASKED,
                {"role": "assistant", "content": "4"},
            ],
            "tools": tools,
        }
        records = read("openai", row)
        (trace,) = traces(records)
        assert (len(trace.input), trace.output, trace.metadata) == (2, "4", {"tools": tools})
        assert feedback_in(records) == [("label", True)]
        older = read("openai", {"messages": row["messages"], "functions": [{"name": "add"}]})
        assert traces(older)[0].metadata == {"tools": tools}

    def test_calls_in_their_older_form_are_calls(self) -> None:
        call = {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "look_up", "arguments": "{}"},
        }
        asked, later = (
            {"role": "user", "content": "Hours?"},
            {"role": "function", "name": "look_up", "content": "9-17"},
        )
        (*_, trace) = traces(
            read(
                "openai",
                {"messages": [asked, call, later, {"role": "assistant", "content": "Nine."}]},
            )
        )
        assert (
            trace.input[1]["tool_calls"][0]["function"]["name"] == "look_up"
            and trace.input[1]["content"] is None
        )
        (ends_in_call, *_) = traces(read("openai", {"messages": [asked, call]}))
        assert ends_in_call.output is None
        assert ends_in_call.steps[-1].output["tool_calls"][0]["function"]["name"] == "look_up"

    def test_weight_zero_says_nothing(self) -> None:
        assert (
            feedback_in(
                read(
                    "openai",
                    {"messages": [self.ASKED, {"role": "assistant", "content": "5", "weight": 0}]},
                )
            )
            == []
        )

    def test_a_preference(self) -> None:
        outputs = {
            "preferred_output": [{"role": "assistant", "content": "4"}],
            "non_preferred_output": [{"role": "assistant", "content": "5"}],
        }
        records = read(
            "openai",
            {"input": {"messages": [self.ASKED], "tools": [], "parallel_tool_calls": True}}
            | outputs,
        )
        assert [trace.output for trace in traces(records)] == ["4", "5"]
        assert feedback_in(records) == [("preference", {"ranking": [[0], [1]]})]

    def test_what_cannot_be_is_refused(self) -> None:
        assert "no answer of the assistant" in reason("openai", {"messages": [self.ASKED]})
        assert "not one message" in reason(
            "openai",
            {
                "input": {"messages": [self.ASKED]},
                "preferred_output": [],
                "non_preferred_output": [],
            },
        )


class TestTrl:
    CHAT: Any = ([{"role": "user", "content": "Hi"}], [{"role": "assistant", "content": "Hello!"}])

    @pytest.mark.parametrize(("prompt", "completion"), [("Hi", "Hello!"), CHAT])
    def test_layouts_of_one_answer(self, prompt: Any, completion: Any) -> None:
        for label, wanted in (
            (None, ("label", True)),
            (True, ("thumb", True)),
            ("False", ("thumb", False)),
            (0, ("thumb", False)),
        ):
            row = {"prompt": prompt, "completion": completion} | (
                {} if label is None else {"label": label}
            )
            records = read("trl", row)
            assert (traces(records)[0].input, traces(records)[0].output) == (self.CHAT[0], "Hello!")
            assert feedback_in(records) == [wanted]
        assert traces(read("trl", {"prompt": prompt}))[0].output is None

    def test_pairs_with_and_without_a_prompt(self) -> None:
        for row in (
            {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"},
            {"chosen": "Hi Hello!", "rejected": "Hi What?"},
        ):
            records = read("trl", row)
            assert [trace.output for trace in traces(records)] == ["Hello!", "What?"]
            assert SOURCES.get("preference").claims(row) and not SOURCES.get("trl").claims(row)

    def test_stepwise_completions_are_judged_steps(self) -> None:
        row = {
            "prompt": "2 + 3 * 4?",
            "completions": ["3 * 4 = 12.", "12 + 2 = 15."],
            "labels": [True, False],
        }
        records = read("trl", row)
        feedback = [record for record in records if isinstance(record, FeedbackRecord)]
        assert [
            (record.targets[0].kind, record.targets[0].step, record.value) for record in feedback
        ] == [
            ("step", 0, True),
            ("step", 1, False),
        ]
        assert [step.output for step in traces(records)[0].steps[:2]] == row["completions"]
        assert "1 labels for 2 completions" in reason("trl", row | {"labels": [True]})

    def test_a_bare_text_says_why_it_cannot_be_used(self) -> None:
        assert "does not say what was asked" in reason("trl", {"text": "The sky is blue."})


HOSTILE = [
    None,
    True,
    7,
    -1.5,
    "",
    "x" * 3,
    [],
    {},
    [[]],
    [{}],
    {"role": 1},
    [None],
    {"a": {"b": [{}]}},
]


@pytest.mark.parametrize(
    "name",
    [
        "openwebui",
        "langfuse",
        "openai",
        "trl",
        "n3",
        "feedback_jsonl",
        "tau",
        "bfcl",
        "mbpp",
        "humaneval",
        "llmfao",
    ],
)
def test_wrong_types_anywhere_are_refused_in_words(name: str) -> None:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)

    def spoilt(value: Any, bad: Any) -> list[Any]:
        if isinstance(value, dict):
            return [
                value | {key: spoilt_part}
                for key, part in value.items()
                for spoilt_part in (bad, *spoilt(part, bad))
            ]
        if isinstance(value, list):
            return [
                [*value[:index], spoilt_part, *value[index + 1 :]]
                for index, part in enumerate(value)
                for spoilt_part in (bad, *spoilt(part, bad))
            ]
        return []

    for text in source.example.splitlines():
        for bad in HOSTILE:
            for row in spoilt(json.loads(text), bad):
                item = source.item(1, row, "")
                assert isinstance(item, Line) or item.reason


@pytest.mark.parametrize("name", ["openwebui", "langfuse", "openai", "trl", "tau"])
def test_deep_nesting_is_no_recursion(name: str, tmp_path: Path) -> None:
    source = SOURCES.get(name)
    assert isinstance(source, JsonLines)
    for text in source.example.splitlines():
        for key in (row := json.loads(text)):
            deep: Any = "x"
            for _ in range(150):
                deep = {"content": [deep]}
            try:
                source.parse(row | {key: deep})
            except (Unreadable, ValidationError):
                continue
