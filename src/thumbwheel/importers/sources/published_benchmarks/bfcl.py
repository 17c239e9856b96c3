"""Tool-call questions of BFCL: {id, question, function} with the expected calls in a file beside
it, or in the row as `ground_truth`.

The expected calls of `X.jsonl` are looked for in `X-expected.jsonl` and `possible_answer/X.jsonl`.
Questions about irrelevant functions expect no call and need none. A row becomes a case (checker
`tool_match`, the expected calls as reference; the messages of several turns stand one after the
other) and a gold trace: it makes the expected calls, and its metadata keeps the tools, which a case
has no place for.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from thumbwheel.core.python_source import check_source
from thumbwheel.importers.fields import clip, list_at, objects_at, text_at
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.messages import chat, is_chat
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import JsonLines, Parse, Row
from thumbwheel.importers.types import AnyRecord, CaseRecord, StepRecord, TraceRecord, Unreadable

TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Python's names of types, as the file has them, in those of JSON Schema."""
EXAMPLE = (
    '{"id": "irrelevance_7", "question": [[{"role": "user", "content": "Who wrote Faust?"}]],'
    ' "function": [{"name": "add", "description": "Add.", "parameters": {"type": "dict", '
    '"properties": {}, "required": []}}]}\n'
    '{"id": "simple_1", "question": [[{"role": "user", "content": "3 + 4?"}]], "function": '
    '[{"name": "add", "description": "Add.",'
    ' "parameters": {"type": "dict", "properties": {"a": {"type": "integer"}, "b": {"type": '
    '"integer"}}, "required": ["a", "b"]}}],'
    ' "ground_truth": [{"add": {"a": [3], "b": [4]}}]}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a question of turns with functions, or with the classes that the
    turns need."""
    question = row.get("question")
    return (
        isinstance(question, list)
        and "id" in row
        and bool({"function", "involved_classes"} & row.keys())
    )


def beside(path: Path) -> Parse:
    """Return `parse` bound to the expected calls of the file beside `path`."""
    candidates = (
        path.with_name(f"{path.stem}-expected{path.suffix}"),
        path.parent / "possible_answer" / path.name,
    )
    companion = next((file for file in candidates if file.exists()), None)
    if companion is None:
        names = [file.relative_to(path.parent).as_posix() for file in candidates]
        return partial(parse, expected={}, looked_for=" or ".join(names))
    expected = {
        str(answer.row.get("id")): answer.row.get("ground_truth")
        for answer in read_rows(companion, ignore_position)
        if answer.row
    }
    return partial(parse, expected=expected, looked_for=companion.name)


def parse(
    row: dict[str, Any],
    expected: dict[str, Any] | None = None,
    looked_for: str = "a file beside it",
) -> list[AnyRecord]:
    """Return the case and its gold trace. Raises Unreadable if the expected calls are missing."""
    name = text_at(row, "id")
    turns = list_at(row, "question")
    if not turns or not all(is_chat(turn) or turn == [] for turn in turns):
        raise Unreadable("question is no list of turns, each a list of messages")
    if "ground_truth" in row:
        expectations = row["ground_truth"]
    elif "irrelevance" in name:
        expectations = []
    else:
        expectations = (expected or {}).get(name)
    if not isinstance(expectations, list):
        raise Unreadable(
            f"its expected calls are neither in the row (ground_truth) nor in {looked_for}: {name}"
        )
    prompt = chat(chain.from_iterable(turns))
    case = CaseRecord.model_validate(
        {
            "id": name,
            "input": prompt,
            "reference": expectations,
            "checker": "tool_match",
            "group": name,
        }
    )

    metadata: dict[str, Any] = {"gold": True}
    tools = [_tool(function) for function in objects_at(row, "function")]
    if tools:
        metadata["tools"] = tools
    if len(turns) > 1:
        metadata["turns"] = len(turns)
    used = ("id", "question", "function", "ground_truth")
    metadata |= {key: value for key, value in row.items() if key not in used}

    calls = _calls(expectations)
    tool_steps = [
        StepRecord(kind="tool", name=call["name"], input=call["arguments"]) for call in calls
    ]
    trace = {
        "case": name,
        "input": prompt,
        "output": json.dumps(calls, ensure_ascii=False) if calls else None,
        "steps": [StepRecord(), *tool_steps],
        "metadata": metadata,
    }
    return [case, TraceRecord.model_validate(trace)]


def _tool(function: Row) -> dict[str, Any]:
    """Return the declaration in the form of chat APIs."""
    return {"type": "function", "function": _typed(function)}


def _typed(value: Any) -> Any:
    """Return a copy with the types of JSON Schema."""
    if isinstance(value, list):
        return [_typed(part) for part in value]
    if not isinstance(value, dict):
        return value
    typed = {}
    for key, part in value.items():
        is_type = key == "type" and isinstance(part, str)
        typed[key] = TYPES.get(part, part) if is_type else _typed(part)
    return typed


def _calls(expected: Any) -> list[dict[str, Any]]:
    """Return calls that fulfil an expectation: each with the first allowed value of every argument,
    without optional arguments. Raises Unreadable."""
    if isinstance(expected, list):
        return list(chain.from_iterable(map(_calls, expected)))
    if isinstance(expected, str):
        return [_parsed_call(expected)]
    is_call = isinstance(expected, dict) and all(
        isinstance(arguments, dict) for arguments in expected.values()
    )
    if not is_call:
        raise Unreadable(f"{clip(expected)} is no expected call")
    return [{"name": name, "arguments": _first(arguments)} for name, arguments in expected.items()]


def _first(allowed: Any) -> Any:
    """Return the first allowed value. In an object each key lists its allowed values; a key with ""
    among them is optional and left out."""
    if isinstance(allowed, list):
        return [_first(part) for part in allowed]
    if not isinstance(allowed, dict):
        return allowed
    chosen = {}
    for key, values in allowed.items():
        values = values if isinstance(values, list) else [values]
        if values and "" not in values:
            chosen[key] = _first(values[0])
    return chosen


def _parsed_call(text: str) -> dict[str, Any]:
    """Parse a call that is written as a Python expression. Raises Unreadable."""
    import ast

    try:
        check_source(text)
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("no call")
        arguments = {
            str(index): ast.literal_eval(argument) for index, argument in enumerate(call.args)
        }
        for keyword in call.keywords:
            arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
        return {"name": ast.unparse(call.func), "arguments": arguments}
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise Unreadable(f"expected call {clip(text)} is no call of a function") from None


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    beside,
    reason="a question of turns with functions, or of turns with the classes that they need",
)
