"""Direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290) on pairs, with IPO (arXiv
2310.12036) and a likelihood anchor."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.datasets.learner import Enough
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    DropRow,
    LossOut,
    Metrics,
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


class DpoConfig(TrainConfig):
    """Settings of dpo."""

    metric_for_best_model: Metric = "rewards/margins"
    """The dev metric that decides which checkpoint is best; dev loss would stop at the first wobble
    of the likelihood anchor."""
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to the base."""
    loss_type: Literal["sigmoid", "sigmoid_norm", "ipo"] = "sigmoid"
    """sigmoid: DPO; sigmoid_norm: DPO on log-ratios a token, so that length earns nothing; ipo:
    squared distance to 1 / (2 beta)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs believed to be the wrong way round (both sigmoid losses)."""
    nll_weight: float = Field(default=1.0, ge=0)
    """Weight of the chosen answers' negative log-likelihood a token, which keeps them likely."""


class Dpo(Algorithm[DpoConfig]):
    """-log sigmoid(beta * (log-ratio of chosen - log-ratio of rejected)), mean over the pairs of
    the optimiser batch."""

    name: ClassVar[str] = "dpo"
    title: ClassVar[str] = "DPO"
    needs: ClassVar[str] = "pairs"
    enough: ClassVar[Enough | None] = Enough("pairs", minimum=50, ready=200)
    """At 80 % for training, fewer pairs leave less than 40 margins to learn from."""
    good_roles: ClassVar[frozenset[str]] = frozenset({"chosen"})
    rate: ClassVar[float] = 5e-5
    regularizer_setting: ClassVar[str | None] = "nll_weight"
    Config: ClassVar[type[TrainConfig]] = DpoConfig

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return the chosen, then the rejected answer as branches after one prompt. Raises DropRow
        if they are equal."""
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
        """Return the loss by pair and its metrics; branches alternate: chosen, rejected, chosen,
        ..."""
        policy, reference, count = scored.sums()
        log_ratios = (policy - reference).view(-1, 2)
        per_token = (policy - reference).div(count).view(-1, 2)
        weights = scored.weights()[::2]
        loss = weights * self._pair_loss(log_ratios, per_token) / totals.weight

        nll, metrics = self.anchor(scored, totals)
        if self.config.nll_weight:
            loss = loss + self.config.nll_weight * nll
        rewards = self.config.beta * log_ratios.detach()
        metrics |= self._metrics(policy.detach().view(-1, 2), rewards)
        return LossOut(loss, metrics)

    def _pair_loss(self, log_ratios: torch.Tensor, per_token: torch.Tensor) -> torch.Tensor:
        """Return the loss [pairs] of log-ratios [pairs, (chosen, rejected)] of whole answers and
        per token."""
        from torch.nn.functional import logsigmoid

        beta, smoothing = self.config.beta, self.config.label_smoothing
        if self.config.loss_type == "ipo":  # per token, as its authors confirmed to TRL
            chosen, rejected = per_token.unbind(1)
            return (chosen - rejected - 1 / (2 * beta)) ** 2
        ratios = log_ratios if self.config.loss_type == "sigmoid" else per_token
        chosen, rejected = ratios.unbind(1)
        logits = beta * (chosen - rejected)
        return -logsigmoid(logits) * (1 - smoothing) - logsigmoid(-logits) * smoothing

    def _metrics(self, policy: torch.Tensor, rewards: torch.Tensor) -> Metrics:
        """Return the metrics of pairs; `rewards/accuracies` counts strictly better rewards only, as
        TRL does, so equal rewards, as under the base, count as wrong."""
        import torch

        chosen, rejected = rewards.unbind(1)
        one_per_row = torch.ones_like(chosen)
        return {
            "rewards/chosen": mean(chosen),
            "rewards/rejected": mean(rejected),
            "rewards/margins": (chosen - rejected, one_per_row),
            "rewards/accuracies": ((chosen > rejected).to(rewards), one_per_row),
            "logps/chosen": mean(policy[:, 0]),
            "logps/rejected": mean(policy[:, 1]),
        }
