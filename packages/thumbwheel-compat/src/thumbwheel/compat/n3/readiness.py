"""Whether the scores of an agent can be trained on: counted once, for the answer to a client and
for the training itself.

Rows go to training first. Below `SMALL` rows nothing is held out: a tenth of them would neither
stop a training nor judge it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thumbwheel.compat.training_rows import everything_trains
from thumbwheel.core import log
from thumbwheel.core.errors import NotFound
from thumbwheel.datasets.dataplan import plural
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.data_plan import data_plan

SMALL = 50
"""Rows from which on some are held out."""
FEWEST_SCORES, FEWEST_PROMPTS = 10, 2
"""Of a reward model, and of PPO."""


@dataclass(frozen=True)
class Readiness:
    """Scores in force, the scored answers and the different prompts among them that can be trained
    on, and why others cannot."""

    scores: int
    rows: int
    prompts: int
    different_scores: int
    drops: Mapping[str, int]

    def shortage(self) -> str | None:
        """Say what is missing; None where nothing is."""
        if self.scores < FEWEST_SCORES:
            return (
                f"Insufficient feedback: {self.scores} samples (minimum {FEWEST_SCORES} required)"
            )
        if self.rows < FEWEST_SCORES:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in self.drops.items())
            return (
                f"Insufficient feedback: {self.rows} of {self.scores} samples can be trained on "
                f"(minimum {FEWEST_SCORES} required, {FEWEST_SCORES - self.rows} are missing; left "
                f"out: {reasons or 'scores of the same answer'})"
            )
        if self.different_scores < 2:
            return (
                f"Insufficient feedback: score is the same in all {self.scores} samples; a reward "
                "model needs different ones"
            )
        if self.prompts < FEWEST_PROMPTS:
            return (
                f"Insufficient feedback: {plural(self.prompts, 'different prompt')} (minimum "
                f"{FEWEST_PROMPTS} required for PPO, {FEWEST_PROMPTS - self.prompts} missing)"
            )
        return None


def readiness(ws: Workspace, agent: str, scores: list[float]) -> Readiness:
    """Count what the scores of an agent give; nothing of an agent that does not exist."""
    try:
        plan = data_plan(ws, agent, everything_trains(ws))
    except NotFound:
        return Readiness(0, 0, 0, 0, {})
    scored = plan.shapes["scored"]
    return Readiness(
        scores=len(scores),
        rows=scored.rows,
        prompts=plan.shapes["prompts"].rows,
        different_scores=len(set(scores)),
        drops=scored.drops,
    )


def split_rules(ws: Workspace, rows: int) -> DatasetConfig:
    """Return the rules by which this many rows are split; few rows are all trained on."""
    rules = ws.settings(DatasetConfig, "dataset")
    if rows >= SMALL:
        return rules
    log.say(f"all {rows} rows are trained on: from {SMALL} on some are held out")
    return everything_trains(ws)
