"""Apps record themselves by a changed base URL: real clients and frameworks, unchanged, in front of
a scripted server, the embedded target and llama-server."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.models.tiny_models import tiny_adapter, tiny_base
from tests.recorded_replies import REPLIES, STREAM, Recorded
from tests.servers.llama_tools import needs, wide_base
from tests.servers.scripted_upstream import (
    END,
    Received,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.worlds.deploy_world import DeployWorld
from tests.worlds.gateway_world import (
    GatewayWorld,
    call_of,
    opened_home,
    running,
    serve_remote,
)
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.db import schema
from thumbwheel.deploy import processes
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import ExportSource
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.llm.llama_server import LlamaServer
from thumbwheel.models.types import EndpointAddress

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@contextmanager
def served(folder: Path, url: str, model: str) -> Iterator[GatewayWorld]:
    """The server of a new home, where `support` is `model` at `url`."""
    with opened_home(folder) as ws:
        serve_remote(ws, EndpointAddress(url, model))
        with running(ws) as gateway:
            yield gateway


@pytest.fixture
def gateway(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[GatewayWorld]:
    with served(tmp_path / "home", upstream.url, "large") as world:
        upstream.requests.clear()
        yield world


def pieces(body: bytes, chance: random.Random) -> list[bytes]:
    """`body` in pieces that are cut anywhere."""
    count = chance.choice((1, 3, 20, min(len(body), 200)))
    cuts = sorted(chance.randrange(1, len(body)) for _ in range(count))
    ends = [*dict.fromkeys(cuts), len(body)]
    return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
def test_every_api_passes_byte_for_byte_and_is_understood(
    gateway: GatewayWorld, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    chance = random.Random(recorded.name)
    protocol = PROTOCOLS[recorded.protocol]
    body = {"model": "support", "stream": recorded.content_type == STREAM, **recorded.request}

    def answer(request: Received) -> Iterator[bytes]:
        if recorded.status != 200:
            head = (("content-type", recorded.content_type),)
            yield reply(recorded.body, f"{recorded.status} No", head)
            return
        yield stream_head(recorded.content_type)
        yield from map(chunk, pieces(recorded.body, chance))
        yield END

    upstream.script = answer
    count = 5
    for _ in range(count):
        response = gateway.client.post(protocol.path, json=body)
        assert (response.status_code, response.content) == (recorded.status, recorded.body)
    lines = gateway.lines(count)
    assert len(lines) == count
    for line in lines:
        call = call_of(line)
        expected = recorded.expected
        has_calls = "tool_calls" in expected
        assert line.get("output") == (None if has_calls else expected["text"])
        if has_calls:
            assert call["output"]["tool_calls"] == expected["tool_calls"]
        assert call.get("finish_reason") == expected.get("finish_reason", call.get("finish_reason"))
        assert call.get("token_ids") == expected.get("token_ids")
        assert call["complete"] is expected.get("complete", True)
        assert call.get("error") == expected.get("error")


def move_or_answer(request: Received) -> list[bytes]:
    """Asks for the tool first, then says what it returned."""
    body = json.loads(request.body)
    last = body["messages"][-1]
    if last["role"] == "tool":
        events = chat_events("It ", f"said {last['content']}")
    else:
        call = {"index": 0, "id": "c1", "function": {"name": "move", "arguments": '{"to": "A"}'}}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "large-2026"}
        choices: Any = [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]
        choices += [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
        events = [
            f"data: {json.dumps({**head, 'created': 1, 'choices': [choice]})}\n\n".encode()
            for choice in choices
        ]
    if body.get("stream"):
        return [stream_head(), *map(chunk, events), chunk(b"data: [DONE]\n\n"), END]
    if last["role"] == "tool":
        return [reply(chat_reply(f"It said {last['content']}"))]
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "move", "arguments": '{"to": "A"}'},
            }
        ],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return [reply(chat_reply(choices=[choice]))]


def check_tool_run(gateway: GatewayWorld) -> None:
    """Two calls are recorded: one that asks for the tool, one that was shown its result."""
    first, second = gateway.lines(2)
    (call,) = call_of(first)["output"]["tool_calls"]
    assert call["function"] == {"name": "move", "arguments": '{"to": "A"}'}
    assert first.get("output") is None
    assert call_of(first)["input"]["tools"][0]["function"]["name"] == "move"
    assert [message["role"] for message in second["input"]][-3:] == ["user", "assistant", "tool"]
    assert second["input"][-1]["content"] == "moved to A"
    assert second["output"] == "It said moved to A"


@pytest.mark.parametrize("streams", [False, True])
def test_pydantic_ai(gateway: GatewayWorld, upstream: ScriptedUpstream, streams: bool) -> None:
    upstream.script = move_or_answer
    provider = OpenAIProvider(base_url=f"{gateway.url}/v1", api_key="any")
    agent = PydanticAgent(OpenAIChatModel("support", provider=provider))

    @agent.tool_plain
    def move(to: str) -> str:
        return f"moved to {to}"

    if streams:
        result = agent.run_stream_sync("Move it.")
        assert "".join(result.stream_text(delta=True)) == "It said moved to A"
    else:
        assert agent.run_sync("Move it.").output == "It said moved to A"
    check_tool_run(gateway)


@pytest.mark.parametrize("streams", [False, True])
def test_langchain(gateway: GatewayWorld, upstream: ScriptedUpstream, streams: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def move(to: str) -> str:
        """Move it."""
        return f"moved to {to}"

    upstream.script = move_or_answer
    model = ChatOpenAI(
        model="support", base_url=f"{gateway.url}/v1", api_key="any", streaming=streams
    ).bind_tools([move])
    messages: list[Any] = [HumanMessage("Move it.")]
    answer = model.invoke(messages)
    (call,) = answer.tool_calls
    messages += [answer, ToolMessage(move.invoke(call["args"]), tool_call_id=call["id"])]
    assert model.invoke(messages).content == "It said moved to A"
    check_tool_run(gateway)


def test_a_client_that_tries_again_is_recorded_each_time(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    scripts: list[list[Any]] = [
        [reply({"error": {"message": "slow down"}}, "429 Too Many", [("retry-after", "0")])],
        [reply({"error": {"message": "restarting"}}, "503 Unavailable", [("retry-after", "0")])],
        [reply(chat_reply())],
    ]
    upstream.script = lambda request: scripts.pop(0)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=3) as client:
        answer = client.chat.completions.create(model="support", messages=HELLO)
    assert answer.choices[0].message.content == "hello"
    lines = gateway.lines(3)
    assert [line["status"] for line in lines] == ["error", "error", "ok"]
    assert call_of(lines[0])["error"] == "HTTP 429: slow down"
    assert len({line["id"] for line in lines}) == 3


def test_a_stream_that_the_app_leaves_keeps_what_it_saw(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    first, second, *rest = map(chunk, chat_events("Grü", "ße", "!"))
    upstream.script = lambda request: [stream_head(), first, second, 30.0, *rest, END]
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client:
        stream = client.chat.completions.create(model="support", messages=HELLO, stream=True)
        for event in stream:
            if event.choices[0].delta.content:
                break
        stream.close()
    (line,) = gateway.lines()
    assert (line["output"], line["status"]) == ("Grü", "cancelled")
    assert call_of(line)["complete"] is False


def served_tokens(reply: Any) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities as the client sees them."""
    entries = [entry.model_dump() for entry in reply.choices[0].logprobs.content]
    return [entry["id"] for entry in entries], [entry["logprob"] for entry in entries]


