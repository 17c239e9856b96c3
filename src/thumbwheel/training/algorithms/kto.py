"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv 2402.01306): single answers labelled
good or bad.

The baseline is an estimate of KL(policy || base) from mismatched pairs: each prompt with its
neighbour's answer, detached and clamped at 0. They are drawn from the optimiser batch when it is
planned, so rows may be shuffled and the token budget is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.core.errors import DataError
from thumbwheel.datasets.learner import Enough
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    LossOut,
    Metrics,
    Row,
    Score,
    Scored,
    SplitRows,
    Totals,
    fitted,
    with_margin,
)
from thumbwheel.training.types import Metric, TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder

GOOD, BAD = "desirable", "undesirable"


class KtoConfig(TrainConfig):
    """Settings of kto."""

    metric_for_best_model: Metric = "rewards/margins"
    """The dev metric that decides which checkpoint is best; dev loss would stop at the first wobble
    of the likelihood anchor."""
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to the base."""
    desirable_weight: float = Field(default=1.0, gt=0)
    """Factor on good answers; the dataset has balanced the classes in the rows' weights already."""
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Factor on bad answers; the dataset has balanced the classes in the rows' weights already."""
    kl_scope: Literal["optimizer", "micro"] = "optimizer"
    """Rows that share one KL baseline: the whole optimiser batch, or blocks of kl_rows, as TRL
    does."""
    kl_rows: int = Field(default=8, ge=2)
    """Rows of such a block under kl_scope micro."""
    nll_weight: float = Field(default=1.0, ge=0)
    """Weight of the good answers' negative log-likelihood a token, which keeps them likely; without
    it kto can unlearn the format."""


class Kto(Algorithm[KtoConfig]):
    """1 - sigmoid(beta (r - kl)) for good and 1 - sigmoid(beta (kl - r)) for bad answers, r their
    log-ratio; weighted mean over rows."""

    name: ClassVar[str] = "kto"
    title: ClassVar[str] = "KTO"
    needs: ClassVar[str] = "labels"
    enough: ClassVar[Enough | None] = Enough("labels", minimum=100, ready=200, each_label=30)
    """A lone label says less than a pair, so it takes about twice as many; class weights cannot
    replace examples of the rarer class."""
    good_roles: ClassVar[frozenset[str]] = frozenset({GOOD})
    rate: ClassVar[float] = 5e-4
    fewest_steps: ClassVar[int] = 50
    pretrained_rate: ClassVar[float | None] = 1.5e-4
    regularizer_setting: ClassVar[str | None] = "nll_weight"
    Config: ClassVar[type[TrainConfig]] = KtoConfig

    @classmethod
    def resolve_config(cls, config: KtoConfig, rows: SplitRows) -> KtoConfig:
        """Return `config` unchanged. Raises DataError if all rows have the same label."""
        good = sum(bool(row["label"]) for row in rows)
        bad = len(rows) - good
        if good and bad:
            return config
        fix = "Collect the other kind too"
        if good:
            fix += ", or use: thumbwheel train sft"
        raise DataError(
            f"{len(rows)} labelled training rows",
            f"all of them are {'good' if good else 'bad'}; kto learns from the difference "
            "between good and bad answers",
            fix,
        )

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return one branch, whose role is the label."""
        from thumbwheel.engine.prompt import TargetText

        answer = TargetText(row["completion"], row.get("finish_reason"))
        (tokens,) = fitted(row, [answer], builder, self.config.max_length, notes)
        branch = Branch(tokens.completion_ids, role=GOOD if row["label"] else BAD)
        return Example(tokens.prompt_ids, (branch,), str(row["group"]), float(row["weight"]))

    def blocks(self, examples: Sequence[Example]) -> list[Sequence[Example]]:
        """Return the whole batch as one block, or blocks of `kl_rows`."""
        size = len(examples) if self.config.kl_scope == "optimizer" else self.config.kl_rows
        return [examples[start : start + size] for start in range(0, len(examples), max(size, 1))]

    def baseline(self, block: Sequence[Example], score: Score) -> torch.Tensor | None:
        """Return max(0, mean(log p - log p_base)) over each prompt with its neighbour's answer, a
        scalar in nats, or None for a single row, which has no neighbour."""
        if len(block) < 2:
            return None
        # each prompt with the answer of the row before it
        answers = [example.branches[0].ids for example in block]
        mismatched = [
            Example(example.prompt, (Branch(answer, role="kl"),), example.group)
            for example, answer in zip(block, answers[-1:] + answers[:-1], strict=True)
        ]
        policy, reference = score(mismatched)
        return (policy - reference).mean().clamp(min=0)

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """Return w (1 - sigmoid(beta (r - kl))) for a good answer, w (1 - sigmoid(beta (kl - r)))
        for a bad one, where r is its log-ratio, with metrics; one branch a row."""
        import torch

        config = self.config
        policy, reference, _ = scored.sums()
        log_ratios = policy - reference
        kl = log_ratios.new_zeros(()) if baseline is None else baseline.to(log_ratios)
        good = scored.having(GOOD)
        advantage = torch.where(good, log_ratios - kl, kl - log_ratios)
        class_weights = torch.where(good, config.desirable_weight, config.undesirable_weight)
        weights = scored.weights() * class_weights.to(log_ratios)
        losses = weights * (1 - torch.sigmoid(config.beta * advantage))
        loss = scored.by_row(losses) / totals.weight

        nll, metrics = self.anchor(scored, totals)
        if config.nll_weight:
            loss = loss + config.nll_weight * nll
        metrics |= self._metrics(scored, log_ratios.detach(), advantage.detach(), good, kl)
        return LossOut(loss, metrics)

    def derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add the margin between the two means; good and bad answers are not paired here."""
        return with_margin(metrics)

    def _metrics(
        self,
        scored: Scored,
        log_ratios: torch.Tensor,
        advantage: torch.Tensor,
        good: torch.Tensor,
        kl: torch.Tensor,
    ) -> Metrics:
        rewards = self.config.beta * log_ratios
        policy, _, _ = scored.sums()
        n_rows = len(log_ratios)
        return {
            "kl": (kl * n_rows, float(n_rows)),
            "rewards/chosen": scored.mean(rewards, good),
            "rewards/rejected": scored.mean(rewards, ~good),
            "rewards/accuracies": scored.mean((advantage > 0).to(rewards)),
            "logps/chosen": scored.mean(policy, good),
            "logps/rejected": scored.mean(policy, ~good),
        }
