"""Real clients, unchanged, call a version on the embedded target: each cell of the table in
docs/14-gateway.md is a test here, and each dash is shown to be the client's.

The model is tiny and random. Where a text must be foreseen, a schema leaves it no choice, and where
a call of a tool must be, the client asks for one.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anthropic
import ollama
import openai
import pytest
from openai.resources import responses
from pydantic import BaseModel

from tests.models.tiny_models import (
    CHATML_WITH_TOOLS,
    tiny_adapter,
    tiny_base,
    tiny_tokenizer,
)
from tests.servers import node_clients
from tests.worlds.deploy_world import DeployWorld
from tests.worlds.gateway_world import GatewayWorld, call_of, opened_home, running
from thumbwheel.deploy import deploy, processes

DOC = Path(__file__).parents[2] / "docs" / "14-gateway.md"
HELLO: Any = [{"role": "user", "content": "Hello"}]
TURN = {"type": "string", "enum": ["left", "right"]}
SCHEMA: Any = {
    "type": "object",
    "properties": {"turn": TURN},
    "required": ["turn"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "move", "parameters": SCHEMA}}
ANTHROPIC_TOOL: Any = {"name": "move", "input_schema": SCHEMA}
RESPONSES_TOOL: Any = {"type": "function", "name": "move", "parameters": SCHEMA, "strict": False}
GREEDY = {"temperature": 0}
CALLED_BY_SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"const": "move"}, "arguments": SCHEMA},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
"""Of Ollama's clients nobody can ask for a call; with this format the model can write nothing
else."""


class Move(BaseModel):
    """A turn."""

    turn: Literal["left", "right"]


@dataclass
class Clients:
    """The clients of one server."""

    gateway: GatewayWorld
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    ollama: ollama.Client

    @property
    def text(self) -> str:
        """What the model says to HELLO at temperature 0, by a chat of OpenAI's."""
        reply = self.openai.chat.completions.create(
            model="support", messages=HELLO, max_tokens=8, temperature=0
        )
        return reply.choices[0].message.content or ""


@contextmanager
def serving(
    folder: Path,
    base: Path,
    target: str = "embedded",
    context: int | None = None,
    adapter: Path | None = None,
    accept: str | None = None,
) -> Iterator[Clients]:
    adapter = adapter or tiny_adapter(base, folder / "adapter")
    with opened_home(folder / "home") as ws:
        world = DeployWorld(ws, base, [adapter], "support")
        settings = {"threads": 1} | ({"context": context} if context else {})
        try:
            # a canary that is refused leaves its model server running
            deploy.deploy(ws, world.version(0), target, settings=settings, accept=accept)
            with (
                running(ws) as gateway,
                openai.OpenAI(
                    base_url=f"{gateway.url}/v1", api_key="any", timeout=60, max_retries=0
                ) as chat,
                anthropic.Anthropic(
                    base_url=gateway.url, api_key="any", timeout=60, max_retries=0
                ) as messages,
            ):
                yield Clients(gateway, chat, messages, ollama.Client(gateway.url))
        finally:
            for record in (ws.home.path / "deployments").rglob(processes.RECORD):
                processes.stop(record.parent)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("local")
    tokenizer = tiny_tokenizer(CHATML_WITH_TOOLS)
    base = tiny_base(folder / "base", tokenizer=tokenizer, max_position_embeddings=2048)
    with serving(folder, base) as clients:
        yield clients


def check_that_no_call_is_forced(clients: Clients) -> None:
    """The version's template shows no tools: a call that is asked for is refused in the words of
    each client, recorded as a failure, and an answer in words is none."""
    before = len(clients.gateway.lines(0))
    with pytest.raises(openai.BadRequestError, match="shows the model no tools"):
        chat(clients, tools=[TOOL], tool_choice="required")
    with pytest.raises(anthropic.BadRequestError, match="shows the model no tools"):
        message(clients, tools=[ANTHROPIC_TOOL], tool_choice={"type": "any"})
    refused = clients.gateway.lines(before + 2)[before:]
    assert all("shows the model no tools" in str(call_of(line)) for line in refused)
    assert chat(clients, tools=[TOOL], max_tokens=4).choices


