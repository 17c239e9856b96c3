"""Conversations of thousands of turns, which anybody who sends traces or calls can make: they take
no time without bound, and spoil a chat template for nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.models.tiny_models import tiny_base
from tests.worlds.gateway_world import AGENT
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.trace_queries import inputs_with
from thumbwheel.capture.traces import show_trace
from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.db import message_chains, schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.embedded import EmbeddedServer, LoadRequest, application
from thumbwheel.deploy.targets.embedded import SPEC
from thumbwheel.engine import prompt, render
from thumbwheel.engine.load import load_tokenizer
from thumbwheel.engine.prompt import Fitted, PromptBuilder, TargetText

MOST_RENDERINGS = 60
"""Of one example: some for each halving, and those by which a template is examined."""
SLOW = "{% for message in messages %}{% for other in messages %}{% endfor %}{% endfor %}x"
"""Takes the square of the number of messages."""


@pytest.fixture(scope="module")
def long_context_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def builder(long_context_base: Path) -> PromptBuilder:
    return PromptBuilder(load_tokenizer(str(long_context_base)))


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages of every conversation that is rendered."""
    counts: list[int] = []
    original = render.render_chat

    def counted(template: Any, messages: Any, *arguments: Any, **settings: Any) -> str:
        counts.append(len(messages))
        return original(template, messages, *arguments, **settings)

    monkeypatch.setattr(prompt, "render_chat", counted)
    return counts


def conversation(n_turns: int, text: str = "word") -> list[dict[str, Any]]:
    messages = []
    for number in range(n_turns):
        messages += [
            {"role": "user", "content": f"{text} {number}"},
            {"role": "assistant", "content": text},
        ]
    return [*messages[:-1]]


