"""The jobs `reward run` and `reward pending`."""

from __future__ import annotations

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards.judge_traces import judge_pending, judge_traces
from thumbwheel.rewards.types import JudgeReport, PendingReport


class RewardRunSpec(Config):
    """Which answers to judge."""

    agent: str
    """The agent whose answers are judged."""
    component: tuple[str, ...] = ()
    """Only these components of the reward."""
    as_of: str | None = None
    """With the traces and the feedback of this time."""
    retry: bool = False
    """Judge again what failed."""
    dry_run: bool = False
    """Count what would be judged; judge and store nothing."""


def run_rewards(ws: Workspace, spec: RewardRunSpec) -> JudgeReport:
    """Judge everything that the ledger has not judged, and report the counts."""
    return judge_traces(ws, spec.agent, spec.component, spec.as_of, spec.retry, spec.dry_run)


class RewardPendingSpec(Config):
    """Whose answers to look at again."""

    agent: str
    """The agent whose answers are judged."""
    dry_run: bool = False
    """Count what would be judged; judge and store nothing."""


def run_pending(ws: Workspace, spec: RewardPendingSpec) -> PendingReport:
    """Judge again what could not be judged before, and report the scores still missing."""
    return judge_pending(ws, spec.agent, spec.dry_run)
