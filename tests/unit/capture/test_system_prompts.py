"""System prompts as versions: the text itself is the version, whoever sends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worlds.api_world import commands_client
from tests.worlds.gateway_world import AGENT, opened_home
from tests.worlds.pages_world import fill
from thumbwheel.capture.prompts import prompt_id, prompt_of, prompts, store_prompt
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent

SUPPORT = Agent.named(AGENT)
SHORT, LONG = "Be short.", "Be thorough, and name the form."


def line(number: int, system: str | None) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Question {number}?"}]
    if number % 2:  # the prompt begins a longer conversation, too
        messages = [*messages, {"role": "assistant", "content": "Yes."}, messages[0]]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    when = f"2026-11-{number + 1:02}T08:00:00Z"
    return {
        "type": "trace",
        "id": f"t{number}",
        "input": messages,
        "output": "A.",
        "occurred_at": when,
    }


def thumb(number: int, value: bool) -> dict[str, Any]:
    target = {"trace": f"t{number}"}
    return {
        "type": "feedback",
        "target": target,
        "kind": "thumb",
        "value": value,
        "rater": f"customer-{number}",
    }


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Six answers under one prompt, four under another, one without any."""
    folder = tmp_path_factory.mktemp("prompts")
    lines = [line(number, SHORT) for number in range(6)]
    lines += [line(number, LONG) for number in range(6, 10)]
    lines += [line(10, None)]
    lines += [thumb(number, number in (0, 7, 8, 9)) for number in (0, 1, 2, 7, 8, 9)]
    with opened_home(folder / "home") as ws:
        fill(ws, folder, lines)
        yield ws


def test_a_prompt_is_its_text_and_has_its_own_share_of_good_answers(ws: Workspace) -> None:
    by_text = {version.text: version for version in prompts(ws, SUPPORT)}
    assert set(by_text) == {SHORT, LONG}
    short, long = by_text[SHORT], by_text[LONG]
    assert (short.traces, short.good, short.rated) == (6, 1, 3)
    assert (long.traces, long.good, long.rated) == (4, 3, 3)
    assert long.low is not None and long.low < 1.0 == long.share
    assert short.first_seen is not None and short.first_seen.day == 1
    trace = show_trace(ws, AGENT, "t7")
    assert prompt_id(trace["input"][0]) == long.id
    assert prompt_id(show_trace(ws, AGENT, "t10")["input"][0]) is None


def test_traces_are_filtered_by_their_prompt(ws: Workspace) -> None:
    long = prompt_id({"role": "system", "content": LONG})
    page = list_traces(ws, AGENT, TraceFilter(prompt=long), limit=50)
    assert {trace.external_id for trace in page.traces} == {"t6", "t7", "t8", "t9"}
    rated = list_traces(ws, AGENT, TraceFilter(prompt=long, rated=True), limit=50)
    assert len(rated.traces) == 3


def test_a_stored_prompt_is_the_next_version_of_its_name(ws: Workspace) -> None:
    api = f"/api/agents/{AGENT}/prompts"
    with commands_client(ws) as client:
        first = client.put(f"{api}/greeting", json={"text": SHORT, "note": "as of old"}).json()
        assert (first["name"], first["number"], first["traces"]) == ("greeting", 1, 6)
        second = client.put(f"{api}/greeting", json={"text": "Be kind."}).json()
        assert (second["number"], second["traces"]) == (2, 0)
        assert client.get(f"{api}/greeting").json()["text"] == "Be kind."
        assert client.put(f"{api}/greeting", json={"text": " "}).status_code == 422
        assert client.get(f"{api}/other").status_code == 404
        listed = client.get(api).json()
        assert {row["name"] for row in listed} == {"greeting", None}
    renamed = store_prompt(ws, SUPPORT, "greeting", SHORT, "still v1")
    assert (renamed.number, renamed.note) == (1, "still v1")
    assert prompt_of(ws, SUPPORT, "greeting").number == 2
    with pytest.raises(NotFound, match="greeting"):
        prompt_of(ws, SUPPORT, "greetings")
    with pytest.raises(InputError):
        store_prompt(ws, SUPPORT, "No Name", "text")
