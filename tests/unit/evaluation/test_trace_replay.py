"""A version answers recorded traces: which ones it is asked, what is stored of its answers, and
what a vote between the two answers becomes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
from tests.opened_home import invoked
from tests.servers.scripted_upstream import Received, ScriptedUpstream, reply
from tests.worlds.feedback_world import AGENT as TAUGHT
from tests.worlds.gateway_world import AGENT, opened_home, running
from tests.worlds.taught_world import PLACES
from thumbwheel.app.python_api import OpenAgent
from thumbwheel.capture.feedback import add_feedback, list_feedback
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.prompts import prompts
from thumbwheel.capture.recent import quality, use
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.core.errors import DataError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.evaluation.jobs import run_replay
from thumbwheel.evaluation.replay_commands import replay
from thumbwheel.evaluation.replay_types import ReplaySpec
from thumbwheel.evaluation.trace_replay import select_traces, show_replay
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress
from thumbwheel.review.commands import queue

SUPPORT = Agent.named(AGENT)
LINES: list[dict[str, Any]] = [
    {
        "type": "trace",
        "id": f"t{number}",
        "subject": f"customer-{number}",
        "session": f"chat-{number}",
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"question {number}"},
        ],
        "output": "again: question 0" if number == 0 else f"answer {number}",
    }
    for number in range(4)
]
WITH_TOOLS = {
    "type": "trace",
    "id": "tools",
    "input": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "weather"}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ],
    "output": "Rain.",
}
WITHOUT_ANSWER = {"type": "trace", "id": "silent", "input": "hello?"}
FORMULA = {"type": "trace", "id": "sum", "input": "=1+1", "output": "=2"}


class Asked:
    """Questions that the model server got."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.refused: set[str] = set()

    def answer(self, request: Received) -> Iterable[Any]:
        if not request.body:
            return [reply({"object": "list", "data": [{"id": "candidate"}]})]
        messages = json.loads(request.body)["messages"]
        question = messages[-1]["content"]
        self.questions.append(question)
        if question in self.refused:
            return [reply({"error": {"message": "too long"}}, status="400 Bad Request")]
        message = {"role": "assistant", "content": f"again: {question}"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return [reply({"model": "candidate", "choices": [choice], "usage": usage})]


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def ws(tmp_path: Path, asked: Asked) -> Iterator[Workspace]:
    """A home with recorded traces and a version that is not deployed anywhere."""
    with ScriptedUpstream(asked.answer) as upstream, opened_home(tmp_path / "home") as opened:
        add_lines(opened, tmp_path, LINES)
        versions.add_endpoint(opened, AGENT, EndpointAddress(upstream.url, "candidate"))
        yield opened


def add_lines(ws: Workspace, folder: Path, lines: list[dict[str, Any]]) -> None:
    file = folder / "traces.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    ingest(ws, AGENT, "jsonl", file)


def trace_id(ws: Workspace, name: str) -> str:
    return str(show_trace(ws, AGENT, name)["id"])


def spec_of(ws: Workspace, *names: str) -> ReplaySpec:
    return ReplaySpec(version="v0", agent=AGENT, traces=tuple(trace_id(ws, name) for name in names))


def test_the_answers_are_traces_of_the_version_beside_the_recorded_ones(ws: Workspace) -> None:
    result = run_replay(ws, spec_of(ws, "t0", "t2"))
    assert (result.version, result.answered, result.equal, result.left_out) == ("v0", 2, 1, {})
    shown = show_replay(ws, SUPPORT, result.id)
    assert [(row.question, row.before, row.after, row.is_equal) for row in shown.traces] == [
        ("question 0", "again: question 0", "again: question 0", True),
        ("question 2", "answer 2", "again: question 2", False),
    ]
    assert (shown.version, shown.equal, shown.votes) == ("v0", 1, {})
    recorded, replayed = (
        show_trace(ws, AGENT, name) for name in (shown.traces[1].recorded, shown.traces[1].replayed)
    )
    assert replayed["input"] == recorded["input"]
    assert (replayed["source"], replayed["subject"], replayed["session"]) == (
        "replay",
        "customer-2",
        None,
    )
    assert replayed["metadata"] == {
        "replay": result.id,
        "replay_of": recorded["id"],
        "position": 1,
        "replayed_by": "v0",
    }
    (step,) = replayed["steps"]
    assert (step["prompt_tokens"], step["completion_tokens"]) == (7, 3)
    assert step["requested_model"] == f"{AGENT}:v0" and "version" not in step
    assert (step["finish_reason"], step["complete"]) == ("stop", True)


def test_the_same_replay_asks_and_stores_nothing_twice(ws: Workspace, asked: Asked) -> None:
    spec = spec_of(ws, "t1", "t2", "t3")
    first = run_replay(ws, spec)
    assert len(asked.questions) == 3
    assert run_replay(ws, spec) == first
    assert len(asked.questions) == 3
    assert len(list_traces(ws, AGENT, limit=50).traces) == len(LINES) + 3


def test_it_selects_the_newest_that_match_and_never_an_answer_of_a_replay(
    ws: Workspace, tmp_path: Path
) -> None:
    add_lines(ws, tmp_path, [WITHOUT_ANSWER])
    run_replay(ws, spec_of(ws, "t1"))
    names = [
        show_trace(ws, AGENT, chosen)["external_id"]
        for chosen in select_traces(ws, SUPPORT, TraceFilter(), 50)
    ]
    assert sorted(names) == ["t0", "t1", "t2", "t3"]
    assert select_traces(ws, SUPPORT, TraceFilter(), 2) == [
        trace_id(ws, name) for name in names[:2]
    ]
    by_text = select_traces(ws, SUPPORT, TraceFilter(text="question 1"), 50)
    assert by_text == [trace_id(ws, "t1")]
    assert select_traces(ws, SUPPORT, TraceFilter(), 1, ["t3", "t0", "t3"]) == [
        trace_id(ws, "t3"),
        trace_id(ws, "t0"),
    ]
    with pytest.raises(DataError, match="no answered trace"):
        select_traces(ws, SUPPORT, TraceFilter(status="error"), 50)
    with pytest.raises(NotFound, match="t9"):
        select_traces(ws, SUPPORT, TraceFilter(), 50, ["t9"])


def test_what_cannot_be_asked_again_is_named_with_the_reason(
    ws: Workspace, asked: Asked, tmp_path: Path
) -> None:
    add_lines(ws, tmp_path, [WITH_TOOLS, WITHOUT_ANSWER])
    asked.refused = {"question 3"}
    spec = spec_of(ws, "tools", "silent", "t3", "t1")
    result = run_replay(ws, spec)
    assert result.answered == 1
    assert {
        show_trace(ws, AGENT, name)["external_id"]: why for name, why in result.left_out.items()
    } == {
        "tools": "its conversation has more than texts, such as calls of tools or images",
        "silent": "it has no recorded answer",
        "t3": "the model server refused the question",
    }
    assert "question 1" in asked.questions and "rain" not in asked.questions


def test_a_vote_on_a_replay_is_in_no_share_and_its_answers_are_no_use_of_the_app(
    ws: Workspace, tmp_path: Path
) -> None:
    add_feedback(ws, AGENT, "t3", "thumb", True, rater="ann")
    result = run_replay(ws, spec_of(ws, "t1", "t2"))
    now = datetime.now(UTC) + timedelta(seconds=1)
    before = quality(ws, SUPPORT, now)
    (prompt,) = prompts(ws, SUPPORT)
    assert (prompt.traces, prompt.good, prompt.rated) == (len(LINES), 1, 1)
    assert [(share.good, share.rated) for share in before.by_week] == [(1, 1)]

    for row in show_replay(ws, SUPPORT, result.id).traces:
        targets = [{"trace": row.recorded}, {"trace": row.replayed}]
        vote = {"kind": "preference", "value": 1, "targets": targets, "rater": "ann"}
        add_lines(ws, tmp_path, [{"type": "feedback", **vote}])
    assert show_replay(ws, SUPPORT, result.id).votes == {"replayed": 2}
    assert quality(ws, SUPPORT, now) == before
    assert prompts(ws, SUPPORT) == [prompt]
    answers = use(ws, SUPPORT, now)
    assert (answers.answers, answers.typical_seconds) == (len(LINES), None)

    # another vote about a recorded answer still counts
    add_feedback(ws, AGENT, "t1", "thumb", False, rater="ann")
    (share,) = quality(ws, SUPPORT, now).by_week
    assert (share.good, share.rated) == (1, 2)


@pytest.mark.parametrize("more", [[], ["--order", "active"], ["--unrated"]])
def test_answers_of_a_replay_enter_a_queue_only_on_request(ws: Workspace, more: list[str]) -> None:
    result = run_replay(ws, spec_of(ws, "t1", "t2"))
    (row, _) = show_replay(ws, SUPPORT, result.id).traces

    def items(name: str, *options: str) -> int:
        command = ("create", name, "--agent", AGENT, *options, "--json")
        return int(json.loads(invoked(ws, queue, *command).stdout)["items"])

    assert items("recorded", *more) == len(LINES)
    assert items("all", "--replays", *more) == len(LINES) + 2
    with pytest.raises(DataError, match="none of what is recorded"):
        items("none", "--of", "comparisons", *more)
    assert items("pairs", "--of", "comparisons", "--replays", *more) == 2
    added = invoked(ws, queue, "add", "recorded", row.replayed, "--agent", AGENT, "--json")
    assert json.loads(added.stdout)["added"] == 1


def test_erasing_the_person_takes_the_new_answer_too(ws: Workspace) -> None:
    result = run_replay(ws, spec_of(ws, "t1", "t2"))
    erase(ws, SUPPORT, "customer-1")
    (row,) = show_replay(ws, SUPPORT, result.id).traces
    assert row.question == "question 2"
    again = run_replay(ws, spec_of(ws, "t2"))
    assert again.answered == 1


def test_the_commands_run_it_show_it_and_write_it(ws: Workspace, tmp_path: Path) -> None:
    add_lines(ws, tmp_path, [FORMULA])
    text = invoked(ws, replay, "run", "v0", "--agent", AGENT, "--trace", "sum", "--json").stdout
    result = json.loads(text)
    assert (result["answered"], result["equal"]) == (1, 0)
    file = tmp_path / "answers.csv"
    shown = invoked(
        ws, replay, "show", result["id"], "--agent", AGENT, "--output", str(file)
    ).stdout
    assert "again: =1+1" in shown
    (row,) = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    assert (row["question"], row["recorded_answer"]) == ("'=1+1", "'=2")
    assert (row["version"], row["replayed_answer"], row["equal"]) == ("v0", "again: =1+1", "no")
    filtered = invoked(
        ws, replay, "run", "v0", "--agent", AGENT, "--most", "3", "--text", "question"
    ).stdout
    assert "answered" in filtered and "3" in filtered
    with pytest.raises(NotFound, match="rpl_none"):
        invoked(ws, replay, "show", "rpl_none", "--agent", AGENT)
    assert list_feedback(ws, AGENT) == []


def test_python_gets_the_same_from_an_open_home_and_from_a_server(
    ws: Workspace, tmp_path: Path
) -> None:
    add_lines(ws, tmp_path, [WITH_TOOLS])
    here = OpenAgent(ws, SUPPORT).replay("v0", traces=["t2", "t0"])
    assert [row.after for row in here.traces] == ["again: question 2", "again: question 0"]
    with running(ws) as server:
        token = ws.home.access_token.read_text().strip()
        agent = thumbwheel.connect(server.url, key=token).agent(AGENT)
        assert agent.replay("v0", traces=["t2", "t0"]) == here
        assert len(agent.replay(most=3).traces) == 2  # the newest one calls tools
        with pytest.raises(DataError, match="calls of tools"):
            agent.replay(traces=["tools"])
    with pytest.raises(DataError, match="calls of tools"):
        OpenAgent(ws, SUPPORT).replay(traces=["tools"])


@pytest.mark.slow
def test_a_trained_version_answers_without_a_deployment(home_with_feedback: Any) -> None:
    trained_home, add = home_with_feedback(cases=2)
    name = add("good")
    learner = Agent.named(TAUGHT)
    chosen = select_traces(trained_home, learner, TraceFilter(), 3)
    spec = ReplaySpec(version=name, agent=TAUGHT, traces=tuple(chosen), max_new_tokens=14)
    result = run_replay(trained_home, spec)
    assert (result.answered, result.left_out) == (3, {})
    for row in show_replay(trained_home, learner, result.id).traces:
        word = row.question.split()[0]
        assert row.after == PLACES[word]
        assert row.is_equal == (row.before == PLACES[word])
