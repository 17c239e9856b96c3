"""Files for OpenAI's fine-tuning: chats (`messages`, with `tools`) and preferences (`input`,
`preferred_output`, `non_preferred_output`).

A chat becomes a trace whose answer is the last message of the assistant, labelled good, because
that is what such a file says of it; with the weight 0 it says nothing. A conversational row of
other trainers (`messages` alone) is the same thing and is read here too.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.fields import chat, list_at, object_at, objects_at, split_answer
from thumbwheel.capture.pairs import pair_records
from thumbwheel.capture.source import JsonLines, Row
from thumbwheel.capture.types import AnyRecord, FeedbackRecord, TraceRecord, Unreadable

CHAT = frozenset({"messages"})
PAIR = frozenset({"input", "preferred_output", "non_preferred_output"})
EXAMPLE = (
    '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}\n'
    '{"input": {"messages": [{"role": "user", "content": "Hi"}]}, "preferred_output": [{"role": '
    '"assistant", "content": "Hello!"}],'
    ' "non_preferred_output": [{"role": "assistant", "content": "What?"}]}'
)


def claims(row: Row) -> bool:
    """A chat, or a prompt with both outputs."""
    about = row.get("metadata")
    if isinstance(about, dict) and "decisionId" in about:
        return False  # an exported decision, which says more
    return isinstance(row.get("messages"), list) or row.keys() >= PAIR


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """A trace and its label, or two traces and the preference."""
    if "preferred_output" in row or "non_preferred_output" in row:
        question = object_at(row, "input")
        tools = _tools(question, question.keys() - {"messages"})
        answers = _output(row, "preferred_output"), _output(row, "non_preferred_output")
        rest = {key: value for key, value in row.items() if key not in PAIR}
        prompt = chat(objects_at(question, "messages"))
        return pair_records(prompt, answers, [(None, [[0], [1]])], rest, metadata=tools)
    messages = objects_at(row, "messages")
    while messages and messages[-1].get("role") not in ("assistant", "model", "gpt"):
        messages = messages[:-1]
    if not messages:
        raise Unreadable("its messages hold no answer of the assistant")
    prompt, answer = split_answer(chat(messages), "the chat")
    trace = TraceRecord.model_validate(
        {"input": prompt, "output": answer, "metadata": _tools(row, row.keys() - CHAT)}
    )
    if messages[-1].get("weight") == 0:
        return [trace]
    label = FeedbackRecord(kind="label", name="good", value=True, targets=[trace.as_target()])
    return [trace, label]


def _tools(row: Row, keys: set[str]) -> dict[str, Any] | None:
    """What stands beside the messages; `tools` is where the rest of the project looks for them,
    `functions` is their older form."""
    metadata = {key: row[key] for key in sorted(keys) if row[key] is not None}
    if functions := list_at(row, "functions"):
        del metadata["functions"]
        metadata["tools"] = [{"type": "function", "function": function} for function in functions]
    return metadata or None


def _output(row: Row, key: str) -> str:
    messages = chat(objects_at(row, key))
    if len(messages) == 1:
        (message,) = messages
        if message["role"] == "assistant" and isinstance(message["content"], str):
            return message["content"]
    raise Unreadable(f"{key} is not one text of the assistant")


SOURCE = JsonLines(parse, claims, EXAMPLE)
