"""Files for OpenAI's fine-tuning: chats (`messages`, with `tools`) and preferences (`input`,
`preferred_output`, `non_preferred_output`); and chats of other trainers, with `messages`.

Every answer of a chat from which OpenAI would learn becomes a trace labelled good, unless its
weight is 0. Where rows or messages carry marks (`kto_tag`, `label`, `rating`, ...), the marks say
what is good, and an answer without one is not judged. A row with `rejected_response` or
`rejected_messages` (ms-swift) is a pair.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import list_at, object_at, objects_at
from thumbwheel.importers.messages import (
    Messages,
    chat,
    is_chat,
    split_answer,
    tools_of,
    turns_of_pairs,
    with_media,
)
from thumbwheel.importers.pairs import (
    Verdict,
    distinct_records,
    has_side,
    messages_of,
    pair_records,
    rejected_answers,
    split_pair,
)
from thumbwheel.importers.source import Row
from thumbwheel.importers.training_rows import (
    RowMarks,
    TrainingRows,
    chat_records,
    messages_of_chat,
)
from thumbwheel.importers.types import AnyRecord, Unreadable

PAIR = frozenset({"input", "preferred_output", "non_preferred_output"})
REJECTED = ("rejected_response", "rejected_messages", "rejected")
CHATS = (
    "messages",
    "conversation",
    "chat",
    "dialogue",
    "dialog",
    "turns",
    "contents",
    "items",
    "conversations",
)
"""Keys of the chat of a row; `contents` is Gemini's."""
ANSWERS = (
    "response",
    "completion",
    "completions",
    "output",
    "answer",
    "reference_answer",
    "reference_output",
    "expected_output",
    "solution",
    "ground_truth",
)
"""Keys beside a chat that ends in a question, under which its answer stands."""
FLAGGED = frozenset({"conversation", "index", "value", "flag"})
"""Keys of a message of a chat that somebody flagged in Gradio, which `gradio.py` reads."""
SYSTEMS = ("systemInstruction", "system_instruction")
USED = frozenset({"messages", "system", *SYSTEMS, "images", "videos", "audios", *REJECTED})
EXAMPLE = (
    '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}\n'
    '{"input": {"messages": [{"role": "user", "content": "Hi"}]}, "preferred_output": [{"role": '
    '"assistant", "content": "Hello!"}],'
    ' "non_preferred_output": [{"role": "assistant", "content": "What?"}]}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a chat, or a prompt with both outputs."""
    about = row.get("metadata")
    if isinstance(about, dict) and "decisionId" in about:
        return False  # an exported decision, which says more
    if {"chosen", "rejected"} <= row.keys() and has_side(row):
        return False  # a pair with the chat of its better answer beside it
    if is_chat(row.get("conversations")) or row.keys() >= FLAGGED:
        return False  # ShareGPT's, Gradio's
    key = _chat_key(row)
    turns = _turns(row[key]) if key is not None else None
    if turns is not None and _is_answered_beside(row, turns):
        return False  # the answer is not in the chat
    return turns is not None or row.keys() >= PAIR


def _is_answered_beside(row: Row, turns: list[Any]) -> bool:
    """Return whether a chat ends in a question and the row has an answer to it, or several answers
    stand in its last turn."""
    if "candidates" in turns[-1]:
        return True
    try:
        last = chat([turns[-1]])
    except Unreadable:
        return False  # its row is refused with the reason
    is_question = not last or last[-1]["role"] in ("user", "tool")
    return is_question and any(row.get(name) is not None for name in ANSWERS)


def _chat_key(row: Row) -> str | None:
    """Return the key under which a row has its chat; None if it has none."""
    for key in CHATS:
        if _turns(row.get(key)) is not None:
            return key
    return "messages" if "messages" in row else None


def _turns(value: Any) -> list[Any] | None:
    """Return the turns of a chat, or of a list of questions with their answers; None for anything
    else."""
    return value if is_chat(value) else turns_of_pairs(value)


def parse(row: dict[str, Any], marks: RowMarks) -> list[AnyRecord]:
    """Return a trace with its feedback for every answer, or two traces and the preference."""
    if "preferred_output" in row or "non_preferred_output" in row:
        question = _question(row)
        tools = _tools(question, question.keys() - {"messages"})
        answers = _output(row, "preferred_output"), _output(row, "non_preferred_output")
        rest = {key: value for key, value in row.items() if key not in PAIR}
        prompt = chat(objects_at(question, "messages"))
        return pair_records(prompt, answers, [(None, [[0], [1]])], rest, metadata=tools)
    key = _chat_key(row)
    if key is not None:
        others = {name: value for name, value in row.items() if name != key}
        row = {**others, "messages": _turns(row[key]) or row[key]}
    messages = objects_at(row, "messages")
    system = next((row[name] for name in SYSTEMS if row.get(name)), row.get("system"))
    is_googles = bool(messages) and "author" in messages[0]
    if is_googles and isinstance(row.get("context"), str):
        system = system or row["context"]  # as older chats of Google have it
    row = {**row, "system": system}
    metadata = _tools(row, row.keys() - USED)
    if any(row.get(key) is not None and not isinstance(row[key], bool) for key in REJECTED):
        return _rejected(row, metadata)
    return chat_records(row, messages, marks, metadata)


def _rejected(row: Row, metadata: dict[str, Any] | None) -> list[AnyRecord]:
    """Return the chat's last answer and every answer that was rejected for it as a pair. Raises
    Unreadable if a rejected answer is neither a text nor messages."""
    pairs = messages_of_chat(row, objects_at(row, "messages"))
    prompt, chosen = split_answer([message for message, _ in pairs], "the chat")
    rejected: Any = next((row[key] for key in REJECTED[::-1] if row.get(key) is not None), None)
    verdicts: list[Verdict] = [(None, [[0], [1]])]
    records: list[AnyRecord] = []
    for answer in rejected_answers(rejected):
        turns = _rejected_turns(answer)
        _, _, other = split_pair(prompt, [*prompt, chosen], with_media(chat(turns), row))
        records += pair_records(prompt, (chosen, other), verdicts, {}, metadata=metadata)
    return distinct_records(records)


def _rejected_turns(answer: Any) -> list[Any]:
    """Return a rejected answer as messages. Raises Unreadable."""
    turns: Any = answer
    if isinstance(answer, str):
        turns = [{"role": "assistant", "content": answer}]
    elif isinstance(answer, dict):
        turns = [answer]
    if not is_chat(turns):
        raise Unreadable("its rejected answer is neither a text nor messages")
    return list(turns)


def _tools(row: Row, keys: set[str]) -> dict[str, Any] | None:
    """Return these keys of the row as metadata, or None. Tools are stored under `tools` in any
    form, also if they came as the older `functions`."""
    metadata = {key: row[key] for key in sorted(keys) if row[key] is not None}
    tools = tools_of(metadata.pop("tools", None))
    if functions := list_at(row, "functions"):
        del metadata["functions"]
        tools = [{"type": "function", "function": function} for function in functions]
    if tools:
        metadata["tools"] = tools
    return metadata or None


def _question(row: Row) -> dict[str, Any]:
    """Return the request of a preference; a text or a chat is its prompt."""
    question = row.get("input")
    if isinstance(question, str):
        return {"messages": messages_of(question)}
    return {"messages": question} if is_chat(question) else object_at(row, "input")


def _output(row: Row, key: str) -> dict[str, Any]:
    output = row.get(key)
    if isinstance(output, str) and output.strip():
        output = [{"role": "assistant", "content": output}]
    messages: Messages = chat(objects_at({key: output}, key))
    if len(messages) == 1 and messages[0]["role"] == "assistant":
        return messages[0]
    raise Unreadable(f"{key} is not one message of the assistant")


SOURCE = TrainingRows.of(parse, claims, EXAMPLE, reason="a chat, or a prompt with both outputs")
