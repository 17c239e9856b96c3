"""What FlowAgent left behind: trace files, folders of them, checkpoints of both generations;
nothing twice, nothing secret."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat.isaa import TraceCollector
from thumbwheel.compat.isaa.source import EXAMPLE, SOURCE
from thumbwheel.db.schema import feedback, steps, traces
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.source import Item, Line, Refused
from thumbwheel.importers.types import FeedbackRecord, TraceRecord

BASE = "toolboxv2.mods.isaa.base.Agent"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a checkpoint of the named class with these fields; the class is gone afterwards."""

    def checkpoint(name: str, where: str = "types", **fields: Any) -> Path:
        path = f"{BASE}.{where}"
        parts = path.split(".")
        modules = [".".join(parts[: count + 1]) for count in range(len(parts))]
        for module in modules:
            sys.modules[module] = types.ModuleType(module)
        kind = dataclasses.make_dataclass("AgentCheckpoint", fields.keys())
        kind.__module__, kind.__qualname__ = path, "AgentCheckpoint"
        sys.modules[path].AgentCheckpoint = kind  # type: ignore[attr-defined]
        file = tmp_path / "checkpoints" / f"{name}.pkl"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickle.dumps(kind(**fields)))
        for module in modules:
            del sys.modules[module]
        return file

    yield checkpoint
    assert not [name for name in sys.modules if name.startswith("toolboxv2")]


def message(role: str, content: str, minute: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": content,
        **({"timestamp": f"2026-01-05T08:{minute:02}:00"} if minute is not None else {}),
        **more,
    }


def first(history: list[Any], **more: Any) -> dict[str, Any]:
    """The fields of a checkpoint of the first generation."""
    sessions = {"s1": {"history": history, "session_type": "chatsession"}}
    return {
        "timestamp": datetime(2026, 1, 5, 9, tzinfo=UTC),
        "session_data": sessions,
        "metadata": {"agent_name": "isaa"},
    } | more


def second(history: list[Any], **more: Any) -> dict[str, Any]:
    """The fields of a checkpoint of the second generation."""
    sessions = {"version": 2, "sessions": {"s1": {"session_id": "s1", "chat_history": history}}}
    return {
        "version": "2.0",
        "agent_name": "isaa",
        "sessions_data": sessions,
        "statistics": {"total_tokens_in": 9_000_000},
    } | more


def read(path: Path) -> list[Item]:
    return list(SOURCE.read(path, lambda position: None))


def turns(path: Path) -> list[TraceRecord]:
    return [
        record
        for item in read(path)
        if isinstance(item, Line)
        for record in item.records
        if isinstance(record, TraceRecord)
    ]


def talk(trace: TraceRecord) -> tuple[str, str | None]:
    return trace.input[0]["content"], trace.output


def bring(home: Path, path: Path) -> ImportReport:
    with opener(home, None, "warning")() as ws:
        return ingest(ws, "isaa", "flowagent", path)


def test_the_first_generation_pairs_a_turn_with_the_next_answer(write: Write) -> None:
    history = [
        message("assistant", "of a turn that was cut off", 1),
        message("user", "Hours?", 2, metadata={"user_id": "ann"}),
        message("tool", "9-17", 2, name="search", arguments={"q": "hours"}),
        message("tool", "", 2, name="open", arguments={}, error="404"),
        message("assistant", "Nine to five.", 3, metadata={"execution_duration": 30.0}),
        message("assistant", "Anything else?", 4),
        message("user", "   ", 5),
        message("user", "Sunday?", 6),
        message(
            "assistant", "I am sorry.", 7, metadata={"error": True, "error_type": "TimeoutError"}
        ),
        message("user", "Hello?", 8),
    ]
    hours, sunday = turns(write("final_checkpoint", **first(history)))
    assert talk(hours) == ("Hours?", "Nine to five.") and talk(sunday) == ("Sunday?", "I am sorry.")
    assert (hours.session, hours.subject, hours.metadata) == ("s1", "ann", {"agent_name": "isaa"})
    search, opened, answer = hours.steps
    assert (search.kind, search.name, search.input, search.output, search.status) == (
        "tool",
        "search",
        {"q": "hours"},
        "9-17",
        "ok",
    )
    assert (opened.output, opened.status) == ("404", "error")
    assert answer.kind == "llm" and answer.started_at and answer.ended_at
    assert (answer.ended_at - answer.started_at).total_seconds() == 30
    assert (sunday.status, sunday.metadata) == (
        "error",
        {"agent_name": "isaa", "error_type": "TimeoutError"},
    )


