"""SWE-agent: trajectories of a coding agent (`*.traj`).

The task is what was asked, the submitted patch the answer, each action a call of a model and of the
shell. The file does not say whether the patch was right: import that as outcomes, with the instance
as the trace's id.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import content_text, name_of, object_at, objects_at, unpacked
from thumbwheel.importers.messages import chat
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, TraceRecord, Unreadable

SUBMITTED = "submitted"
EXAMPLE = (
    '{"environment": "swe_main", "trajectory": [{"action": "ls\\n", "observation": "main.py\\n", '
    '"response": "Let us look.\\nls", "state": "{}", "thought": "Let us look."}], "history": '
    '[{"role": "system", "content": "You are a programmer."}, {"role": "user", "content": "Fix it."'
    '}, {"role": "assistant", "content": "Let us look.\\nls", "action": "ls\\n"}], "info": '
    '{"exit_status": "submitted", "submission": "diff --git a/main.py b/main.py"}}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a trajectory and its history."""
    return {"trajectory", "history"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the run as a trace. Raises Unreadable if no task precedes the first action."""
    info = object_at(row, "info")
    prompt = []
    for message in objects_at(row, "history"):
        if message.get("is_demo"):
            continue
        if message.get("role") == "assistant":
            break
        prompt.append(
            {"role": message.get("role"), "content": content_text(message.get("content"))}
        )
    if not prompt:
        raise Unreadable("its history holds no task before the first action")
    status = str(info.get("exit_status") or "unknown")
    settings = unpacked(row.get("replay_config"))
    settings = settings if isinstance(settings, dict) else {}
    fields = {
        "id": name_of(_instance(row, settings)),
        "input": chat(prompt),
        "output": info.get("submission") or None,
        "steps": _steps(row, _model(settings)) or [{}],
        "status": "ok" if status == SUBMITTED else status[:32],
        "metadata": {"environment": row.get("environment"), "exit_status": status},
    }
    return [TraceRecord.model_validate(fields)]


def _instance(row: Row, settings: Row) -> Any:
    """Return the id of the task if the file names it."""
    problem = settings.get("problem_statement")
    return row.get("instance_id") or (problem.get("id") if isinstance(problem, dict) else None)


def _model(settings: Row) -> str | None:
    agent = settings.get("agent")
    model = agent.get("model") if isinstance(agent, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) and name else None


def _steps(row: Row, model: str | None) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for turn in objects_at(row, "trajectory"):
        steps.append({"kind": "llm", "output": turn.get("response"), "model": model})
        if turn.get("action"):
            tool = {"name": "shell", "input": turn["action"], "output": turn.get("observation")}
            steps.append({"kind": "tool", **tool})
    return steps


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    about="trajectories of the coding agent SWE-agent",
    reason="a trajectory with its history",
)
"""The source."""
