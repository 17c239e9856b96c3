"""The form of a recorded run: `ExecutionTrace` with its tool calls and reasoning steps, its JSON
file, and its line of our own format.

A file has exactly the keys of `ExecutionTrace`, and `agent`, `parent_trace_id` and `user_id` where
there are such. Numbers that nobody knows are null, never 0. Reading is tolerant: unknown keys are
kept in `extra`, missing ones get their default. Not here: when a file is written (`collector`),
what else there is in somebody's folder (the source `flowagent`).
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

RESULT, CONTENT, TASK = 2000, 1000, 500
"""Characters that are kept of a tool's result, a reasoning step, a task's texts."""
DEEPEST = 50
FAILURES = {"execution_error": "error", "cancelled": "cancelled"}
"""Type of a failed task entry that stands for the whole run -> status of the run."""


@dataclass
class ToolCallTrace:
    """One tool call; `success` false where it raised. `duration_ms` is null where nobody measured
    it."""

    tool_name: str
    arguments: Any = None
    result: Any = ""
    success: bool = True
    duration_ms: float | None = None
    error: str | None = None
    timestamp: str = ""


@dataclass
class ReasoningStep:
    """One step of reasoning: internal_reasoning, outline_step, task_delegation, final_result,
    delegation or a word of your own."""

    step_type: str
    content: str = ""
    confidence: float | None = None
    insights: list[Any] = field(default_factory=list)
    issues: list[Any] = field(default_factory=list)


@dataclass
class ExecutionTrace:
    """One run. Totals are those of this run alone and null where unknown; `label` is true (good),
    false (bad) or null (nobody judged)."""

    trace_id: str
    session_id: str = "default"
    timestamp: str = ""
    user_query: str = ""
    tool_calls: list[ToolCallTrace] = field(default_factory=list)
    reasoning_steps: list[ReasoningStep] = field(default_factory=list)
    tasks_created: list[dict[str, Any]] = field(default_factory=list)
    tasks_completed: list[dict[str, Any]] = field(default_factory=list)
    tasks_failed: list[dict[str, Any]] = field(default_factory=list)
    final_response: str = ""
    total_tokens_in: int | None = None
    total_tokens_out: int | None = None
    total_cost: float | None = None
    execution_duration_ms: float | None = None
    llm_calls_count: int | None = None
    label: bool | None = None
    reward_score: float | None = None
    manual_review: bool = False
    review_notes: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keys: `agent`, `parent_trace_id`, `user_id` (the subject), and what others wrote."""

    @property
    def status(self) -> str:
        """ok, error or cancelled."""
        return next(
            (FAILURES[one["type"]] for one in self.tasks_failed if one.get("type") in FAILURES),
            "ok",
        )

    def as_dict(self) -> dict[str, Any]:
        """The object of the file, JSON values only."""
        found = asdict(self)
        extra = found.pop("extra")
        return dict(plain(found | extra))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> ExecutionTrace:
        """The trace in an object of a file; raises ValueError or TypeError for what is none."""
        known = {one.name for one in fields(cls)} - {"extra"}
        own = {key: value for key, value in found.items() if key in known and value is not None}
        own["tool_calls"] = [_part(ToolCallTrace, one) for one in own.get("tool_calls", [])]
        own["reasoning_steps"] = [
            _part(ReasoningStep, one) for one in own.get("reasoning_steps", [])
        ]
        for key in ("tasks_created", "tasks_completed", "tasks_failed"):
            if not all(isinstance(task, dict) for task in own.get(key, [])):
                raise TypeError(f"{key} is no list of objects")
        return cls(**own, extra={key: value for key, value in found.items() if key not in known})