def test_the_second_generation_pairs_a_turn_with_the_last_answer_that_is_no_summary(
    write: Write,
) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"q": "hours"}'},
    }
    history = [
        message("user", "Hours?"),
        message("assistant", "", tool_calls=[call]),
        message("tool", "9-17", tool_call_id="c1"),
        message("assistant", "Let me see."),
        message("assistant", "RUN SUMMARY [r1]: looked it up"),
        message("assistant", "Nine to five."),
        message("user", "Sunday?"),
        message("assistant", "RUN SUMMARY [r2]: nothing found"),
    ]
    (hours,) = turns(write("final_checkpoint", "checkpoint_manager", **second(history)))
    assert talk(hours) == ("Hours?", "Nine to five.")
    assert hours.metadata == {"agent_name": "isaa", "run_summary": "RUN SUMMARY [r1]: looked it up"}
    assert [(step.kind, step.name, step.input) for step in hours.steps] == [
        ("tool", "search", {"q": "hours"}),
        ("llm", None, None),
    ]


def test_defect_0c3_lifetime_totals_are_nobodys_tokens(write: Write) -> None:
    history = [message("user", "a", 1), message("assistant", "b", 2)]
    state = {"total_tokens_in": 9_000_000, "total_cost_accumulated": 12.5, "total_llm_calls": 77}
    old = turns(write("old", **first(history, agent_state=state)))
    new = turns(write("new", "checkpoint_manager", **second(history)))
    for trace in (*old, *new):
        assert all(step.tokens is None for step in trace.steps)
        assert "9000000" not in trace.model_dump_json() and "12.5" not in trace.model_dump_json()


def test_defect_0c9_a_task_belongs_to_the_one_turn_that_created_it(write: Write) -> None:
    def task(minute: int, done: int | None, **more: Any) -> dict[str, Any]:
        finished: dict[str, Any] = {"status": "running"}
        if done:
            finished = {
                "completed_at": datetime(2026, 1, 5, 8, done),
                "status": "completed",
                "result": "r" * 900,
            }
        return {
            "type": "LLMTask",
            "description": "d" * 900,
            "created_at": datetime(2026, 1, 5, 8, minute),
            **finished,
            **more,
        }

    tasks = {
        "t1": task(2, 4),
        "t2": task(2, None),
        "t3": task(11, 20),
        "t4": task(30, 31),
        "t5": task(3, 4, status="failed", error="no"),
    }
    history = [
        message("user", "a", 1),
        message("assistant", "b", 5),
        message("user", "c", 10),
        message("assistant", "d", 12),
    ]
    turn, later_turn = turns(write("x", **first(history, task_state=tasks)))
    assert [(step.input["task_id"], step.status, step.output) for step in turn.steps[:-1]] == [
        ("t1", "completed", "r" * 500),
        ("t2", "created", None),
        ("t5", "failed", "no"),
    ]
    assert [(step.input["task_id"], step.status) for step in later_turn.steps[:-1]] == [
        ("t3", "created")
    ]
    untimed = [message("user", "a"), message("assistant", "b")]
    (alone,) = turns(write("y", **first(untimed, task_state=tasks)))
    assert [step.kind for step in alone.steps] == ["llm"]


