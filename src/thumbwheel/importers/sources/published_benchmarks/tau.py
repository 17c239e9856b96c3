"""Runs of tau-bench agents: {task_id, trial, reward, info, traj}. The whole conversation is one
trace, judged by the logged reward.

Every message of the assistant is an llm step whose input is what arrived since the one before;
every tool call is a tool step (`think` is reasoning). The task is the case: the policy and what the
user wants, with the expected actions as reference; its checker is `outcome`, because only the
benchmark's own database can judge a fresh run. All trials of a task have its case and its group.

A run may end with a call that hands the customer over: then the call is its answer. A run that ends
with any other call was cut off by the limit on steps, so nobody judged that call.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import clip, name_of, object_at, objects_at, unpacked
from thumbwheel.importers.messages import chat
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    StepRecord,
    TraceRecord,
    Unreadable,
)

JUDGE = Rater(id="tau-bench", kind="checker")
ENDING_CALLS = ("transfer_to_human_agents",)
"""Tools whose call ends a run."""
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
    """Return whether the row is a task with its trajectory and reward."""
    return {"task_id", "reward", "traj"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the case of the task, the trace of the run, and its reward. Raises Unreadable."""
    task_id, trial = name_of(row.get("task_id")), name_of(row.get("trial"))
    messages = chat(objects_at(row, "traj"))
    if task_id is None:
        raise Unreadable("it has no task_id")
    roles = [message["role"] for message in messages]
    start = roles.index("assistant") if "assistant" in roles else 0
    if not start:
        raise Unreadable("its traj has no message before the first of the assistant")

    task = object_at(object_at(row, "info"), "task")
    case = _case(messages[0], task, task_id)
    fields = {
        "case": case.external_id,
        "subject": name_of(task.get("user_id")),
        "input": messages[:start],
        "output": _answer(messages),
        "steps": _steps(messages[start:]),
        "metadata": {"task": task_id, "trial": trial},
    }
    trace = TraceRecord.model_validate(fields)
    outcome = {
        "kind": "outcome",
        "name": "reward",
        "value": row.get("reward"),
        "targets": [trace.as_target()],
        "rater": JUDGE,
    }
    return [case, trace, FeedbackRecord.model_validate(outcome)]


def _answer(messages: list[dict[str, Any]]) -> str | None:
    """Return the text of the answer; None where the run ends with a call that is its answer."""
    replies = [message for message in messages if message["role"] == "assistant"]
    calls = _calls(replies[-1])
    if any(object_at(call, "function").get("name") in ENDING_CALLS for call in calls):
        return None
    texts = [message["content"] for message in replies if message["content"]]
    return texts[-1] if texts else None


def _calls(message: Row) -> list[dict[str, Any]]:
    """Return the calls of tools in a message."""
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _case(first: Row, task: Row, task_id: str) -> CaseRecord:
    """Return the case of a task. If the first message is the policy, it is part of the prompt."""
    instruction = task.get("instruction")
    if not isinstance(instruction, str):
        raise Unreadable(f"info.task.instruction {clip(instruction)} is no text")
    prompt: list[Row] = [{"role": "user", "content": instruction}]
    if first["role"] == "system":
        prompt.insert(0, first)
    reference = {"actions": task.get("actions") or [], "outputs": task.get("outputs") or []}
    return CaseRecord.model_validate(
        {"input": prompt, "reference": reference, "checker": "outcome", "group": f"task {task_id}"}
    )


def _steps(messages: list[dict[str, Any]]) -> list[StepRecord]:
    steps: list[StepRecord] = []
    since: list[dict[str, Any]] = []  # messages after the last one of the assistant
    functions: dict[str, Any] = {}
    for message in messages:
        if message["role"] != "assistant":
            since.append(message)
            if message["role"] == "tool":
                function = functions.get(str(message.get("tool_call_id")), {})
                steps.append(_tool(message, function))
            continue
        output = message["content"]
        calls = _calls(message)
        if calls:
            output = {"content": message["content"], "tool_calls": calls}
        for call in calls:
            functions[str(call.get("id"))] = object_at(call, "function")
        steps.append(StepRecord(input={"messages": since} if since else None, output=output))
        since = []
    return steps


def _tool(message: Row, function: Row) -> StepRecord:
    name = message.get("name") or function.get("name")
    text = message["content"]
    failed = isinstance(text, str) and text.startswith("Error")
    return StepRecord.model_validate(
        {
            "kind": "reasoning" if name == "think" else "tool",
            "name": name,
            "input": unpacked(function.get("arguments")),
            "output": text,
            "status": "error" if failed else "ok",
        }
    )


SOURCE = JsonLines(parse, claims, EXAMPLE, reason="a task with its trajectory and reward")