def by_one_turn_after_another(
    builder: PromptBuilder, messages: list[dict[str, Any]], target: TargetText, max_length: int
) -> int:
    """How many turns have to go, found without halves."""
    for dropped in range((len(messages) + 1) // 2):
        rest = messages[2 * dropped :]
        if builder.row(rest, target.text).length <= max_length:
            return dropped
    raise AssertionError("nothing fits")


@pytest.mark.parametrize("n_turns", [2, 3, 7, 20, 31])
@pytest.mark.parametrize("max_length", [60, 90, 160])
def test_as_few_turns_go_as_have_to(builder: PromptBuilder, n_turns: int, max_length: int) -> None:
    messages, target = conversation(n_turns), TargetText("yes")
    fitted = builder.fit(messages, [target], max_length)
    expected = by_one_turn_after_another(builder, messages, target, max_length)
    assert fitted.dropped_turns == expected
    assert fitted.rows[0].prompt_ids == builder.row(messages[2 * expected :], "yes").prompt_ids


@pytest.mark.parametrize("n_turns", [400, 20_000])
def test_a_conversation_is_not_rendered_once_a_turn(
    builder: PromptBuilder, rendered: list[int], n_turns: int
) -> None:
    fitted = builder.fit(conversation(n_turns), [TargetText("yes")], 128)
    assert fitted.rows and fitted.dropped_turns > n_turns - 128
    assert len(rendered) < MOST_RENDERINGS
    assert max(rendered) <= 2 * 128, "older turns can never fit, whatever they say"


def test_a_turn_of_many_messages_is_refused_unrendered(
    builder: PromptBuilder, rendered: list[int]
) -> None:
    messages = [{"role": "user", "content": "a"}]
    messages += [{"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"}] * 5000
    fitted = builder.fit(messages, [TargetText("yes")], 128)
    assert fitted == Fitted((), 0, fitted.refused) and "messages" in fitted.refused
    assert max(rendered) <= 3, "the template is tried on a few messages, never on these"


def test_messages_that_break_a_template_down_leave_it_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written(messages: list[dict[str, Any]]) -> str:
        return render.render_chat(SLOW, messages, generation=True, variables={})

    assert written(conversation(1)) == "x"
    monkeypatch.setattr(render, "SECONDS", 1.0)
    with pytest.raises(DataError, match="did not end within"):
        written(conversation(20_000))
    assert written(conversation(1)) == "x"
    huge = "{% for message in messages %}{{ message['content'] * 10**7 }}{% endfor %}"
    monkeypatch.undo()
    with pytest.raises(ModelError, match=r"memory|characters"):
        render.render_chat(huge, conversation(2), generation=True, variables={})
    with pytest.raises(DataError, match=r"memory|characters"):
        render.render_chat(huge, conversation(2_000), generation=True, variables={})


@pytest.fixture(scope="module")
def client(
    long_context_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("embedded")
    (folder / SPEC).write_text(
        json.dumps({"base": str(long_context_base), "dtype": "float32", "device": "cpu"})
    )
    server = EmbeddedServer(folder)
    server.load(LoadRequest(lora_name="base"))
    headers = {"authorization": "Bearer token", "content-type": "application/json"}
    address = "http://127.0.0.1:8000"
    with TestClient(application(server, "token"), address, headers=headers) as client:
        yield client


def test_more_messages_than_the_context_has_tokens_are_refused_unrendered(
    client: TestClient, rendered: list[int]
) -> None:
    for n_turns, status in ((3, 200), (5_000, 400)):
        body = {"model": "base", "messages": conversation(n_turns, "a"), "max_tokens": 2}
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == status, reply.text
    assert "the model's context has" in reply.text or "context of" in reply.text
    assert max(rendered) < 100


def test_a_schema_of_megabytes_is_refused_uncompiled(client: TestClient) -> None:
    pytest.importorskip("llguidance")
    for count, status in ((100, 200), (100_000, 400)):
        schema = {"enum": [f"answer {number}" for number in range(count)]}
        body = {
            "model": "base",
            "messages": conversation(1),
            "max_tokens": 2,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == status, reply.text
    assert "characters" in reply.json()["error"]["message"]


def test_a_conversation_is_not_read_by_a_query_a_message(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    """Every page, dataset and reward with such a trace would wait for minutes."""
    messages = conversation(5_000)
    line = {"type": "trace", "id": "long", "input": messages, "output": "ok"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(line) + "\n")
    ingest(empty_ws, AGENT, "jsonl", tmp_path / "rows.jsonl")
    queries: list[str] = []

    def count(*arguments: Any) -> None:
        queries.append(arguments[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        shown = show_trace(empty_ws, AGENT, "long")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert shown["input"] == messages
    assert len(queries) < 100


def test_messages_that_name_each_other_in_a_circle_are_no_conversation(empty_ws: Workspace) -> None:
    """Rows of a restored backup may say anything."""
    rows = [
        {"id": f"msg_{number}", "parent_id": None, "role": "user", "content": {"content": "a"}}
        for number in range(3)
    ]

    def work(connection: sa.Connection) -> None:
        connection.execute(schema.messages.insert(), rows)
        for number in range(3):
            change = schema.messages.update().where(schema.messages.c.id == f"msg_{number}")
            connection.execute(change.values(parent_id=f"msg_{(number + 1) % 3}"))

    empty_ws.db.write(work)
    with empty_ws.db.read() as connection:
        assert message_chains.conversation(connection, "msg_0") == []
        assert inputs_with(connection, ["msg_0"], lambda message: False) == set()


def test_a_ranking_of_thousands_is_refused(empty_ws: Workspace, tmp_path: Path) -> None:
    lines = []
    for count in (256, 257, 100_000):
        targets = [{"trace": f"t{number}"} for number in range(count)]
        line = {"type": "feedback", "kind": "preference", "targets": targets, "value": 0}
        lines.append(json.dumps(line | {"id": f"f{count}"}) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    report = ingest(empty_ws, AGENT, "jsonl", tmp_path / "rows.jsonl")
    assert (report.stored, report.refused) == (1, 2)
    assert all("targets" in refusal["reason"] for refusal in report.refusals)
