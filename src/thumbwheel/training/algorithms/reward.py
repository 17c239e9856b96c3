"""Reward models: one number for an answer, learned from pairs (Bradley-Terry), from scores
(regression) or from labels (classification).

The base decides the kind: a decoder judges at the last token of the answer, an encoder (BERT,
DeBERTa, MiniLM) by its own head. The result is no version of the agent's model but a reward model:
rm1, rm2, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.core.errors import DataError
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    DropRow,
    LossOut,
    Metrics,
    Row,
    Scored,
    SplitRows,
    Totals,
    fitted,
    mean,
)
from thumbwheel.training.types import Metric, TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder

SHAPES = {"bradley_terry": "pairs", "regression": "scored", "classification": "labels"}
BINS = 10
"""Of the calibration error."""
TAILS = (0.01, 0.99)
"""Quantiles of the training values that stand at -1 and 1, so that single outliers do not squeeze
the rest."""


class RewardMethodConfig(TrainConfig):
    """Settings of reward."""

    num_train_epochs: float = Field(default=12.0, gt=0)
    """Passes over the training rows."""
    load_best_model_at_end: bool = True
    """Keep the checkpoint that metric_for_best_model calls best: over so many epochs a reward model
    learns its rows by heart."""
    metric_for_best_model: Metric = "accuracy"
    """The dev metric that decides which checkpoint is best (regression: loss). Where labels are
    noisy, the loss is at its best long before the model ranks best."""
    loss_type: Literal["bradley_terry", "regression", "classification"] = "bradley_terry"
    """bradley_terry learns from pairs which answer is better; regression from ratings and scores
    how good an answer is; classification from labels whether it is good."""
    margin: float = Field(default=0.0, ge=0)
    """How much better the chosen answer has to score (bradley_terry)."""
    center_rewards_coefficient: float = Field(default=0.0, ge=0)
    """Pulls the sum of both scores of a pair towards zero, which pairs alone leave open; 0.01 is
    usual (Eisenstein et al. 2023)."""
    scale: tuple[float, float] | None = None
    """Raw values that stand at -1 and 1 (regression); unset, the 1 % and 99 % quantiles of the
    training rows."""


class RewardMethod(Algorithm[RewardMethodConfig]):
    """-log sigmoid(chosen - rejected - margin), squared error on -1..1, or binary cross-entropy;
    weighted mean over the rows."""

    name: ClassVar[str] = "reward"
    title: ClassVar[str] = "Reward model"
    needs: ClassVar[str] = "pairs"
    also_learns_from: ClassVar[tuple[str, ...]] = ("scored",)
    rate: ClassVar[float] = 1e-4
    produces_reward_model: ClassVar[bool] = True
    reference: ClassVar[bool] = False
    dev_reference: ClassVar[bool] = False
    Config: ClassVar[type[TrainConfig]] = RewardMethodConfig

    @classmethod
    def shape(cls, config: RewardMethodConfig) -> str:
        """Return the dataset shape of the loss: pairs, scored or labels."""
        return SHAPES[config.loss_type]

    @classmethod
    def resolve_config(cls, config: RewardMethodConfig, rows: SplitRows) -> RewardMethodConfig:
        """Return `config` with the scale taken from the training rows. Raises DataError if they
        hold only one value or one class."""
        if config.loss_type == "classification" and len({bool(row["label"]) for row in rows}) < 2:
            raise DataError(
                f"{len(rows)} labelled training rows",
                "all have the same label",
                "Collect the other kind too",
            )
        if config.loss_type != "regression":
            return config
        low, high = config.scale or spread([float(row["value"]) for row in rows])
        if low >= high:
            raise DataError(
                f"{len(rows)} scored training rows",
                f"they are all between {low:g} and {high:g}",
                "Collect different scores",
            )
        resolved: dict[str, Any] = {"scale": (low, high)}
        if "metric_for_best_model" not in config.model_fields_set:
            resolved["metric_for_best_model"] = "loss"
        return config.model_copy(update=resolved)

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return the chosen, then the rejected answer, or one answer whose role is the number to
        learn. Raises DropRow if chosen equals rejected."""
        from thumbwheel.engine.prompt import TargetText

        if self.config.loss_type == "bradley_terry":
            if row["chosen"] == row["rejected"]:
                raise DropRow("chosen equals rejected")
            roles = ["chosen", "rejected"]
            answers = [TargetText(row[side], row.get(f"{side}_finish")) for side in roles]
        else:
            roles = [str(self._target(row))]
            answers = [TargetText(row["completion"], row.get("finish_reason"))]
        token_rows = fitted(row, answers, builder, self.config.max_length, notes)
        branches = tuple(
            Branch(tokens.completion_ids, role=role)
            for role, tokens in zip(roles, token_rows, strict=True)
        )
        return Example(token_rows[0].prompt_ids, branches, str(row["group"]), float(row["weight"]))

    def _target(self, row: Row) -> float:
        from thumbwheel.engine.reward_model import RewardScale

        if self.config.loss_type == "classification":
            return float(bool(row["label"]))
        assert self.config.scale is not None  # noqa: S101 - resolved before any row is read
        return RewardScale(*self.config.scale).normal(float(row["value"]))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        scores, weights = scored.last, scored.weights()
        if self.config.loss_type == "bradley_terry":
            return self._pair_loss(scores.view(-1, 2), weights[::2], totals)
        goals = scores.new_tensor([float(branch.role) for branch in scored.batch.branches])
        if self.config.loss_type == "regression":
            return self._regression_loss(scores, goals, weights, totals)
        return self._classification_loss(scores, goals, weights, totals)

    def _pair_loss(self, scores: torch.Tensor, weights: torch.Tensor, totals: Totals) -> LossOut:
        """Return -log sigmoid(chosen - rejected - margin) for scores [pairs, (chosen, rejected)],
        weighted, with its metrics."""
        import torch
        from torch.nn.functional import logsigmoid

        chosen, rejected = scores.unbind(1)
        margins = chosen - rejected
        losses = -logsigmoid(margins - self.config.margin)
        if self.config.center_rewards_coefficient:
            losses = losses + self.config.center_rewards_coefficient * (chosen + rejected) ** 2
        margins = margins.detach()
        correct = (margins > 0).to(margins)
        metrics: Metrics = {
            "accuracy": (correct, torch.ones_like(correct)),
            "margin": mean(margins),
            "mean_reward": mean(scores.flatten()),
        }
        metrics |= calibration(margins.abs().sigmoid(), correct, weights)
        return LossOut(weights * losses / totals.weight, metrics)

    def _regression_loss(
        self, scores: torch.Tensor, goals: torch.Tensor, weights: torch.Tensor, totals: Totals
    ) -> LossOut:
        """Return (score - goal)^2 on the scale -1..1, weighted, with metrics in raw units."""
        assert self.config.scale is not None  # noqa: S101 - resolved before any row is read
        low, high = self.config.scale
        errors = scores - goals
        raw_errors = errors.detach() * (high - low) / 2
        metrics: Metrics = {
            "mse": mean(raw_errors**2),
            "mae": (raw_errors.abs(), raw_errors.new_ones(raw_errors.shape)),
            "mean_reward": mean(scores),
        }
        return LossOut(weights * errors**2 / totals.weight, metrics)

    def _classification_loss(
        self, scores: torch.Tensor, goals: torch.Tensor, weights: torch.Tensor, totals: Totals
    ) -> LossOut:
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        losses = binary_cross_entropy_with_logits(scores, goals, reduction="none")
        logits = scores.detach()
        correct = ((logits > 0) == (goals > 0.5)).to(scores)
        metrics: Metrics = {
            "accuracy": (correct, torch.ones_like(logits)),
            "mean_reward": mean(scores),
        }
        metrics |= calibration(logits.sigmoid(), goals, weights)
        return LossOut(weights * losses / totals.weight, metrics)

    def derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """Replace the calibration bins by the expected calibration error `ece`."""
        bins = [name for name in metrics if name.startswith("bin/")]
        if not bins:
            return metrics
        metrics["ece"] = sum(abs(metrics.pop(name)) for name in bins)
        return metrics


def calibration(chances: torch.Tensor, outcomes: torch.Tensor, weights: torch.Tensor) -> Metrics:
    """Return, for each of the equal bins of `chances`, the weighted gap between chances and
    outcomes as a share of all weight; the absolute gaps sum to the ECE."""
    bin_of = (chances * BINS).long().clamp(max=BINS - 1)
    gaps = weights.new_zeros(BINS).index_add(0, bin_of, weights * (chances - outcomes))
    total = float(weights.sum())
    return {f"bin/{number}": (gap, total) for number, gap in enumerate(gaps)}


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the quantiles TAILS of `values`, or minimum and maximum if the quantiles coincide."""
    import numpy as np

    low, high = np.quantile(np.asarray(values, dtype=float), TAILS)
    return (float(low), float(high)) if low < high else (min(values), max(values))
