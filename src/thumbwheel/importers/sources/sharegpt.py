"""ShareGPT: conversations of `from` and `value` turns, as exported chats and many training sets
have them, with `system`, `tools`, `images`, and for preferences `chosen` and `rejected`
(LLaMA-Factory).

Such a file says that the answers are good ones, and it is read so: every answer becomes a trace
with the label good, unless the rows carry marks (`kto_tag`, ...). A `function_call` is a call of a
tool, an `observation` its result.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import name_of, objects_at
from thumbwheel.importers.messages import chat, split_answer, tools_of
from thumbwheel.importers.pairs import (
    Verdict,
    distinct_records,
    has_side,
    pair_records,
    rejected_answers,
)
from thumbwheel.importers.source import Row
from thumbwheel.importers.training_rows import (
    RowMarks,
    TrainingRows,
    chat_records,
    messages_of_chat,
)
from thumbwheel.importers.types import AnyRecord, Unreadable

USED = frozenset(
    {
        "id",
        "conversations",
        "system",
        "tools",
        "chosen",
        "rejected",
        "images",
        "image",
        "videos",
        "audios",
    }
)
EXAMPLE = (
    '{"id": "c1", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": '
    '"4"}]}\n'
    '{"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": '
    '"Hello!"}, "rejected": {"from": "gpt", "value": "What?"}}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a list `conversations` of turns."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        return False
    return bool({"from", "role"} & turns[0].keys())


def parse(row: dict[str, Any], marks: RowMarks) -> list[AnyRecord]:
    """Return a trace with its feedback for every answer, or two traces and the preference."""
    turns = objects_at(row, "conversations")
    metadata = {key: value for key, value in row.items() if key not in USED and value is not None}
    tools = tools_of(row.get("tools"))
    if tools:
        metadata["tools"] = tools
    if not has_side(row):
        return chat_records(row, turns, marks, metadata, name_of(row.get("id")))
    messages = [message for message, _ in messages_of_chat(row, turns)]
    if row.get("chosen") is None:  # the conversation ends in it
        messages, chosen = split_answer(messages, "the conversation")
    else:
        chosen = _answer(row["chosen"], "chosen")
    records: list[AnyRecord] = []
    for rejected in rejected_answers(row.get("rejected")):
        answers = chosen, _answer(rejected, "rejected")
        verdicts: list[Verdict] = [(None, [[0], [1]])]
        records += pair_records(messages, answers, verdicts, {}, metadata=metadata or None)
    return distinct_records(records)


def _answer(turn: Any, key: str) -> dict[str, Any]:
    if isinstance(turn, str):
        turn = {"from": "gpt", "value": turn}
    messages = chat([turn]) if isinstance(turn, dict) else []
    if len(messages) == 1 and messages[0]["role"] == "assistant":
        return messages[0]
    raise Unreadable(f"{key} is not one turn of the assistant")


SOURCE = TrainingRows.of(
    parse,
    claims,
    EXAMPLE,
    about="conversations of from and value turns, also with chosen/rejected",
    reason="a list `conversations` of turns",
)
"""The source."""
