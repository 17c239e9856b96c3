"""Lists of traces by every filter, page by page, and a trace with all that is known of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from thumbwheel.capture import trace_queries
from thumbwheel.capture.feedback import add_feedback
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.models.versions import require_agent

QUESTIONS = ("Opening hours?", "Öffnungszeiten 100%?", "Is it waterproof?", "How_long?", "Where?")


def store(ws: Workspace, *rows: dict[str, Any]) -> None:
    for number, row in enumerate(rows, 1):
        item = SOURCE.item(number, {"type": "trace", **row}, "")
        assert isinstance(item, Line), item
        (result,) = save(ws, scope_of(ws, "desk", "sdk"), [item])
        assert result.reason is None


@pytest.fixture
def stored(empty_ws: Workspace) -> Workspace:
    """Five traces, one commit each, so that each has a time of its own."""
    store(
        empty_ws,
        *(
            {
                "id": f"t{number}",
                "input": question,
                "output": f"Answer {number}",
                "session": f"s{number % 2}",
                "subject": f"p{number % 3}",
                "model": "asked",
                "served_model": f"m{number % 2}",
                "status": "error" if number == 4 else "ok",
            }
            for number, question in enumerate(QUESTIONS)
        ),
    )
    add_feedback(empty_ws, "desk", "t1", "thumb", True, rater="ann")
    add_feedback(empty_ws, "desk", "t1", "rating", 4, rater="bob")
    add_feedback(empty_ws, "desk", "t2", "correction", "Yes, it is.")
    return empty_ws


def names(ws: Workspace, **wanted: Any) -> list[str]:
    return [trace.external_id for trace in list_traces(ws, "desk", TraceFilter(**wanted)).traces]


def test_the_newest_come_first_with_what_was_said_about_them(stored: Workspace) -> None:
    page = list_traces(stored, "desk")
    assert [trace.external_id for trace in page.traces] == ["t4", "t3", "t2", "t1", "t0"]
    assert page.after is None
    trace = page.traces[3]
    assert (trace.input, trace.output) == (QUESTIONS[1], "Answer 1")
    assert (trace.session, trace.subject, trace.model) == ("s1", "p1", "m1")
    assert sorted(trace.feedback) == ["rating 4", "thumb up"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"session": "s1"}, ["t3", "t1"]),
        ({"subject": "p0"}, ["t3", "t0"]),
        ({"model": "m1"}, ["t3", "t1"]),
        ({"model": "asked"}, ["t4", "t3", "t2", "t1", "t0"]),
        ({"model": "nobody"}, []),
        ({"version": 1}, []),
        ({"status": "error"}, ["t4"]),
        ({"rated": True}, ["t2", "t1"]),
        ({"rated": False}, ["t4", "t3", "t0"]),
        ({"text": "ANSWER 2"}, ["t2"]),
        ({"text": "waterproof"}, ["t2"]),
        ({"text": "100%"}, ["t1"]),
        ({"text": "0%?"}, ["t1"]),
        ({"text": "how_"}, ["t3"]),
        ({"text": "Öffnungs"}, ["t1"]),
        ({"text": "content"}, []),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, []),
        ({"since": datetime(2020, 1, 1, tzinfo=UTC), "session": "s1"}, ["t3", "t1"]),
    ],
)
def test_filters(wanted: dict[str, Any], expected: list[str], stored: Workspace) -> None:
    assert names(stored, **wanted) == expected


def test_pages_hold_every_trace_once(stored: Workspace) -> None:
    collected: list[str] = []
    after = None
    while True:
        page = list_traces(stored, "desk", limit=2, after=after)
        collected += [trace.external_id for trace in page.traces]
        after = page.after
        if after is None:
            break
        store(stored, {"id": f"late-{len(collected)}", "input": "?", "output": "!"})
    assert collected == ["t4", "t3", "t2", "t1", "t0"]  # what came meanwhile is on no later page
    with pytest.raises(InputError, match="unknown cursor"):
        list_traces(stored, "desk", after="t3")


def test_times_bound_the_list(stored: Workspace) -> None:
    times = [trace.recorded_at for trace in list_traces(stored, "desk").traces]
    assert names(stored, since=times[1]) == ["t4", "t3"]
    assert names(stored, until=times[1]) == ["t2", "t1", "t0"]
    assert names(stored, since=times[0] + timedelta(microseconds=1)) == []


def test_a_trace_with_its_steps_and_those_it_called(empty_ws: Workspace) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tool = {"kind": "tool", "name": "clock", "input": {"zone": "UTC"}, "output": "08:00"}
    call = {"kind": "llm", "tokens": {"prompt": 3, "completion": 2}, "token_ids": [5, 6]}
    store(empty_ws, {"id": "outer", "input": chat, "output": "Eight.", "steps": [tool, call]})
    outer = show_trace(empty_ws, "desk", "outer")
    store(empty_ws, {"id": "inner", "input": "Time?", "output": "8", "parent": "outer"})
    add_feedback(empty_ws, "desk", "outer", "thumb", False, rater="ann", comment="It was nine.")
    shown = show_trace(empty_ws, "desk", outer["id"][:12])
    assert shown["input"] == chat
    assert [step["kind"] for step in shown["steps"]] == ["tool", "llm"]
    assert (shown["steps"][0]["output"], shown["steps"][1]["recorded_tokens"]) == ("08:00", 2)
    (judgement,) = shown["feedback"]
    assert (judgement["value"], judgement["comment"], judgement["rater"]) == (
        False,
        "It was nine.",
        "ann",
    )
    assert shown["children"] == [show_trace(empty_ws, "desk", "inner")["id"]]


def test_unknown_names(stored: Workspace) -> None:
    with pytest.raises(NotFound, match="has no such trace"):
        show_trace(stored, "desk", "t9")
    with pytest.raises(NotFound):
        list_traces(stored, "nobody")


@pytest.mark.parametrize("few", [0, 5000], ids=["in their order", "looked up"])
def test_both_ways_to_a_model_s_traces(
    stored: Workspace, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few traces are looked up and sorted, many are met on the way from the newest on."""
    monkeypatch.setattr(trace_queries, "FEW", few)
    store(stored, {"id": "t5", "input": "Again?", "output": "No", "model": "other"})

    def listed(**wanted: Any) -> list[str]:
        page = list_traces(stored, "desk", TraceFilter(**wanted), limit=2)
        names = [trace.external_id for trace in page.traces]
        while page.after:
            page = list_traces(stored, "desk", TraceFilter(**wanted), limit=2, after=page.after)
            names += [trace.external_id for trace in page.traces]
        return names

    assert listed(model="m1") == ["t3", "t1"]
    assert listed(model="asked") == ["t4", "t3", "t2", "t1", "t0"]
    assert listed(model="asked", session="s0", status="ok") == ["t2", "t0"]
    assert listed(model="asked", subject="p1", text="answer 4") == ["t4"]
    assert listed(model="asked", status="error") == ["t4"]
    assert listed(model="nobody") == []
    assert listed(version=7) == []


