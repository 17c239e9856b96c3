"""`task_completion`: the part of the tasks of a run that were completed, less something for those
that failed.

A task is known by its id (`task_id` or `id` in the step's input or output); its last status counts,
so one that is reported twice is one task, and the score cannot pass 1. A task without id stands for
itself. A run without tasks has no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status, Step

COMPLETED = frozenset({"ok", "completed", "complete", "success", "succeeded", "done", "finished"})
FAILED = frozenset({"failed", "failure", "error", "cancelled", "canceled", "timeout"})


class TaskCompletionConfig(Config):
    """Settings of `task_completion`."""

    failed_penalty: float = Field(0.2, ge=0, le=1)
    """What a failed task takes away, on top of not being completed, as a part of one task."""


class TaskCompletion(RewardFunction[TaskCompletionConfig]):
    Config = TaskCompletionConfig
    case_settings = frozenset({"failed_penalty"})
    reads = frozenset({"steps"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """The tasks."""
        return {"steps": tuple(step for step in case.steps if step.kind == "task")}

    def judge(self, case: Case) -> Score:
        """completed / tasks - penalty * failed / tasks, at least 0; evidence: the counts and the
        ids of what is not completed."""
        steps = [step for step in case.steps if step.kind == "task"]
        if not steps:
            return Score.none(Status.NOT_APPLICABLE, "the run has no task")
        states = {key_of(step, index): step.status.casefold() for index, step in enumerate(steps)}
        completed = [key for key, status in states.items() if status in COMPLETED]
        failed = [key for key, status in states.items() if status in FAILED]
        evidence = {
            "tasks": len(states),
            "completed": len(completed),
            "failed": len(failed),
            "ids_failed": [str(key) for key in failed[:20]],
        }
        value = (len(completed) - self.config.failed_penalty * len(failed)) / len(states)
        return Score(max(0.0, value), evidence=evidence)


def key_of(step: Step, index: int) -> str | int:
    """What names the task of a step; its place where nothing does."""
    for data in (step.input, step.output):
        if isinstance(data, Mapping):
            for key in ("task_id", "id"):
                if isinstance(data.get(key), str | int) and data[key] != "":
                    return str(data[key])
    return index
