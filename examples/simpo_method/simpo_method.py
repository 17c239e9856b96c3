"""`simpo`: prefer the better of two answers by mean log-probability, without a reference model.

SimPO (arXiv 2405.14734): -log sigmoid(beta * (logp(chosen) - logp(rejected)) - gamma), where logp
is the mean over an answer's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import Algorithm, DropRow, LossOut, Scored, Totals, fitted, mean
from thumbwheel.training.types import Metric, TrainConfig

if TYPE_CHECKING:
    from collections import Counter

    from thumbwheel.engine.prompt import PromptBuilder


class SimpoConfig(TrainConfig):
    """Settings of simpo."""

    metric_for_best_model: Metric = "rewards/margins"
    """The dev metric that decides which checkpoint is best."""
    beta: float = Field(2.0, gt=0)
    """How strongly the difference of the mean log-probabilities counts."""
    gamma: float = Field(1.0, ge=0)
    """The margin that the better answer has to have."""


class Simpo(Algorithm[SimpoConfig]):
    """See the module. Each row is one prompt with two branches: chosen, then rejected."""

    name, title = "simpo", "SimPO"
    needs = "pairs"
    good_roles = frozenset({"chosen"})
    rate = 5e-5
    reference = dev_reference = False
    Config = SimpoConfig

    def example(
        self, row: Mapping[str, Any], builder: PromptBuilder, notes: Counter[str]
    ) -> Example:
        """Make token ids of a row; one whose answers are equal teaches nothing."""
        from thumbwheel.engine.prompt import TargetText

        if row["chosen"] == row["rejected"]:
            raise DropRow("chosen equals rejected")
        answers = [
            TargetText(row[side], row.get(f"{side}_finish")) for side in ("chosen", "rejected")
        ]
        chosen, rejected = fitted(row, answers, builder, self.config.max_length, notes)
        branches = (
            Branch(chosen.completion_ids, role="chosen"),
            Branch(rejected.completion_ids, role="rejected"),
        )
        return Example(chosen.prompt_ids, branches, str(row["group"]), float(row["weight"]))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """Return the loss of a micro-batch, as its part of the whole batch."""
        import torch
        from torch.nn.functional import logsigmoid

        log_probabilities, _, tokens = scored.sums()
        chosen, rejected = (log_probabilities / tokens).view(-1, 2).unbind(1)
        margin = self.config.beta * (chosen - rejected) - self.config.gamma
        weights = scored.weights()[::2]
        loss = -logsigmoid(margin) * weights / totals.weight

        metrics = {
            "rewards/chosen": mean(chosen.detach()),
            "rewards/rejected": mean(rejected.detach()),
            "rewards/margins": ((chosen - rejected).detach(), torch.ones_like(chosen)),
        }
        return LossOut(loss, metrics)