def test_a_trace_with_several_calls_of_a_model_is_listed_once(stored: Workspace) -> None:
    calls = [{"kind": "llm", "model": "twice", "served_model": "twice", "output": "x"}] * 2
    store(stored, {"id": "t5", "input": "Again?", "output": "No", "steps": calls})
    line = SOURCE.item(1, {"type": "trace", "id": "x1", "input": "q", "model": "twice"}, "")
    assert isinstance(line, Line), line
    save(stored, scope_of(stored, "elsewhere", "sdk"), [line])
    assert names(stored, model="twice") == ["t5"]


def test_a_search_for_a_text_is_bounded_and_says_how_far_back_it_came(
    stored: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_queries, "WINDOWS", (1, 2))
    times = {trace.external_id: trace.recorded_at for trace in list_traces(stored, "desk").traces}
    wanted = TraceFilter(text="answer 0")
    page = list_traces(stored, "desk", wanted)
    assert (page.traces, page.searched_to) == ([], times["t2"])
    page = list_traces(stored, "desk", wanted, after=page.after)
    assert [trace.external_id for trace in page.traces] == ["t0"]
    assert (page.after, page.searched_to) == (None, None)

    page = list_traces(stored, "desk", wanted, seconds=30)
    assert [trace.external_id for trace in page.traces] == ["t0"]
    assert page.searched_to is None

    # a page that is full says nothing of the search
    page = list_traces(stored, "desk", TraceFilter(text="answer"), limit=1)
    assert [trace.external_id for trace in page.traces] == ["t4"]
    assert page.after and page.searched_to is None


