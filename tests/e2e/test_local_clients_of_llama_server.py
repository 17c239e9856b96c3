"""The same clients call a version on a real llama-server, which speaks none of their APIs: the
gateway translates for it as for the embedded target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.test_local_clients import (
    ANTHROPIC_TOOL,
    CELLS,
    HELLO,
    RESPONSES_TOOL,
    TOOL,
    Clients,
    chat,
    message,
    ollama_chat,
    respond,
    serving,
)
from tests.models.tiny_models import tiny_tokenizer
from tests.servers.llama_tools import needs, wide_base
from tests.worlds.gateway_world import call_of

pytestmark = pytest.mark.slow
CLIENTS = ("openai chat", "openai responses", "anthropic", "ollama chat", "ollama generate")
FEATURES = ("text", "stream", "JSON schema")
CALLED = [key for key in CELLS if key[0] in CLIENTS and key[1] in FEATURES]
ARGUMENTS = {"turn": "left"}
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}Write a call as <tool_call>{name, arguments}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""llama-server takes tools only where the template shows them."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    needs("llama-server", "converter")
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = tiny_tokenizer(TEMPLATE)
    base = wide_base(folder / "base", max_position_embeddings=2048, tokenizer=tokenizer)
    with serving(folder, base, "llamacpp", context=1024) as clients:
        yield clients


@pytest.mark.parametrize("key", CALLED, ids=" ".join)
def test_client(clients: Clients, key: tuple[str, str]) -> None:
    CELLS[key](clients)


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
        assert call["model_version"] == "v1" and call["tokens"]["completion"] >= 4


def test_tools_calls_and_results_reach_the_model_in_every_api(clients: Clients) -> None:
    """A random model cannot be made to call a tool here, because llama-server lets it write words
    before a call; what it is shown must be the same in all APIs."""
    function = {"name": "move", "arguments": json.dumps(ARGUMENTS)}
    call = {"id": "c1", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "c1", "content": "moved"}
    calling: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [*HELLO, calling, result]
    without = chat(clients, max_tokens=4).usage.prompt_tokens
    by_chat = chat(clients, messages=turns, tools=[TOOL], max_tokens=4).usage.prompt_tokens
    assert by_chat > without + 20

    use = {"type": "tool_use", "id": "c1", "name": "move", "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "moved"}
    blocks = [
        *HELLO,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    usage = message(clients, messages=blocks, tools=[ANTHROPIC_TOOL], max_tokens=4).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == by_chat

    items = [
        *HELLO,
        {"type": "function_call", "call_id": "c1", **function},
        {"type": "function_call_output", "call_id": "c1", "output": "moved"},
    ]
    by_responses = respond(clients, input=items, tools=[RESPONSES_TOOL], max_output_tokens=16)
    assert by_responses.usage.input_tokens == by_chat

    calling = {"role": "assistant", "content": ""}
    calling["tool_calls"] = [{"function": {"name": "move", "arguments": ARGUMENTS}}]
    turns = [*HELLO, calling, {"role": "tool", "tool_name": "move", "content": "moved"}]
    by_ollama = clients.ollama.chat(
        "support", messages=turns, tools=[TOOL], options={"num_predict": 4}
    )
    # its client leaves keys of the schema out that it does not know
    assert without + 20 < (by_ollama.prompt_eval_count or 0) <= by_chat