def test_no_call_is_forced_on_a_model_that_sees_no_tools(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base", max_position_embeddings=2048)
    with serving(tmp_path, base) as clients:
        check_that_no_call_is_forced(clients)


Cell = Callable[[Clients], None]
CELLS: dict[tuple[str, str], Cell] = {}


def cell(client: str, feature: str) -> Callable[[Cell], Cell]:
    """List a test as the cell of a client and a feature."""

    def add(check: Cell) -> Cell:
        CELLS[client, feature] = check
        return check

    return add


def check_turn(arguments: Any) -> None:
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(value) == {"turn"} and value["turn"] in TURN["enum"]


PICTURE = "data:image/png;base64,aGk="
"""What a model that reads text only refuses."""
PICTURE_PART: Any = {"type": "image_url", "image_url": {"url": PICTURE}}


def check_seeds(texts: Sequence[str | None]) -> None:
    """Compare the answers to one question with the seeds SEEDS."""
    assert texts[0] == texts[1] != texts[2]


SEEDS = (5, 5, 6)


# OpenAI, chat completions


def chat(clients: Clients, **fields: Any) -> Any:
    ask = {"model": "support", "messages": HELLO, "max_tokens": 150, "seed": 3, **fields}
    return clients.openai.chat.completions.create(**ask)


@cell("openai chat", "text")
def _(clients: Clients) -> None:
    reply = chat(clients, max_tokens=8)
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage.completion_tokens == 8 and reply.choices[0].finish_reason == "length"


@cell("openai chat", "stream")
def _(clients: Clients) -> None:
    options = {"include_usage": True}
    events = list(chat(clients, max_tokens=8, temperature=0, stream=True, stream_options=options))
    parts = [choice.delta.content or "" for event in events for choice in event.choices]
    assert "".join(parts) == clients.text
    assert events[-1].usage.completion_tokens == 8


@cell("openai chat", "tools")
def _(clients: Clients) -> None:
    reply = chat(clients, tools=[TOOL], tool_choice="required")
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "move" and reply.choices[0].finish_reason == "tool_calls"
    check_turn(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "moved"}
    messages = [*HELLO, reply.choices[0].message, result]
    assert chat(clients, messages=messages, tools=[TOOL], max_tokens=4).choices


@cell("openai chat", "streamed tools")
def _(clients: Clients) -> None:
    asked: Any = {"model": "support", "messages": HELLO, "max_tokens": 150}
    with clients.openai.chat.completions.stream(
        **asked, tools=[TOOL], tool_choice="required"
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    check_turn(call.function.arguments)


@cell("openai chat", "JSON schema")
def _(clients: Clients) -> None:
    reply = clients.openai.chat.completions.parse(
        model="support", messages=HELLO, response_format=Move, max_tokens=150
    )
    assert isinstance(reply.choices[0].message.parsed, Move)


@cell("openai chat", "JSON")
def _(clients: Clients) -> None:
    reply = chat(clients, response_format={"type": "json_object"}, max_tokens=5)
    assert reply.choices[0].message.content.startswith("{")


@cell("openai chat", "n")
def _(clients: Clients) -> None:
    reply = chat(clients, n=3, max_tokens=8)
    assert len({choice.message.content for choice in reply.choices}) == 3


@cell("openai chat", "stop")
def _(clients: Clients) -> None:
    stop = clients.text[2:5]
    reply = chat(clients, stop=[stop], temperature=0)
    assert stop not in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"


@cell("openai chat", "seed")
def _(clients: Clients) -> None:
    replies = [chat(clients, seed=seed, max_tokens=8) for seed in SEEDS]
    check_seeds([reply.choices[0].message.content for reply in replies])


@cell("openai chat", "log-probabilities")
def _(clients: Clients) -> None:
    reply = chat(clients, logprobs=True, top_logprobs=2, max_tokens=4)
    content = reply.choices[0].logprobs.content
    assert len(content) == 4 and len(content[0].top_logprobs) == 2


@cell("openai chat", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError, match="text only"):
        chat(clients, messages=[{"role": "user", "content": [PICTURE_PART]}])


@cell("openai embeddings", "text")
def _(clients: Clients) -> None:
    # the client asks for base64 and unpacks it
    reply = clients.openai.embeddings.create(model="support", input=["Hello", "Bye"])
    first, second = (row.embedding for row in reply.data)
    assert sum(x * x for x in first) == pytest.approx(1, abs=1e-4) and first != second
    assert reply.usage.prompt_tokens > 0


@cell("openai embeddings", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        clients.openai.embeddings.create(model="support", input="Hello", dimensions=3)


def complete(clients: Clients, **fields: Any) -> Any:
    ask = {"model": "support", "prompt": "The quick", "max_tokens": 8, "temperature": 0, **fields}
    return clients.openai.completions.create(**ask)


@cell("openai completions", "text")
def _(clients: Clients) -> None:
    reply = complete(clients)
    assert reply.choices[0].text and reply.choices[0].finish_reason == "length"
    assert reply.usage and reply.usage.completion_tokens == 8


@cell("openai completions", "stream")
def _(clients: Clients) -> None:
    events = complete(clients, stream=True)
    texts = [choice.text for event in events for choice in event.choices]
    assert "".join(texts) == complete(clients).choices[0].text


@cell("openai completions", "n")
def _(clients: Clients) -> None:
    reply = complete(clients, n=3, temperature=1, seed=1)
    assert len({choice.text for choice in reply.choices}) == 3


@cell("openai completions", "stop")
def _(clients: Clients) -> None:
    stop = complete(clients).choices[0].text[2:5]
    (choice,) = complete(clients, stop=[stop]).choices
    assert stop not in choice.text and choice.finish_reason == "stop"


@cell("openai completions", "seed")
def _(clients: Clients) -> None:
    replies = [complete(clients, seed=seed, temperature=1) for seed in SEEDS]
    check_seeds([reply.choices[0].text for reply in replies])


@cell("openai completions", "log-probabilities")
def _(clients: Clients) -> None:
    logprobs = complete(clients, logprobs=2).choices[0].logprobs
    assert len(logprobs.token_logprobs) == 8 and len(logprobs.top_logprobs[0]) == 2


@cell("openai completions", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError, match="echo"):
        complete(clients, echo=True)


# OpenAI, responses


def respond(clients: Clients, **fields: Any) -> Any:
    ask = {"model": "support", "input": "Hello", "max_output_tokens": 150, **fields}
    return clients.openai.responses.create(**ask)


@cell("openai responses", "text")
def _(clients: Clients) -> None:
    reply = respond(clients, max_output_tokens=16, temperature=0)
    assert reply.output_text.startswith(clients.text)
    assert reply.usage.output_tokens == 16
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@cell("openai responses", "stream")
def _(clients: Clients) -> None:
    asked: Any = {"model": "support", "input": "Hello", "max_output_tokens": 16}
    with clients.openai.responses.stream(**asked, temperature=0) as stream:
        events = list(stream)
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts).startswith(clients.text)
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@cell("openai responses", "tools")
def _(clients: Clients) -> None:
    reply = respond(clients, tools=[RESPONSES_TOOL], tool_choice="required")
    (call,) = reply.output
    assert (call.type, call.name, reply.status) == ("function_call", "move", "completed")
    check_turn(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "moved"}
    again = respond(clients, input=[*HELLO, call, result], max_output_tokens=16)
    assert again.output_text


@cell("openai responses", "streamed tools")
def _(clients: Clients) -> None:
    asked: Any = {"model": "support", "input": "Hello", "max_output_tokens": 150}
    with clients.openai.responses.stream(
        **asked, tools=[RESPONSES_TOOL], tool_choice={"type": "function", "name": "move"}
    ) as stream:
        final = stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    check_turn(call.arguments)


@cell("openai responses", "JSON schema")
def _(clients: Clients) -> None:
    reply = clients.openai.responses.parse(
        model="support", input="Hello", text_format=Move, max_output_tokens=150
    )
    assert isinstance(reply.output_parsed, Move)


@cell("openai responses", "JSON")
def _(clients: Clients) -> None:
    text: Any = {"format": {"type": "json_object"}}
    assert respond(clients, text=text, max_output_tokens=16).output_text.startswith("{")


@cell("openai responses", "log-probabilities")
def _(clients: Clients) -> None:
    include: Any = ["message.output_text.logprobs"]
    reply = respond(clients, include=include, top_logprobs=2, max_output_tokens=16)
    assert len(reply.output[0].content[0].logprobs) == 16


@cell("openai responses", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        respond(clients, previous_response_id="resp_1")


# Anthropic, messages


def message(clients: Clients, **fields: Any) -> Any:
    ask = {"model": "support", "messages": HELLO, "max_tokens": 150, **fields}
    return clients.anthropic.messages.create(**ask)


@cell("anthropic", "text")
def _(clients: Clients) -> None:
    reply = message(clients, max_tokens=8, extra_body=GREEDY)
    assert reply.content[0].text == clients.text
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 8)
    assert reply.usage.input_tokens > 0


@cell("anthropic", "stream")
def _(clients: Clients) -> None:
    asked: Any = {"model": "support", "messages": HELLO, "max_tokens": 8, "extra_body": GREEDY}
    with clients.anthropic.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == clients.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 8)
    assert final.usage.input_tokens > 0


@cell("anthropic", "tools")
def _(clients: Clients) -> None:
    reply = message(clients, tools=[ANTHROPIC_TOOL], tool_choice={"type": "any"})
    (block,) = reply.content
    assert (block.type, block.name, reply.stop_reason) == ("tool_use", "move", "tool_use")
    check_turn(block.input)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "moved"}
    messages = [*HELLO, {"role": "assistant", "content": reply.content}]
    messages.append({"role": "user", "content": [result]})
    assert message(clients, messages=messages, tools=[ANTHROPIC_TOOL], max_tokens=4).content