def test_defect_0c10_overlapping_checkpoints_add_nothing_and_equal_turns_stay_apart(
    write: Write, tmp_path: Path
) -> None:
    everything = [
        turn
        for n in range(30)
        for turn in (message("user", f"q{n % 10}", n), message("assistant", f"a{n % 10}", n))
    ]
    untimed = [
        turn
        for n in range(6)
        for turn in (message("user", "same"), message("assistant", "same answer"))
    ]
    for number, end in enumerate((20, 40, 60)):
        write(
            f"agent_checkpoint_2026010{number}",
            **first(everything[max(0, end - 50) : end], results_store={}),
        )
        write(f"other_{number}", "checkpoint_manager", **second(untimed))
    folder = tmp_path / "checkpoints"
    (folder / "final.meta.json").write_text('{"summary": "x", "timestamp": "y"}')
    report = bring(tmp_path / "home", folder)
    assert (report.records["trace"], report.refused) == (36, 0)
    again = bring(tmp_path / "home", folder)
    assert (again.stored, again.duplicates, again.refused) == (0, report.read, 0)


@pytest.mark.sqlite
def test_defect_0c2_secrets_never_enter_the_store(write: Write, tmp_path: Path) -> None:
    plain, secrets = "correct-horse-battery", "sk-abcdefghijklmnop1234567890"
    state = {
        "amd_data": {"name": "isaa", "api_key": plain, "model": "amd-model-name"},
        "nested": [{"OPENAI_API_KEY": "unusual key 77"}],
    }
    history = [
        message("user", f"my key is {plain}, and {secrets}", 1),
        message(
            "tool",
            '{"Authorization": "Bearer abcdefghijklmnopqrstuvwx"}',
            1,
            name="http",
            arguments={"api_key": "k3y-of-call"},
        ),
        message(
            "tool",
            "password=hunter22 postgresql://app:sesame99@host unusual key 77",
            1,
            name="cat",
            arguments={"apiKey": "k3y-camel"},
        ),
        message("assistant", f"Thanks for {plain} k3y-of-call", 2),
    ]
    write(
        "final_checkpoint",
        **first(history, agent_state=state, variable_scopes={"amd_data": "hidden-model-settings"}),
    )
    day = tmp_path / "checkpoints" / "2026-01-05"
    day.mkdir()
    row = {
        **json.loads(EXAMPLE),
        "api_key": "k3y-in-file",
        "final_response": "it is k3y-in-file and ghp_" + "a" * 36,
    }
    (day / "a.json").write_text(json.dumps(row))
    (day / "refused.json").write_text(json.dumps({**row, "user_query": 5}))
    rejects = tmp_path / "rejects.jsonl"
    with opener(tmp_path / "home", None, "warning")() as ws:
        report = ingest(ws, "isaa", "flowagent", tmp_path / "checkpoints", rejects=rejects)
        with ws.db.read() as connection:
            outputs = list(connection.execute(traces.select()).mappings())
    assert report.records["trace"] == 2 and report.refused == 1
    assert any("[secret removed]" in row["output"] for row in outputs)
    stored = b"".join(
        path.read_bytes() for path in [*tmp_path.glob("home/**/*"), rejects] if path.is_file()
    )
    assert b"Thanks for" in stored
    names = (
        "unusual key 77",
        "abcdefghijklmnopqrstuvwx",
        "hunter22",
        "sesame99",
        "k3y-",
        "ghp_",
        "amd-model-name",
        "hidden-model",
    )
    for secret in (plain, secrets, *names):
        assert secret.encode() not in stored, secret


def test_a_folder_by_day_is_read_whole_and_what_is_broken_costs_itself(tmp_path: Path) -> None:
    for day in ("2026-01-05", "2026-01-06"):
        (tmp_path / "rl" / day).mkdir(parents=True)
        trace = {**json.loads(EXAMPLE), "trace_id": f"id-{day}", "colour": "red"}
        (tmp_path / "rl" / day / "a.json").write_text(json.dumps(trace, indent=2))
        (tmp_path / "rl" / day / "note.txt").write_text("no trace")
    (tmp_path / "rl" / "b.json").write_text("{")
    (tmp_path / "rl" / "c.pkl").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "rl" / "d.json").write_text("")
    (tmp_path / "rl" / "e.json").write_text('{"summary": 1}')
    items = read(tmp_path / "rl")
    assert [item.number for item in items] == list(range(1, len(items) + 1))
    assert [turn.id for turn in turns(tmp_path / "rl")] == ["id-2026-01-05", "id-2026-01-06"]
    reasons = [item.reason for item in items if isinstance(item, Refused)]
    assert (
        len(reasons) == 4
        and any("no checkpoint" in reason for reason in reasons)
        and any("empty" in reason for reason in reasons)
    )


