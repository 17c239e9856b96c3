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
from pathlib import Path
from typing import Any

from thumbwheel.capture.fields import chat, clip, is_chat, list_at, objects_at, text_at
from thumbwheel.capture.rowfile import rows
from thumbwheel.capture.source import AnyRecord, JsonLines, Parse, Row
from thumbwheel.capture.types import CaseRecord, StepRecord, TraceRecord, Unreadable

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
    """A question of turns with functions, or of turns with the classes that they need."""
    question = row.get("question")
    return (
        isinstance(question, list)
        and "id" in row
        and bool({"function", "involved_classes"} & row.keys())
    )


def beside(path: Path) -> Parse:
    """`parse` that knows the expected calls of the file beside `path`."""
    expected: dict[str, Any] = {}
    candidates = (
        path.with_name(f"{path.stem}-expected{path.suffix}"),
        path.parent / "possible_answer" / path.name,
    )
    companion = next((file for file in candidates if file.exists()), None)
    if companion:
        answers = (found.row for found in rows(companion, lambda position: None) if found.row)
        expected = {str(row.get("id")): row.get("ground_truth") for row in answers}
    looked_for = (
        companion.name
        if companion
        else " or ".join(file.relative_to(path.parent).as_posix() for file in candidates)
    )
    return partial(parse, expected=expected, looked_for=looked_for)


def parse(
    row: dict[str, Any],
    expected: dict[str, Any] | None = None,
    looked_for: str = "a file beside it",
) -> list[AnyRecord]:
    """The case and its gold trace."""
    name = text_at(row, "id")
    turns = list_at(row, "question")
    if not turns or not all(is_chat(turn) or turn == [] for turn in turns):
        raise Unreadable("question is no list of turns, each a list of messages")
    calls = (
        row["ground_truth"]
        if "ground_truth" in row
        else []
        if "irrelevance" in name
        else (expected or {}).get(name)
    )
    if not isinstance(calls, list):
        raise Unreadable(
            f"its expected calls are neither in the row (ground_truth) nor in {looked_for}: {name}"
        )
    asked = chat([message for turn in turns for message in turn])
    case = CaseRecord.model_validate(
        {"id": name, "input": asked, "reference": calls, "checker": "tool_match", "group": name}
    )
    rest = {
        key: value
        for key, value in row.items()
        if key not in ("id", "question", "function", "ground_truth")
    }
    tools = [_tool(one) for one in objects_at(row, "function")]
    made = [call for one in calls for call in _made(one)]
    steps = [
        StepRecord(),
        *(StepRecord(kind="tool", name=call["name"], input=call["arguments"]) for call in made),
    ]
    about = (
        {"gold": True}
        | ({"tools": tools} if tools else {})
        | ({"turns": len(turns)} if len(turns) > 1 else {})
        | rest
    )
    fields = {
        "case": name,
        "input": asked,
        "output": json.dumps(made, ensure_ascii=False) if made else None,
        "steps": steps,
    }
    return [case, TraceRecord.model_validate(fields | {"metadata": about})]


def _tool(function: Row) -> dict[str, Any]:
    """The declaration as chat APIs take it."""
    return {"type": "function", "function": _typed(function)}


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: TYPES.get(one, one) if key == "type" and isinstance(one, str) else _typed(one)
        for key, one in value.items()
    }


def _made(expected: Any) -> list[dict[str, Any]]:
    """Calls that fulfil an expectation: the first allowed value of each argument, without those
    that may be left out."""
    if isinstance(expected, list):
        return [call for one in expected for call in _made(one)]
    if isinstance(expected, str):
        return [_written(expected)]
    if not isinstance(expected, dict) or not all(
        isinstance(one, dict) for one in expected.values()
    ):
        raise Unreadable(f"{clip(expected)} is no expected call")
    return [{"name": name, "arguments": _first(arguments)} for name, arguments in expected.items()]


def _first(allowed: Any) -> Any:
    """A value that is allowed: in an object each key lists its values, and "" among them means that
    it may be absent."""
    if isinstance(allowed, list):
        return [_first(one) for one in allowed]
    if not isinstance(allowed, dict):
        return allowed
    some = {
        key: values if isinstance(values, list) else [values] for key, values in allowed.items()
    }
    return {key: _first(values[0]) for key, values in some.items() if values and "" not in values}


def _written(text: str) -> dict[str, Any]:
    import ast

    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("no call")
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        placed = {str(place): ast.literal_eval(one) for place, one in enumerate(call.args)}
        return {"name": ast.unparse(call.func), "arguments": placed | named}
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise Unreadable(f"expected call {clip(text)} is no call of a function") from None


SOURCE = JsonLines(parse, claims, EXAMPLE, beside)
