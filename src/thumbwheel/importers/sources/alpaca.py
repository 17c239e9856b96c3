"""Alpaca's files: `instruction`, `input` and `output`, with `system` and `history`
(LLaMA-Factory), as JSON, CSV or Parquet.

The prompt is the instruction and, below it, its input. Such a file says that its outputs are good,
unless the rows carry marks (`kto_tag`, ...). Rows with `chosen` and `rejected` are pairs.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import answer_at
from thumbwheel.importers.messages import converted, tools_of, with_media, with_thoughts
from thumbwheel.importers.pairs import given_prompt, has_side
from thumbwheel.importers.source import Row
from thumbwheel.importers.training_rows import (
    RowMarks,
    TrainingRows,
    judged_answer,
)
from thumbwheel.importers.types import AnyRecord, Unreadable

ROW = frozenset({"instruction", "output"})
USED = frozenset(
    {"instruction", "input", "context", "output", "system", "history", "images", "tools", "text"}
)
EXAMPLE = '{"instruction": "Translate into German.", "input": "the house", "output": "das Haus"}'


def claims(row: Row) -> bool:
    """Return whether the row has an instruction and its output."""
    others = {"response1", "prompt", "response", "messages", "completions"}
    return row.keys() >= ROW and not others & row.keys() and not has_side(row)


def parse(row: dict[str, Any], marks: RowMarks) -> list[AnyRecord]:
    """Return the trace and its feedback. Raises Unreadable if instruction or output is missing."""
    asked = {key: value for key, value in row.items() if key != "prompt"}
    prompt = given_prompt(asked)
    if prompt is None:
        raise Unreadable("its instruction is missing")
    output = answer_at(row, "output")
    if not output.strip():
        raise Unreadable("its output is empty")
    (answer,) = converted({"role": "assistant", "content": output})
    metadata = {key: value for key, value in row.items() if key not in USED and value is not None}
    tools = tools_of(row.get("tools"))
    if tools:
        metadata["tools"] = tools
    answer = with_thoughts(answer, row)
    return judged_answer(row, marks, with_media(prompt, row), answer, metadata)


SOURCE = TrainingRows.of(
    parse,
    claims,
    EXAMPLE,
    about="instruction, input and output, as Alpaca's files have them",
    reason="an instruction with its output",
)
"""The source."""