def test_a_trace_file_keeps_its_steps_label_and_score_apart() -> None:
    row = json.loads(EXAMPLE) | {
        "reasoning_steps": [
            {
                "step_type": "internal_reasoning",
                "content": "think",
                "confidence": 0.5,
                "insights": ["i"],
                "issues": [],
            }
        ],
        "tasks_created": [{"task_id": "t", "type": "LLMTask", "description": "d"}],
        "tasks_failed": [{"error": "boom", "type": "execution_error"}],
        "reward_score": 0.75,
        "review_notes": "fine",
        "total_tokens_out": 30,
        "total_cost": 0.25,
    }
    item = SOURCE.item(1, row, "")
    assert isinstance(item, Line), item
    trace, thumb, score = item.records
    assert (
        isinstance(trace, TraceRecord)
        and isinstance(thumb, FeedbackRecord)
        and isinstance(score, FeedbackRecord)
    )
    assert [step.kind for step in trace.steps] == ["reasoning", "task", "tool", "llm"]
    assert (trace.status, trace.metadata) == ("error", {"total_cost": 0.25, "error": "boom"})
    assert trace.steps[-1].tokens and trace.steps[-1].tokens.prompt == 812
    assert (thumb.value, thumb.comment, thumb.rater) == (True, "fine", None)
    assert (score.value, score.rater and score.rater.kind) == (0.75, "checker")
    for wrong in (
        {"reward_score": 7},
        {"label": "good"},
        {"tool_calls": [3]},
        {"tool_calls": 3},
        {"timestamp": "soon"},
    ):
        assert isinstance(SOURCE.item(1, row | wrong, ""), Refused), wrong


def test_what_the_sdk_recorded_is_known_when_its_folder_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    collector = TraceCollector(tmp_path / "rl", agent="isaa")
    collector.start_trace("s", "q")
    collector.record_tool_call("t", {"a": 1.0}, "r", False, 1.5, "broken")
    collector.record_reasoning_step("internal_reasoning", "think", 0.5)
    collector.record_task({"task_id": 1, "type": "x"}, "completed")
    collector.finish_trace("a", 1, 2, 0.5, 10.0, 1)
    TraceCollector(tmp_path / "rl").start_trace("s", "unknown to the home")
    report = bring(tmp_path / "home", tmp_path / "rl")
    assert (report.read, report.stored, report.duplicates, report.refused) == (1, 0, 1, 0)
    with opener(tmp_path / "home", None, "warning")() as ws, ws.db.read() as connection:
        assert len(list(connection.execute(traces.select()))) == 1
        assert [
            row["kind"]
            for row in connection.execute(steps.select().order_by(steps.c.position)).mappings()
        ] == [
            "reasoning",
            "tool",
            "task",
            "llm",
        ]
        assert not list(connection.execute(feedback.select()))


def test_odd_checkpoints_lose_what_is_odd_and_no_more(write: Write) -> None:
    good = [message("user", "q\x00\ud800", 1), message("assistant", "a", 2)]
    odd = {
        "good": {
            "history": [3, None, *good, {"role": "user"}, {"role": "assistant", "content": ["x"]}]
        },
        "list": [],
        "none": None,
        "text": {"history": "abc"},
        "times": {
            "history": [
                message("user", "t") | {"timestamp": "yesterday", "metadata": "no"},
                message("assistant", "u") | {"timestamp": 3},
            ]
        },
    }
    path = write(
        "odd",
        **(
            first([])
            | {
                "session_data": odd,
                "metadata": None,
                "task_state": {"x": None, "y": {"created_at": "z"}},
            }
        ),
    )
    assert [talk(turn) for turn in turns(path)] == [("q�?", "a"), ("t", "u")]
    for fields in (
        first([]) | {"session_data": None},
        {"timestamp": None},
        {"sessions_data": {"sessions": [1]}},
    ):
        assert read(write("empty", **fields)) == []


