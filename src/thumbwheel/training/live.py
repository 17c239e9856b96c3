"""Where a run is now: its step, its work in words, its speed and the resources it uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.training.activity import activity
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import run_dir
from thumbwheel.training.types import EvaluationPlan, Run
from thumbwheel.training.usage import Usage, usage_of

RECENT = 20
"""Steps whose speed counts as the speed now."""
STARTING = "starting the process of the run"


@dataclass(frozen=True)
class RunProgress:
    """Where a run is."""

    state: str
    """running, or how it ended"""
    step: int
    """Of the newest line of metrics"""
    steps: int | None
    """Those planned; null while it is being prepared"""
    activity: str | None
    """What it does before its next line of metrics, in words; null between two steps"""
    seconds_left: float | None
    """Of its steps, at the speed of the newest ones"""
    tokens_per_second: float | None
    """Of the newest training steps"""
    usage: Usage | None
    """What its process uses; null if it does not run here"""


def progress_of(ws: Workspace, run: Run) -> RunProgress:
    """Return where a run is."""
    folder = run_dir(ws, run)
    status = folder.status()
    steps = status.result.get("planned_steps") if status and status.result else None
    step = folder.last_step()
    if run.has_ended:
        return RunProgress(run.state, step, steps, None, None, None, None)
    current, usage = activity(folder), usage_of(folder)
    words = current.in_words() if current else None
    if words is None and not step:
        words = STARTING
    lines = _newest_lines(folder)
    seconds = [line["step_seconds"] for line in lines]
    left = None
    if steps and seconds:
        left = (steps - step) * sum(seconds) / len(seconds)
    return RunProgress(run.state, step, steps, words, left, tokens_per_second(lines), usage)


def evaluation_plan(ws: Workspace, run: Run) -> EvaluationPlan | None:
    """Return how much of a run its evaluations are; None before it is planned, and for a run from
    before there was a budget."""
    figures = run.metrics
    if not run.has_ended:
        status = run_dir(ws, run).status()
        figures = status.result if status else None
    plan = (figures or {}).get("evaluation")
    return EvaluationPlan(**plan) if plan else None


def tokens_per_second(lines: Sequence[dict[str, Any]]) -> float | None:
    """Return the speed from lines of training steps, None if they do not say it.

    >>> lines = [{"num_tokens": n, "step_seconds": 2.0} for n in (100.0, 300.0, 500.0)]
    >>> tokens_per_second(lines)
    100.0
    """
    counted = [line for line in lines if isinstance(line.get("num_tokens"), float | int)]
    if len(counted) < 2:
        return None
    seconds = sum(line["step_seconds"] for line in counted[1:])
    tokens = counted[-1]["num_tokens"] - counted[0]["num_tokens"]
    return float(tokens / seconds) if seconds > 0 else None


def _newest_lines(folder: RunDir) -> list[dict[str, Any]]:
    """Return the newest lines of training steps that say how long they took."""
    lines = [json.loads(text) for text in folder.newest_lines()]
    steps = [line for line in lines if isinstance(line.get("step_seconds"), float | int)]
    return steps[-RECENT:]
