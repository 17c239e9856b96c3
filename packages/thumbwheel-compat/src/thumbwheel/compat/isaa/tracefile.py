"""The form of a recorded run: `ExecutionTrace` with its tool calls and reasoning steps, its JSON
file, and its line of our own format.

A file has exactly the keys of `ExecutionTrace`, and `agent`, `parent_trace_id` and `user_id` where
there are such. Numbers that nobody knows are null, never 0. Reading is tolerant: unknown keys are
kept in `extra`, missing ones get their default. Not here: when a file is written (`collector`),
what else there is in somebody's folder (an import source).
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.sdk.plain import plain, text_of

RESULT, CONTENT, TASK = 2000, 1000, 500
"""Characters that are kept of a tool's result, a reasoning step, a task's texts."""
LONGEST_NAME = 512
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
    false (bad) or null (nobody judged). Without a `trace_id`, it is 12 hex digits of what was asked
    and answered, where and when."""

    trace_id: str = ""
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

    def __post_init__(self) -> None:
        if self.trace_id:
            return
        self.timestamp = self.timestamp or datetime.now(UTC).isoformat()
        content = [self.session_id, self.timestamp, self.user_query, self.final_response]
        self.trace_id = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    @property
    def status(self) -> str:
        """ok, error or cancelled."""
        failures = [FAILURES[task["type"]] for task in self.tasks_failed if _is_failure(task)]
        return failures[0] if failures else "ok"

    def to_dict(self) -> dict[str, Any]:
        """Return the object of the file, JSON values only."""
        values = asdict(self)
        extra = values.pop("extra")
        return dict(plain(values | extra))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionTrace:
        """Read the trace from an object of a file. Raises ValueError or TypeError if it is none."""
        names = {field.name for field in fields(cls)} - {"extra"}
        values = {key: value for key, value in data.items() if key in names and value is not None}
        values["tool_calls"] = [_part(ToolCallTrace, part) for part in values.get("tool_calls", [])]
        values["reasoning_steps"] = [
            _part(ReasoningStep, part) for part in values.get("reasoning_steps", [])
        ]
        if not values.get("trace_id"):
            raise TypeError("it has no trace_id")
        for key in ("tasks_created", "tasks_completed", "tasks_failed"):
            if not all(isinstance(task, dict) for task in values.get(key, [])):
                raise TypeError(f"{key} is no list of objects")
        return cls(**values, extra={key: value for key, value in data.items() if key not in names})


def _part(kind: type[Any], row: Any) -> Any:
    if not isinstance(row, dict):
        raise TypeError(f"{row!r} is no {kind.__name__}")
    names = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in row.items() if key in names})


def _is_failure(task: Mapping[str, Any]) -> bool:
    """Return whether the entry of a failed task stands for the whole run."""
    return task.get("type") in FAILURES


def clip(value: Any, most: int) -> str:
    """Return `value` as text of at most `most` characters; empty for None."""
    return "" if value is None or value == "" else str(plain(text_of(value)))[:most]


def line_of(trace: ExecutionTrace) -> dict[str, Any]:
    """Return the fields of a trace line for `trace`: its steps are reasoning, then tasks and tools
    by time, and the model's answer last."""
    timed = [(call.timestamp, _tool(call)) for call in trace.tool_calls]
    for status in ("created", "completed", "failed"):
        tasks = [task for task in getattr(trace, f"tasks_{status}") if not _is_failure(task)]
        timed += [(str(task.get("timestamp") or ""), _task(task, status)) for task in tasks]
    timed.sort(key=lambda pair: pair[0])
    tokens = {"prompt": trace.total_tokens_in, "completion": trace.total_tokens_out}
    answer = {
        "kind": "llm",
        "status": trace.status,
        "tokens": tokens if None not in tokens.values() else None,
    }
    steps = [*map(_reasoning, trace.reasoning_steps), *(step for _, step in timed), answer]

    numbers = ("total_cost", "execution_duration_ms", "llm_calls_count")
    metadata = {key: getattr(trace, key) for key in numbers if getattr(trace, key) is not None}
    errors = [str(task.get("error", "")) for task in trace.tasks_failed if _is_failure(task)]
    if errors:
        metadata["error"] = errors[0]
    line = {
        "id": trace.trace_id,
        "session": trace.session_id or None,
        "subject": user_of(trace.extra, trace.extra.get("metadata")),
        "parent": trace.extra.get("parent_trace_id"),
        "input": trace.user_query,
        "output": trace.final_response or None,
        "status": trace.status,
        "occurred_at": trace.timestamp or None,
        "steps": [_without_empty(step) for step in steps],
        "metadata": metadata,
    }
    return dict(plain({key: value for key, value in line.items() if value not in (None, {})}))


def user_of(*holders: Any) -> str | None:
    """Return the `user_id` of the first of these objects that has one: the person the data is
    about. None if none has one."""
    for holder in holders:
        user = holder.get("user_id") if isinstance(holder, Mapping) else None
        if isinstance(user, str | int) and not isinstance(user, bool) and str(user).strip():
            return str(user)[:LONGEST_NAME]
    return None


def _without_empty(step: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if value not in (None, "")}


def _tool(call: ToolCallTrace) -> dict[str, Any]:
    return {
        "kind": "tool",
        "name": call.tool_name[:LONGEST_NAME],
        "input": call.arguments,
        "output": call.error or call.result,
        "status": "ok" if call.success else "error",
    }


def _task(task: Mapping[str, Any], status: str) -> dict[str, Any]:
    output = task.get("error") if status == "failed" else task.get("result")
    about = {key: task[key] for key in ("task_id", "description") if task.get(key)}
    return {
        "kind": "task",
        "name": str(task.get("type") or "task")[:LONGEST_NAME],
        "input": about,
        "output": output,
        "status": status,
    }


def _reasoning(step: ReasoningStep) -> dict[str, Any]:
    about = {"confidence": step.confidence, "insights": step.insights, "issues": step.issues}
    details = {key: value for key, value in about.items() if value not in (None, [])}
    return {
        "kind": "reasoning",
        "name": step.step_type[:LONGEST_NAME],
        "input": details or None,
        "output": step.content,
    }


def write_trace(path: Path, trace: ExecutionTrace) -> None:
    """Write the file of `trace`, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(trace.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_trace(path: Path) -> ExecutionTrace:
    """Read the trace in a file. Raises OSError, or ValueError or TypeError if it is no trace."""
    row = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(row, dict) or not isinstance(row.get("trace_id"), str):
        raise ValueError("it is no trace: it has no trace_id")
    return ExecutionTrace.from_dict(row)