@cell("anthropic", "streamed tools")
def _(clients: Clients) -> None:
    asked: Any = {"model": "support", "messages": HELLO, "max_tokens": 150}
    with clients.anthropic.messages.stream(
        **asked, tools=[ANTHROPIC_TOOL], tool_choice={"type": "tool", "name": "move"}
    ) as stream:
        (block,) = stream.get_final_message().content
    assert block.type == "tool_use"
    check_turn(block.input)


@cell("anthropic", "JSON schema")
def _(clients: Clients) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    check_turn(message(clients, output_config=config).content[0].text)


@cell("anthropic", "stop")
def _(clients: Clients) -> None:
    stop = clients.text[2:5]
    reply = message(clients, stop_sequences=[stop], extra_body=GREEDY)
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)


@cell("anthropic", "errors")
def _(clients: Clients) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    content = [{"type": "image", "source": source}]
    with pytest.raises(anthropic.BadRequestError, match="text only"):
        message(clients, messages=[{"role": "user", "content": content}])


# Ollama


def ollama_chat(clients: Clients, **fields: Any) -> Any:
    options = {"num_predict": 150, **fields.pop("options", {})}
    return clients.ollama.chat("support", HELLO, options=options, **fields)


@cell("ollama chat", "text")
def _(clients: Clients) -> None:
    reply = ollama_chat(clients, options={"num_predict": 8, "temperature": 0})
    assert reply.message.content == clients.text
    assert (reply.done, reply.done_reason, reply.eval_count) == (True, "length", 8)
    assert reply.prompt_eval_count > 0


