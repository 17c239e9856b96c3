"""Runs of tau-bench agents: {task_id, trial, reward, info, traj}. The whole conversation is one
trace, judged by the logged reward.

Every message of the assistant is an llm step whose input is what arrived since the one before;
every tool call is a tool step (`think` is reasoning). The task is the case: the policy and what the
user wants, with the expected actions as reference; its checker is `outcome`, because only the
benchmark's own database can judge a fresh run. All trials of a task have its case and its group.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.fields import chat, clip, name_of, object_at, objects_at, unpacked
from thumbwheel.capture.source import JsonLines, Row
from thumbwheel.capture.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    StepRecord,
    TraceRecord,
    Unreadable,
)

JUDGE = Rater(id="tau-bench", kind="checker")
EXAMPLE = (
    '{"task_id": 3, "trial": 0, "reward": 1.0, "info": {"task": {"user_id": "u1", "instruction": '
    '"Cancel reservation R1.",'
    ' "actions": [{"name": "cancel", "kwargs": {"id": "R1"}}], "outputs": []}}, "traj": [{"role": '
    '"system", "content": "Policy."},'
    ' {"role": "user", "content": "Cancel R1, please."}, {"role": "assistant", "content": null, '
    '"tool_calls": [{"id": "c1", "type":'
    ' "function", "function": {"name": "cancel", "arguments": "{\\"id\\": \\"R1\\"}"}}]}, '
    '{"role": "tool", "tool_call_id": "c1",'
    ' "name": "cancel", "content": "done"}, {"role": "assistant", "content": "It is cancelled."}]}'
)


def claims(row: Row) -> bool:
    """A task with its trajectory and reward."""
    return {"task_id", "reward", "traj"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The case of the task, the run, and its reward."""
    task_id, trial = name_of(row.get("task_id")), name_of(row.get("trial"))
    messages = chat(objects_at(row, "traj"))
    start = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), 0)
    if task_id is None or not start:
        raise Unreadable(
            "it has no task_id"
            if task_id is None
            else "its traj has no message before the first of the assistant"
        )
    case = _case(messages[0], object_at(object_at(row, "info"), "task"), task_id)
    answers = [one["content"] for one in messages if one["role"] == "assistant" and one["content"]]
    fields = {
        "case": case.external_id,
        "subject": name_of(object_at(object_at(row, "info"), "task").get("user_id")),
        "input": messages[:start],
        "output": answers[-1] if answers else None,
        "steps": _steps(messages[start:]),
        "metadata": {"task": task_id, "trial": trial},
    }
    trace = TraceRecord.model_validate(fields)
    target = trace.as_target()
    said = {
        "kind": "outcome",
        "name": "reward",
        "value": row.get("reward"),
        "targets": [target],
        "rater": JUDGE,
    }
    return [case, trace, FeedbackRecord.model_validate(said)]


def _case(policy: Row, task: Row, task_id: str) -> CaseRecord:
    instruction = task.get("instruction")
    if not isinstance(instruction, str):
        raise Unreadable(f"info.task.instruction {clip(instruction)} is no text")
    asked = [
        *([policy] if policy["role"] == "system" else []),
        {"role": "user", "content": instruction},
    ]
    reference = {"actions": task.get("actions") or [], "outputs": task.get("outputs") or []}
    return CaseRecord.model_validate(
        {"input": asked, "reference": reference, "checker": "outcome", "group": f"task {task_id}"}
    )


def _steps(messages: list[dict[str, Any]]) -> list[StepRecord]:
    found: list[StepRecord] = []
    since: list[dict[str, Any]] = []
    asked: dict[str, Any] = {}
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls")
            called = (
                [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
            )
            asked |= {str(one.get("id")): object_at(one, "function") for one in called}
            output = (
                {"content": message["content"], "tool_calls": called}
                if called
                else message["content"]
            )
            found.append(StepRecord(input={"messages": since} if since else None, output=output))
            since = []
            continue
        since.append(message)
        if message["role"] == "tool":
            found.append(_tool(message, asked.get(str(message.get("tool_call_id")), {})))
    return found


def _tool(message: Row, call: Row) -> StepRecord:
    name = message.get("name") or call.get("name")
    text = message["content"]
    failed = isinstance(text, str) and text.startswith("Error")
    return StepRecord.model_validate(
        {
            "kind": "reasoning" if name == "think" else "tool",
            "name": name,
            "input": unpacked(call.get("arguments")),
            "output": text,
            "status": "error" if failed else "ok",
        }
    )


SOURCE = JsonLines(parse, claims, EXAMPLE)
