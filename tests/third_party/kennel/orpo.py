"""`orpo`: monolithic preference optimisation without a reference model (Hong et al. 2024, arXiv
2403.07691).

loss = -log p(chosen) per token + lambda * -log sigmoid(log odds(chosen) - log odds(rejected)),
where log odds = log p - log(1 - p) of the mean log-probability a token.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    DropRow,
    LossOut,
    Row,
    Scored,
    Totals,
    fitted,
    mean,
)
from thumbwheel.training.types import Metric, TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder


class OrpoConfig(TrainConfig):
    """Settings of orpo."""

    metric_for_best_model: Metric = "rewards/margins"
    """The dev metric that decides which checkpoint is best."""
    odds_weight: float = Field(0.1, ge=0)
    """Weight of the odds ratio beside the likelihood of the chosen answers (the paper's lambda)."""


class Orpo(Algorithm[OrpoConfig]):
    """The loss of the module's docstring, mean over the pairs of the optimiser batch."""

    name: ClassVar[str] = "orpo"
    title: ClassVar[str] = "ORPO"
    needs: ClassVar[str] = "pairs"
    good_roles: ClassVar[frozenset[str]] = frozenset({"chosen"})
    rate: ClassVar[float] = 5e-5
    reference: ClassVar[bool] = False
    dev_reference: ClassVar[bool] = False
    Config: ClassVar[type[TrainConfig]] = OrpoConfig

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Chosen, then rejected, after one prompt."""
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
        """Branches alternate: chosen, rejected, chosen, ..."""
        from torch.nn.functional import logsigmoid

        policy, _, count = scored.sums()
        per_token = (policy / count).view(-1, 2)
        odds = log_odds(per_token)
        ratio = odds[:, 0] - odds[:, 1]
        weights = scored.weights()[::2]
        odds_loss = -logsigmoid(ratio) * weights / totals.weight
        nll, metrics = self.anchor(scored, totals)

        chosen, rejected = per_token.detach().unbind(1)
        metrics |= {
            "rewards/chosen": mean(chosen),
            "rewards/rejected": mean(rejected),
            "rewards/margins": (chosen - rejected, chosen.new_ones(chosen.shape)),
        }
        return LossOut(nll + self.config.odds_weight * odds_loss, metrics)


def log_odds(logp: torch.Tensor) -> torch.Tensor:
    """log p - log(1 - p); p just below 1 keeps it finite."""
    import torch

    logp = logp.clamp(max=-1e-6)
    return logp - torch.log1p(-logp.exp())