@cell("ollama chat", "stream")
def _(clients: Clients) -> None:
    options = {"num_predict": 8, "temperature": 0}
    lines = list(ollama_chat(clients, options=options, stream=True))
    assert "".join(line.message.content for line in lines) == clients.text
    assert lines[-1].done and lines[-1].eval_count == 8


@cell("ollama chat", "tools")
def _(clients: Clients) -> None:
    reply = ollama_chat(clients, tools=[TOOL], format=CALLED_BY_SCHEMA)
    (call,) = reply.message.tool_calls
    assert call.function.name == "move"
    check_turn(dict(call.function.arguments))
    result = {"role": "tool", "tool_name": "move", "content": "moved"}
    options = {"num_predict": 4}
    again = clients.ollama.chat("support", [*HELLO, reply.message, result], options=options)
    assert again.done


@cell("ollama chat", "streamed tools")
def _(clients: Clients) -> None:
    lines = list(ollama_chat(clients, tools=[TOOL], format=CALLED_BY_SCHEMA, stream=True))
    calls = [call for line in lines for call in line.message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["move"]


@cell("ollama chat", "JSON schema")
def _(clients: Clients) -> None:
    check_turn(ollama_chat(clients, format=SCHEMA).message.content)


@cell("ollama chat", "JSON")
def _(clients: Clients) -> None:
    reply = ollama_chat(clients, format="json", options={"num_predict": 5})
    assert reply.message.content.startswith("{")


@cell("ollama chat", "stop")
def _(clients: Clients) -> None:
    stop = clients.text[2:5]
    reply = ollama_chat(clients, options={"stop": [stop], "temperature": 0})
    assert stop not in reply.message.content and reply.done_reason == "stop"


@cell("ollama chat", "seed")
def _(clients: Clients) -> None:
    replies = [ollama_chat(clients, options={"seed": seed, "num_predict": 8}) for seed in SEEDS]
    check_seeds([reply.message.content for reply in replies])


@cell("ollama chat", "log-probabilities")
def _(clients: Clients) -> None:
    reply = ollama_chat(clients, options={"num_predict": 4}, logprobs=True, top_logprobs=2)
    assert len(reply.logprobs) == 4 and len(reply.logprobs[0].top_logprobs) == 2


@cell("ollama chat", "errors")
def _(clients: Clients) -> None:
    picture = {"role": "user", "content": "Look", "images": [b"hi"]}
    with pytest.raises(ollama.ResponseError, match="text only"):
        clients.ollama.chat("support", [picture])


def generate(clients: Clients, options: Any = None, **fields: Any) -> Any:
    options = {"num_predict": 8, "temperature": 0, **(options or {})}
    return clients.ollama.generate("support", "Hello", options=options, **fields)


@cell("ollama generate", "text")
def _(clients: Clients) -> None:
    assert generate(clients).response == clients.text


@cell("ollama generate", "stream")
def _(clients: Clients) -> None:
    lines = list(generate(clients, stream=True))
    assert "".join(line.response for line in lines) == clients.text


@cell("ollama generate", "JSON schema")
def _(clients: Clients) -> None:
    check_turn(generate(clients, {"num_predict": 150}, format=SCHEMA).response)


@cell("ollama generate", "JSON")
def _(clients: Clients) -> None:
    assert generate(clients, format="json").response.startswith("{")


@cell("ollama generate", "stop")
def _(clients: Clients) -> None:
    stop = clients.text[2:5]
    reply = generate(clients, {"stop": [stop]})
    assert stop not in reply.response and reply.done_reason == "stop"


@cell("ollama generate", "seed")
def _(clients: Clients) -> None:
    replies = [generate(clients, {"seed": seed, "temperature": 1}) for seed in SEEDS]
    check_seeds([reply.response for reply in replies])


@cell("ollama generate", "log-probabilities")
def _(clients: Clients) -> None:
    reply = generate(clients, logprobs=True, top_logprobs=2)
    assert len(reply.logprobs) == 8 and len(reply.logprobs[0].top_logprobs) == 2


@cell("ollama generate", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(ollama.ResponseError, match="raw"):
        generate(clients, raw=True)


@cell("ollama embed", "text")
def _(clients: Clients) -> None:
    reply = clients.ollama.embed("support", ["Hello", "Bye"])
    assert len(reply.embeddings) == 2 and reply.embeddings[0] != reply.embeddings[1]
    assert reply.prompt_eval_count


@cell("ollama embed", "errors")
def _(clients: Clients) -> None:
    with pytest.raises(ollama.ResponseError, match="dimensions"):
        clients.ollama.embed("support", "Hello", dimensions=3)


# Frameworks


def lang_chat(clients: Clients, **settings: Any) -> Any:
    from langchain_openai import ChatOpenAI

    settings = {"max_tokens": 150, **settings}
    url = f"{clients.gateway.url}/v1"
    return ChatOpenAI(model="support", base_url=url, api_key="any", max_retries=0, **settings)


def check_lang(clients: Clients, feature: str, **settings: Any) -> None:
    if feature in ("text", "stream"):
        settings = {**settings, "max_tokens": 16, "temperature": 0}
    model = lang_chat(clients, **settings)
    if feature == "text":
        reply = model.invoke("Hello")
        assert reply.text.startswith(clients.text)
        assert reply.usage_metadata["output_tokens"] == 16
    elif feature == "stream":
        assert "".join(part.text for part in model.stream("Hello")).startswith(clients.text)
    elif feature == "tools":
        (call,) = model.bind_tools([Move], tool_choice="any").invoke("Hello").tool_calls
        check_turn(call["args"])
    elif feature == "streamed tools":
        model = lang_chat(clients, **settings, streaming=True)
        (call,) = model.bind_tools([Move], tool_choice="any").invoke("Hello").tool_calls
        check_turn(call["args"])
    elif feature == "JSON schema":
        model = model.with_structured_output(Move, method="json_schema")
        assert isinstance(model.invoke("Hello"), Move)
    else:
        check_lang_setting(clients, feature, **settings, max_tokens=16)


def first_whole_object(clients: Clients, **settings: Any) -> Any:
    """The client refuses an object that was cut, and this model seldom ends one."""
    model = lang_chat(clients, **settings | {"max_tokens": 100})
    for _ in range(100):
        try:
            return model.bind(response_format={"type": "json_object"}).invoke("Hello")
        except openai.LengthFinishReasonError as error:
            assert error.completion.choices[0].message.content.startswith("{")
    raise AssertionError("no object was whole")


def check_lang_setting(clients: Clients, feature: str, **settings: Any) -> None:
    model = lang_chat(clients, **settings)
    if feature == "JSON":
        assert first_whole_object(clients, **settings).text.startswith("{")
    elif feature == "n":
        from langchain_core.messages import HumanMessage

        asked = [[HumanMessage("Hello")]]
        (generations,) = lang_chat(clients, **settings, n=3).generate(asked).generations
        assert len({generation.text for generation in generations}) == 3
    elif feature == "stop":
        stop = clients.text[2:5]
        reply = lang_chat(clients, **settings, temperature=0).invoke("Hello", stop=[stop])
        assert stop not in reply.text and reply.response_metadata["finish_reason"] == "stop"
    elif feature == "seed":
        models = [lang_chat(clients, **settings, seed=seed) for seed in SEEDS]
        check_seeds([model.invoke("Hello").text for model in models])
    elif feature == "log-probabilities":
        reply = lang_chat(clients, **settings, logprobs=True, top_logprobs=2).invoke("Hello")
        content = reply.response_metadata["logprobs"]["content"]
        assert len(content) == 16 and len(content[0]["top_logprobs"]) == 2
    else:
        with pytest.raises(openai.BadRequestError, match="text only"):
            model.invoke([{"role": "user", "content": [PICTURE_PART]}])


def check_pydantic_ai(clients: Clients, model: Any, feature: str) -> None:
    from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput
    from pydantic_ai import capture_run_messages as captured_messages
    from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior

    settings: Any = {"max_tokens": 150, "temperature": 0}
    short = {**settings, "max_tokens": 16}
    if feature == "text":
        result = Agent(model).run_sync("Hello", model_settings=short)
        assert result.output.startswith(clients.text) and result.usage.output_tokens == 16
    elif feature == "stream":
        stream = Agent(model).run_stream_sync("Hello", model_settings=short)
        assert "".join(stream.stream_text(delta=True)).startswith(clients.text)
    elif feature == "tools":
        agent: Any = Agent(model, output_type=Move)
        assert isinstance(agent.run_sync("Hello", model_settings=settings).output, Move)
    elif feature == "streamed tools":
        agent = Agent(model, output_type=Move)
        result = agent.run_stream_sync("Hello", model_settings=settings)
        assert isinstance(result.get_output(), Move)
    elif feature == "JSON schema":
        agent = Agent(model, output_type=NativeOutput(Move))
        assert isinstance(agent.run_sync("Hello", model_settings=settings).output, Move)
    elif feature == "JSON":
        # the schema is only in the prompt, and no random model follows it
        agent = Agent(model, output_type=PromptedOutput(Move), retries=0)
        with captured_messages() as messages, suppress(UnexpectedModelBehavior):
            agent.run_sync("Hello", model_settings=short)
        assert messages[1].parts[0].content.startswith("{")
    elif feature == "stop":
        stop = clients.text[2:5]
        result = Agent(model).run_sync("Hello", model_settings={**short, "stop_sequences": [stop]})
        assert stop not in result.output
    elif feature == "seed":
        random = {"max_tokens": 8}
        replies = [
            Agent(model).run_sync("Hello", model_settings={**random, "seed": seed})
            for seed in SEEDS
        ]
        check_seeds([reply.output for reply in replies])
    elif feature == "log-probabilities":
        wanted = {**short, "openai_logprobs": True, "openai_top_logprobs": 2}
        response = Agent(model).run_sync("Hello", model_settings=wanted).all_messages()[-1]
        details = response.provider_details or {}
        logprobs = details.get("logprobs") or response.parts[0].provider_details["logprobs"]
        assert len(logprobs) == 16 and len(logprobs[0]["top_logprobs"]) == 2
    else:
        picture = BinaryContent(data=b"hi", media_type="image/png")
        with pytest.raises(ModelHTTPError, match="text only"):
            Agent(model).run_sync(["Look", picture])


def pydantic_model(clients: Clients, kind: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.profiles.anthropic import AnthropicModelProfile
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if kind == "anthropic":
        provider = AnthropicProvider(base_url=clients.gateway.url, api_key="any")
        # it has native output for models that it knows, or that say so
        profile = AnthropicModelProfile(supports_json_schema_output=True)
        return AnthropicModel("support", provider=provider, profile=profile)
    openai_provider = OpenAIProvider(base_url=f"{clients.gateway.url}/v1", api_key="any")
    models = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
    return models[kind]("support", provider=openai_provider)


FEATURES = (
    "text",
    "stream",
    "tools",
    "streamed tools",
    "JSON schema",
    "JSON",
    "n",
    "stop",
    "seed",
    "log-probabilities",
    "errors",
)
METHODS: dict[str, Callable[..., Any]] = {
    "openai chat": openai.resources.chat.Completions.create,
    "openai embeddings": openai.resources.Embeddings.create,
    "openai completions": openai.resources.Completions.create,
    "openai responses": responses.Responses.create,
    "anthropic": anthropic.resources.Messages.create,
    "ollama chat": ollama.Client.chat,
    "ollama generate": ollama.Client.generate,
    "ollama embed": ollama.Client.embed,
}
"""API -> the method of its own client, whose parameters show what the API has."""
FIELDS = {
    "stream": {"stream"},
    "tools": {"tools"},
    "streamed tools": {"tools"},
    "JSON schema": {"response_format", "text", "format", "output_config"},
    "JSON": {"response_format", "text", "format"},  # Anthropic's config has schemas only
    "n": {"n"},
    "stop": {"stop", "stop_sequences"},
    "seed": {"seed"},
    "log-probabilities": {"logprobs", "top_logprobs"},
}
"""Feature -> the parameters of APIs that ask for it."""
BUILT_ON = {
    "langchain-openai, chat": "openai chat",
    "langchain-openai, responses": "openai responses",
    "pydantic-ai, chat": "openai chat",
    "pydantic-ai, responses": "openai responses",
    "pydantic-ai, anthropic": "anthropic",
    "npm openai, chat": "openai chat",
    "npm openai, responses": "openai responses",
    "npm openai, embeddings": "openai embeddings",
    "@ai-sdk/openai, responses": "openai responses",
    "@ai-sdk/openai, chat": "openai chat",
    "@ai-sdk/openai, embeddings": "openai embeddings",
    "@ai-sdk/openai-compatible": "openai chat",
    "@ai-sdk/openai-compatible, embeddings": "openai embeddings",
    "@ai-sdk/anthropic": "anthropic",
}
"""Client -> the API that it speaks."""
DROPPED = {
    ("langchain-openai, responses", "log-probabilities"),
    ("pydantic-ai, chat", "n"),
    ("@ai-sdk/openai, chat", "n"),
    ("@ai-sdk/openai-compatible", "n"),
    ("@ai-sdk/openai-compatible", "log-probabilities"),
}
"""What an API has, and a client over it leaves out: it has no setting for it, or does not show what
came."""


def features_of(client: str) -> list[str]:
    """Return the features that a client has: those of its API that it does not leave out."""
    api = BUILT_ON.get(client, client)
    parameters = set(inspect.signature(METHODS[api]).parameters)
    if api in ("ollama chat", "ollama generate"):
        parameters |= set(ollama.Options.model_fields)
    features = []
    for feature in FEATURES:
        has_field = feature in ("text", "errors") or not FIELDS[feature].isdisjoint(parameters)
        if has_field and (client, feature) not in DROPPED:
            features.append(feature)
    return features


def list_frameworks() -> None:
    for name, settings in (("chat", {}), ("responses", {"use_responses_api": True})):
        client = f"langchain-openai, {name}"
        for feature in features_of(client):
            CELLS[client, feature] = lambda clients, feature=feature, settings=settings: check_lang(
                clients, feature, **settings
            )
    for kind in ("chat", "responses", "anthropic"):
        client = f"pydantic-ai, {kind}"
        for feature in features_of(client):
            CELLS[client, feature] = lambda clients, kind=kind, feature=feature: check_pydantic_ai(
                clients, pydantic_model(clients, kind), feature
            )


list_frameworks()


def check_node(clients: Clients, key: tuple[str, str]) -> None:
    assert node_clients.results(clients.gateway.url)[key] is None


def list_node_clients() -> None:
    for client in BUILT_ON:
        if client.startswith(("npm", "@")):
            for feature in features_of(client):
                key = (client, feature)
                CELLS[key] = partial(check_node, key=key)


list_node_clients()


def test_every_feature_that_a_client_has_is_tried() -> None:
    for client in (*METHODS, *BUILT_ON):
        tried = {feature for name, feature in CELLS if name == client}
        assert tried == set(features_of(client)), client


@pytest.mark.slow
def test_a_client_that_leaves_out_a_feature_has_no_setting_for_it(clients: Clients) -> None:
    from pydantic_ai.models.openai import OpenAIChatModelSettings

    assert "n" not in OpenAIChatModelSettings.__optional_keys__
    model = lang_chat(clients, use_responses_api=True, max_tokens=16)
    asked = model.bind(include=["message.output_text.logprobs"], top_logprobs=2)
    reply = asked.invoke("Hello")
    assert "logprob" not in str(reply.content) + str(reply.response_metadata)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "setting"),
    [
        ("@ai-sdk/openai, responses", "seed"),
        ("@ai-sdk/openai, responses", "stopSequences"),
        ("@ai-sdk/anthropic", "seed"),
        ("@ai-sdk/anthropic", "responseFormat"),
    ],
)
def test_vercels_client_says_that_an_api_lacks_a_setting(
    clients: Clients, client: str, setting: str
) -> None:
    assert node_clients.results(clients.gateway.url)[client, f"lacks {setting}"] is None


@pytest.mark.slow
@pytest.mark.parametrize("key", CELLS, ids=" ".join)
def test_client(clients: Clients, key: tuple[str, str]) -> None:
    CELLS[key](clients)


@pytest.mark.slow
def test_calls_are_recorded_by_their_own_protocol(clients: Clients) -> None:
    before = len(clients.gateway.lines(0))
    message(clients, max_tokens=4)
    respond(clients, max_output_tokens=16)
    ollama_chat(clients, options={"num_predict": 4})
    lines = clients.gateway.lines(before + 3)[before:]
    protocols = {line["metadata"]["gateway"]["protocol"] for line in lines}
    assert protocols == {"anthropic_messages", "openai_responses", "ollama_chat"}
    for line in lines:
        call = call_of(line)
        assert line["output"] and call["complete"] is True
        assert call["model_version"] == "v1" and call["tokens"]["completion"] > 0


def test_the_table_of_the_docs_is_that_of_the_tests() -> None:
    lines = DOC.read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| client |"))
    features = [name.strip() for name in lines[start].split("|")[2:-1]]
    shown = set()
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        client, *marks = (part.strip().strip("`") for part in line.split("|")[1:-1])
        for feature, mark in zip(features, marks, strict=True):
            assert mark in ("yes", "-"), (client, feature, mark)
            if mark == "yes":
                shown.add((client, feature))
    assert tuple(features) == FEATURES and shown == set(CELLS)