@pytest.mark.parametrize("generation", [first, second])
@pytest.mark.parametrize(
    "wordless",
    ["", "   ", None, [], [{"type": "image_url", "image_url": {"url": "data:x"}}], {"parts": []}],
    ids=repr,
)
def test_defect_0_61_a_turn_without_words_ends_the_one_before_it(
    write: Write, generation: Any, wordless: Any
) -> None:
    history = [
        message("user", "Hours?"),
        message("assistant", "Nine to five."),
        {"role": "user", "content": wordless},
        message("assistant", "I cannot see that."),
        message("user", "Sunday?"),
        {"role": "user", "content": wordless},
        message("assistant", "Nor that."),
        message("user", "Monday?"),
        message("assistant", "Open."),
    ]
    answered = turns(write("final_checkpoint", **generation(history)))
    assert [talk(turn) for turn in answered] == [("Hours?", "Nine to five."), ("Monday?", "Open.")]


@pytest.mark.parametrize("generation", [first, second])
def test_a_question_in_parts_has_its_own_answer(write: Write, generation: Any) -> None:
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": {"url": "data:x"}},
        {"type": "text", "text": "this?"},
    ]
    history = [
        message("user", "Hours?"),
        message("assistant", "Nine to five."),
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "A pump."}]},
    ]
    answered = turns(write("final_checkpoint", **generation(history)))
    assert [talk(turn) for turn in answered] == [
        ("Hours?", "Nine to five."),
        ("What is this?", "A pump."),
    ]


def scopes(minute: int) -> dict[str, Any]:
    """The variables of a run that ended in this minute."""
    timestamp = f"2026-01-05T08:{minute:02}:00"
    loops = {
        f"loop_{n}": {
            "task": f"look up {n}",
            "response": "r" * 900,
            "results": {"a": n},
            "timestamp": timestamp,
        }
        for n in (10, 9)
    }
    return {
        "reasoning": {
            "final_result": "f" * 1500,
            "session_complete": {"timestamp": timestamp, "loops": 3, "success": True},
        },
        "delegation": {
            **loops,
            "latest": {"task_description": "look up 10", "final_response": "r"},
            "error": None,
        },
        "user": {"id": "ann", "session": "s1", "query": "Sunday?"},
        "session_s1": {"secret": "hidden-variable"},
    }


def thoughts(trace: TraceRecord) -> list[tuple[str | None, Any, int]]:
    return [
        (step.name, step.input, len(step.output))
        for step in trace.steps
        if step.kind == "reasoning"
    ]


DONE = [
    ("final_result", {"loops": 3, "success": True}, 1000),
    ("delegation", {"task": "look up 9", "loop": "loop_9"}, 500),
    ("delegation", {"task": "look up 10", "loop": "loop_10"}, 500),
]


@pytest.mark.parametrize("generation", [first, second])
def test_reasoning_and_delegation_belong_to_the_turn_in_whose_time_they_were(
    write: Write, tmp_path: Path, generation: Any
) -> None:
    history = [
        message("user", "Hours?", 1),
        message("assistant", "Nine.", 5),
        message("user", "Sunday?", 6),
        message("assistant", "Closed.", 9),
    ]
    for minute, owners in ((3, [DONE, []]), (8, [[], DONE]), (30, [[], []])):
        answered = turns(
            write("final_checkpoint", **generation(history, variable_scopes=scopes(minute)))
        )
        assert [thoughts(turn) for turn in answered] == owners
        assert "hidden-variable" not in "".join(turn.model_dump_json() for turn in answered)
    untimed = [
        {key: value for key, value in message.items() if key != "timestamp"} for message in history
    ]
    answered = turns(write("final_checkpoint", **generation(untimed, variable_scopes=scopes(3))))
    assert [thoughts(turn) for turn in answered] == [[], DONE], (
        "the scope of the user says which question it was"
    )
    answered = turns(
        write("final_checkpoint", **generation(untimed, variable_scopes=scopes(3) | {"user": {}}))
    )
    assert [thoughts(turn) for turn in answered] == [[], []], "nobody knows"
    alone = turns(
        write(
            "final_checkpoint",
            **generation(
                untimed[:2],
                variable_scopes={"delegation": {"latest": scopes(3)["delegation"]["latest"]}},
            ),
        )
    )
    assert thoughts(alone[0]) == [("delegation", {"task": "look up 10", "loop": "latest"}, 1)]