def _part(kind: type[Any], found: Any) -> Any:
    if not isinstance(found, dict):
        raise TypeError(f"{found!r} is no {kind.__name__}")
    known = {one.name for one in fields(kind)}
    return kind(**{key: value for key, value in found.items() if key in known})


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON has it: unknown objects, NaN and what is nested too deep become text, half
    characters and NUL are replaced."""
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else _text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth < DEEPEST and isinstance(value, Mapping):
        return {plain(str(key)): plain(one, depth + 1) for key, one in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in value]
    return plain(_text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object of the user's app that cannot be shown must not end its run
        return f"<{type(value).__name__}>"


def clip(value: Any, most: int) -> str:
    """`value` as text of at most so many characters; empty for what is nothing."""
    return "" if value is None or value == "" else str(plain(_text(value)))[:most]


def line_of(trace: ExecutionTrace) -> dict[str, Any]:
    """The fields of a trace line for `trace`: its steps are reasoning, then tasks and tools by
    time, and the model's answer last."""
    timed = [(one.timestamp, _tool(one)) for one in trace.tool_calls] + [
        (str(task.get("timestamp") or ""), _task(task, status))
        for status in ("created", "completed", "failed")
        for task in getattr(trace, f"tasks_{status}")
        if task.get("type") not in FAILURES
    ]
    tokens = {"prompt": trace.total_tokens_in, "completion": trace.total_tokens_out}
    answer = {
        "kind": "llm",
        "status": trace.status,
        "tokens": tokens if None not in tokens.values() else None,
    }
    known = ("total_cost", "execution_duration_ms", "llm_calls_count")
    metadata = {key: getattr(trace, key) for key in known if getattr(trace, key) is not None}
    errors = [
        str(one.get("error", "")) for one in trace.tasks_failed if one.get("type") in FAILURES
    ]
    line = {
        "id": trace.trace_id,
        "session": trace.session_id or None,
        "subject": _subject(trace),
        "parent": trace.extra.get("parent_trace_id"),
        "input": trace.user_query,
        "output": trace.final_response or None,
        "status": trace.status,
        "occurred_at": trace.timestamp or None,
        "steps": [
            *map(_reasoning, trace.reasoning_steps),
            *(step for _, step in sorted(timed, key=lambda one: one[0])),
            answer,
        ],
        "metadata": metadata | ({"error": errors[0]} if errors else {}),
    }
    return dict(
        plain({key: _known(value) for key, value in line.items() if value not in (None, {})})
    )


def _subject(trace: ExecutionTrace) -> str | None:
    """Whose run it is: `user_id`, where the agent was told."""
    metadata = trace.extra.get("metadata")
    for holder in (trace.extra, metadata if isinstance(metadata, Mapping) else {}):
        user = holder.get("user_id")
        if isinstance(user, str | int) and not isinstance(user, bool) and str(user).strip():
            return str(user)[:512]
    return None


def _known(value: Any) -> Any:
    return (
        [{key: part for key, part in step.items() if part not in (None, "")} for step in value]
        if isinstance(value, list)
        else value
    )


def _tool(one: ToolCallTrace) -> dict[str, Any]:
    step = {
        "kind": "tool",
        "name": one.tool_name[:512],
        "input": one.arguments,
        "output": one.error or one.result,
    }
    return step | {"status": "ok" if one.success else "error"}


def _task(task: Mapping[str, Any], status: str) -> dict[str, Any]:
    output = task.get("error") if status == "failed" else task.get("result")
    about = {key: task[key] for key in ("task_id", "description") if task.get(key)}
    return {
        "kind": "task",
        "name": str(task.get("type") or "task")[:512],
        "input": about,
        "output": output,
        "status": status,
    }


def _reasoning(one: ReasoningStep) -> dict[str, Any]:
    beside = {"confidence": one.confidence, "insights": one.insights, "issues": one.issues}
    known = {key: value for key, value in beside.items() if value not in (None, [])}
    return {
        "kind": "reasoning",
        "name": one.step_type[:512],
        "input": known or None,
        "output": one.content,
    }


def write_trace(path: Path, trace: ExecutionTrace) -> None:
    """Write the file of `trace`, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        beside.write_text(
            json.dumps(trace.as_dict(), indent=2, ensure_ascii=False, allow_nan=False),
            encoding="utf-8",
        )
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_trace(path: Path) -> ExecutionTrace:
    """The trace in a file; raises OSError, ValueError or TypeError for what is none."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("trace_id"), str):
        raise ValueError("it is no trace: it has no trace_id")
    return ExecutionTrace.from_dict(found)