def check_recorded_tokens(gateway: GatewayWorld, **more: Any) -> None:
    """Whole or streamed, the token ids and log-probabilities of the server are in the record, and
    then in the database."""
    ask: Any = {"model": "support", "messages": HELLO, "max_tokens": 8, "temperature": 0, **more}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=60) as client:
        whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
        events = client.chat.completions.create(
            **ask, logprobs=True, stream=True, stream_options={"include_usage": True}
        )
        parts = [choice for event in events for choice in event.choices]
    ids, logprobs = served_tokens(whole)
    assert len(ids) == whole.usage.completion_tokens
    text = "".join(part.delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    lines = gateway.lines(2)
    for line in lines:
        call = call_of(line)
        assert line["output"] == text
        assert call["token_ids"] == ids
        assert call["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)
        assert call["tokens"]["prompt"] == whole.usage.prompt_tokens
        assert call["tokens"]["completion"] == whole.usage.completion_tokens
        assert call["complete"] is True
    drain_inbox(gateway.ws)
    with gateway.ws.db.read() as connection:
        rows = connection.execute(schema.steps.select()).all()
    assert [row.token_ids for row in rows] == [ids, ids]
    # of an answer that comes whole nobody knows when its first token was there
    assert [row.first_token_at is None for row in rows] == [True, False]


@pytest.mark.slow
def test_served_token_ids_of_the_embedded_target(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    with opened_home(tmp_path / "home") as ws:
        world = DeployWorld(ws, base, [tiny_adapter(base, tmp_path / "adapter")], "support")
        world.deploy(world.version(0))
        try:
            with running(ws) as gateway:
                check_recorded_tokens(gateway)
        finally:
            for record in (ws.home.path / "deployments").rglob(processes.RECORD):
                processes.stop(record.parent)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as GGUF."""
    needs("llama-server", "converter", "library", "bindings")
    folder = tmp_path_factory.mktemp("model")
    base = wide_base(folder / "base")
    FORMATS.get("gguf").write(ExportSource(str(base), None, str(base), "F32"), folder)
    return next(folder.glob("*.gguf"))


@pytest.mark.slow
def test_served_token_ids_of_llama_server(model_file: Path, tmp_path: Path) -> None:
    with (
        LlamaServer(model_file, context=256) as server,
        served(tmp_path / "home", server.url, "model") as gateway,
    ):
        check_recorded_tokens(gateway, extra_body={"grammar": "root ::= [a-z ]+"})


@pytest.mark.slow
def test_tokens_that_llama_server_leaves_out_are_not_made_up(
    model_file: Path, tmp_path: Path
) -> None:
    """Of half a character it gives no log-probability, and so no id, unless it is asked for all."""
    ask: Any = {"model": "support", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    ask |= {"logprobs": True}
    with (
        LlamaServer(model_file, context=256) as server,
        served(tmp_path / "home", server.url, "model") as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=60) as client,
    ):
        plain = client.chat.completions.create(**ask)
        verbose = client.chat.completions.create(
            **ask, extra_body={"verbose": True, "return_tokens": True}
        )
        lines = gateway.lines(2)
    assert 0 < len(served_tokens(plain)[0]) < 8
    tokens = verbose.model_extra["__verbose"]["tokens"]
    assert len(tokens) == 8
    assert [call_of(line).get("token_ids") for line in lines] == [None, tokens]
    assert "token_logprobs" not in call_of(lines[1])


@pytest.mark.slow
def test_llama_server_speaks_anthropics_api_too(model_file: Path, tmp_path: Path) -> None:
    with (
        LlamaServer(model_file, context=256) as server,
        served(tmp_path / "home", server.url, "model") as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key="any", timeout=60) as client,
    ):
        ask: Any = {"model": "support", "max_tokens": 6, "messages": HELLO}
        whole = client.messages.create(**ask)
        events = list(client.messages.create(**ask, stream=True))
        lines = gateway.lines(2)
    streamed = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    texts = ["".join(block.text for block in whole.content), streamed]
    assert [line["output"] for line in lines] == texts
    for line in lines:
        assert call_of(line)["tokens"]["completion"] == whole.usage.output_tokens
        assert call_of(line)["complete"] is True
