"""`task_completion`: the part of the tasks of a run that were completed, less something for those
that failed.

A task is known by its id (`task_id` or `id` in the step's input or output); its last status counts,
so one that is reported twice is one task, and the score cannot pass 1. Tasks without id are known
by their description, else by their name: the end of such a task is that of the oldest open one that
is called so. A run without tasks has no score.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Step

COMPLETED = frozenset({"ok", "completed", "complete", "success", "succeeded", "done", "finished"})
FAILED = frozenset({"failed", "failure", "error", "cancelled", "canceled", "timeout"})


class TaskCompletionConfig(Config):
    """Settings of `task_completion`."""

    failed_penalty: float = Field(default=0.2, ge=0, le=1)
    """What a failed task takes away, on top of not being completed, as a part of one task."""


class TaskCompletion(RewardFunction[TaskCompletionConfig]):
    Config = TaskCompletionConfig
    version = 2
    case_settings = frozenset({"failed_penalty"})
    reads = frozenset({"steps"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the steps that are tasks."""
        return {"steps": tuple(step for step in case.steps if step.kind == "task")}

    def judge(self, case: Case) -> Score:
        """Return completed / tasks - penalty * failed / tasks, at least 0; evidence: the counts and
        the ids of failed tasks."""
        steps = [step for step in case.steps if step.kind == "task"]
        if not steps:
            return Score.none(JudgementStatus.NOT_APPLICABLE, "the run has no task")
        states = states_of(steps)
        completed = [key for key, status in states.items() if status in COMPLETED]
        failed = [key for key, status in states.items() if status in FAILED]
        evidence = {
            "tasks": len(states),
            "completed": len(completed),
            "failed": len(failed),
            "ids_failed": failed[:20],
        }
        value = (len(completed) - self.config.failed_penalty * len(failed)) / len(states)
        return Score(max(0.0, value), evidence=evidence)


def states_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return the last status of each task."""
    states: dict[str, str] = {}
    waiting: dict[str, deque[str]] = defaultdict(deque)
    for index, step in enumerate(steps):
        status = step.status.casefold()
        key = _text_of(step, "task_id", "id")
        if key is None:
            name = _text_of(step, "description") or step.name or ""
            is_end = status in COMPLETED or status in FAILED
            if is_end and waiting[name]:
                key = waiting[name].popleft()
            else:
                key = f"{name} ({index})"
                if not is_end:
                    waiting[name].append(key)
        states[key] = status
    return states


def _text_of(step: Step, *keys: str) -> str | None:
    """Return the first of these values in the step's input or output as text, or None."""
    for data in (step.input, step.output):
        if isinstance(data, Mapping):
            for key in keys:
                if isinstance(data.get(key), str | int) and data[key] != "":
                    return str(data[key])
    return None