@pytest.mark.parametrize("windows", [(1, 1, 1, 1, 1, 1), (3, 3), (500,)])
def test_what_people_said_is_a_filter(
    windows: tuple[int, ...], stored: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_queries, "WINDOWS", windows)
    add_feedback(stored, "desk", "t3", "rating", 2, rater="ann")
    add_feedback(stored, "desk", "t4", "rating", 3, rater="ann")  # in the middle: neither
    add_feedback(stored, "desk", "t0", "score", 60, rater="ann", scale={"min": 0, "max": 100})
    assert names(stored, judged=Judged.GOOD) == ["t1", "t0"]
    assert names(stored, judged=Judged.BAD) == ["t3"]
    assert names(stored, judged=Judged.CORRECTED) == ["t2"]
    assert names(stored, judged=Judged.GOOD, text="answer 0") == ["t0"]

    assert names(stored, judged=Judged.GOOD, model="asked") == ["t1", "t0"]
    assert names(stored, judged=Judged.CORRECTED, model="m0") == ["t2"]
    assert names(stored, text="answer", model="asked") == ["t4", "t3", "t2", "t1", "t0"]

    add_feedback(stored, "desk", "t1", "thumb", False, rater="cleo")  # raters may differ
    assert names(stored, judged=Judged.GOOD) == ["t1", "t0"]
    assert names(stored, judged=Judged.BAD) == ["t3", "t1"]
    add_feedback(stored, "desk", "t1", "thumb", True, rater="cleo")  # the newest word counts
    assert names(stored, judged=Judged.BAD) == ["t3"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["Answer 4", "Answer 3", "Answer 2", "Answer 1", "Answer 0"]),
        ({"model": "m0"}, ["Answer 4", "Answer 2", "Answer 0"]),
        ({"model": "m0", "text": "answer"}, ["Answer 4", "Answer 2", "Answer 0"]),
        ({"status": "error"}, ["Answer 4"]),
    ],
)
def test_answers_that_a_queue_is_made_of(
    wanted: dict[str, Any], expected: list[str], stored: Workspace
) -> None:
    store(stored, {"id": "t5", "input": "Hello?", "model": "asked", "served_model": "m0"})
    agent_id = require_agent(stored, "desk").id
    for most in (2, 100):
        with stored.db.read() as connection:
            rows = trace_queries.answered_traces(connection, agent_id, TraceFilter(**wanted), most)
            assert [row.output for row in rows] == expected[:most]


def test_a_trace_is_shown_by_its_name_in_any_source(stored: Workspace) -> None:
    item = SOURCE.item(1, {"type": "trace", "id": "x1", "input": "In?", "output": "Yes"}, "")
    assert isinstance(item, Line)
    save(stored, scope_of(stored, "desk", "another"), [item])
    assert show_trace(stored, "desk", "x1")["source"] == "another"
    assert show_trace(stored, "desk", "t1")["source"] == "sdk"


def test_a_list_shows_the_newest_word_of_each(stored: Workspace) -> None:
    add_feedback(stored, "desk", "t1", "thumb", False, rater="ann")
    add_feedback(stored, "desk", "t3", "thumb", True, rater="ann")
    words = {
        trace.external_id: list(trace.feedback) for trace in list_traces(stored, "desk").traces
    }
    assert sorted(words["t1"]) == ["rating 4", "thumb down"]
    assert words["t3"] == ["thumb up"]