def test_a_later_checkpoint_that_knows_less_of_a_turn_is_no_contradiction(
    write: Write, tmp_path: Path
) -> None:
    history = [message("user", "Hours?", 1), message("assistant", "Nine.", 5)]
    path = write("final_checkpoint", **second(history, variable_scopes=scopes(3)))
    assert bring(tmp_path / "home", path).stored == 1
    later = [*history, message("user", "Sunday?", 6), message("assistant", "Closed.", 9)]
    report = bring(
        tmp_path / "home", write("final_checkpoint", **second(later, variable_scopes=scopes(8)))
    )
    assert (report.stored, report.duplicates, report.refused) == (1, 1, 0), report.refusals
    with opener(tmp_path / "home", None, "warning")() as ws, ws.db.read() as connection:
        kinds = [row["kind"] for row in connection.execute(steps.select()).mappings()]
    assert (kinds.count("reasoning"), kinds.count("llm")) == (6, 2)


@pytest.mark.parametrize(
    "odd",
    [
        3,
        "x",
        [1],
        {"reasoning": 3, "delegation": [1]},
        {"delegation": {"loop_x": 3, "latest": None, 5: 6}},
    ],
)
def test_odd_scopes_are_passed_over(write: Write, odd: Any) -> None:
    history = [message("user", "Hours?", 1), message("assistant", "Nine.", 5)]
    (alone,) = turns(write("final_checkpoint", **second(history, variable_scopes=odd)))
    assert [step.kind for step in alone.steps] == ["llm"]


def test_the_user_of_a_turn_is_its_subject_in_both_generations(write: Write) -> None:
    answered = message("assistant", "Nine to five.", 2)
    with_answer = message("assistant", "Nine to five.", 2, metadata={"user_id": "bob"})
    by_session = {
        "session_data": {
            "s1": {
                "history": [message("user", "Hours?", 1), answered],
                "metadata": {"user_id": "carl"},
            }
        }
    }
    by_variables = {"variable_scopes": {"user": {"id": "dora", "session": "s1", "query": "Hours?"}}}
    of_another = {"variable_scopes": {"user": {"id": "dora", "session": "s2"}}}
    wanted = {
        write(
            "a", **first([message("user", "Hours?", 1, metadata={"user_id": "ann"}), with_answer])
        ): "ann",
        write("b", **first([message("user", "Hours?", 1), with_answer])): "bob",
        write("c", **first([], **by_session)): "carl",
        write("d", **first([message("user", "Hours?", 1), answered], **by_variables)): "dora",
        write("e", **first([message("user", "Hours?", 1), answered], **of_another)): None,
        write(
            "f", **first([message("user", "Hours?", 1, metadata={"user_id": {"a": 1}}), answered])
        ): None,
    }
    session = {
        "session_id": "s1",
        "metadata": {"user_id": "eve"},
        "chat_history": [message("user", "Hours?", 1), answered],
    }
    module = "checkpoint_manager"
    wanted |= {
        write(
            "g", module, **second([], sessions_data={"version": 2, "sessions": {"s1": session}})
        ): "eve",
        write(
            "h",
            module,
            **second([message("user", "Hours?", 1, metadata={"user_id": "ann"}), answered]),
        ): "ann",
        write("i", module, **second([message("user", "Hours?", 1, user_id=7), answered])): "7",
    }
    for path, subject in wanted.items():
        (turn,) = turns(path)
        assert turn.subject == subject, path.name
