"""The group-advantage loss over recorded answers: several to one prompt, each with what it turned
out to be worth. Nothing is sampled.

An advantage belongs to the recorded text that earned it. The clip keeps the policy near the model
that answered: its own log-probs where they were captured, else the base's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

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
    likelihood,
    mean,
    targets,
)
from thumbwheel.training.group import (
    KlEstimator,
    Level,
    Normaliser,
    advantages,
    clip_metrics,
    clipped,
    flat,
    kl,
    ratios,
)
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder, Target, TokenRow

GOOD, BAD = "better", "worse"


class GrpoOfflineConfig(TrainConfig):
    """Settings of grpo_offline."""

    early_stopping_patience: int | None = Field(4, ge=1)
    """Stop after so many evaluations, and so many tenths of the run, without a better evaluation;
    needs dev rows."""
    load_best_model_at_end: bool = True
    """Keep the checkpoint that metric_for_best_model calls best."""
    loss_type: Normaliser = "dapo"
    """What the loss is divided by: dapo tokens, grpo answers and each by its tokens, dr_grpo
    answers times max_length."""
    scale_rewards: Literal["group", "none"] = "group"
    """Standard deviation that advantages are divided by: that of the group, or none."""
    epsilon: float = Field(0.2, gt=0, lt=1)
    """How far the probability ratio to the model that answered may fall before it is clipped."""
    epsilon_high: float | None = Field(None, gt=0)
    """How far it may rise; unset, as far as it may fall."""
    importance_sampling_level: Level = "token"
    """Ratios a token, or one of the whole answer."""
    beta: float = Field(0.0, ge=0)
    """Weight of the KL to the base in the loss, besides the clip."""
    kl_estimator: KlEstimator = "k3"
    """How that KL is estimated."""


@dataclass(frozen=True, slots=True)
class Recorded(Branch):
    """A recorded answer with its advantage in its group, and the log-probs of its tokens where they
    were captured."""

    advantage: float = 0.0
    logps: tuple[float, ...] | None = None


class GrpoOffline(Algorithm[GrpoOfflineConfig]):
    """min(r A, clip(r) A) over the tokens of recorded answers, r the ratio to the model that gave
    them."""

    name: ClassVar[str] = "grpo_offline"
    needs: ClassVar[str] = "groups"
    good_roles: ClassVar[frozenset[str]] = frozenset({GOOD})
    rate: ClassVar[float] = 1e-4
    regularizer_setting: ClassVar[str | None] = "beta"
    Config: ClassVar[type[TrainConfig]] = GrpoOfflineConfig

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """A branch an answer; a group whose answers are all worth the same teaches nothing and is
        dropped."""
        from thumbwheel.engine.prompt import Target

        if flat(row["values"]):
            raise DropRow("all answers to the prompt are worth the same")
        captured = [None if ids is None else tuple(ids) for ids in row["token_ids"]]
        answers = [
            Target(*one)
            for one in zip(row["completions"], row["finish_reasons"], captured, strict=True)
        ]
        shared, made = self._fitted(row, answers, builder, notes)
        (earned,) = advantages([row["values"]], self.config.scale_rewards)
        found = []
        for one, ids, logps, advantage in zip(made, captured, row["logps"], earned, strict=True):
            known = logps is not None and one.completion_ids == ids and len(logps) == len(ids)
            notes["answers whose captured log-probs fit other tokens"] += (
                logps is not None and not known
            )
            value = advantage or 0.0
            own = one.prompt_ids[shared:]
            mask = (False,) * len(own) + (True,) * len(one.completion_ids) if own else None
            found.append(
                Recorded(
                    (*own, *one.completion_ids),
                    mask,
                    GOOD if value > 0 else BAD,
                    value,
                    tuple(logps) if known else None,
                )
            )
        return Example(
            made[0].prompt_ids[:shared], tuple(found), str(row["group"]), float(row["weight"])
        )

    def _fitted(
        self, row: Row, answers: Sequence[Target], builder: PromptBuilder, notes: Counter[str]
    ) -> tuple[int, Sequence[TokenRow]]:
        """How many tokens the prompts have in common, and the tokens of all; runs of a task go
        apart after their common beginning."""
        if not (prompts := row.get("prompts")):
            made = fitted(row, answers, builder, self.config.max_length, notes)
            return len(made[0].prompt_ids), made
        each = zip(prompts, answers, strict=True)
        made = tuple(
            fitted({**row, "prompt": own}, [one], builder, self.config.max_length, notes)[0]
            for own, one in each
        )
        alike = [
            len(set(tokens)) == 1 for tokens in zip(*(one.prompt_ids for one in made), strict=False)
        ]
        if not (shared := [*alike, False].index(False)):
            raise DropRow("the runs of the task begin with different tokens")
        return shared, made

    def totals(self, examples: Sequence[Example]) -> Totals:
        """Weighted answers, and their tokens."""
        answers = sum(one.weight * len(one.branches) for one in examples)
        tokens = sum(one.weight * targets(branch) for one in examples for branch in one.branches)
        return Totals(max(answers, 1e-12), max(float(tokens), 1e-12))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """This micro-batch's share."""
        config, batch, logp, reference = self.config, scored.batch, scored.logp, scored.reference
        assert reference is not None  # noqa: S101 - narrows the type
        high = config.epsilon_high or config.epsilon
        advantage = logp.new_tensor([branch.advantage for branch in _answers(batch.branches)])[
            batch.branch_of
        ]
        ratio = ratios(logp, _old(batch, reference), batch, config.importance_sampling_level)
        losses = clipped(ratio, advantage, config.epsilon, high)
        metrics = clip_metrics(ratio.detach(), advantage, config.epsilon, high) | self._likelihood(
            scored
        )
        if config.beta:
            distance = kl(config.kl_estimator, logp, reference, ratio)
            metrics["kl"] = mean(distance)
            losses = losses + config.beta * distance
        by_branch = batch.branch_sum(self._weights(scored, totals) * losses)
        return LossOut(scored.by_row(by_branch), metrics)

    def _weights(self, scored: Scored, totals: Totals) -> torch.Tensor:
        """[M] what every token counts."""
        weights, count = scored.weights(), scored.batch.branch_count()
        each = {
            "dapo": weights / totals.good_tokens,
            "grpo": weights / totals.weight / count,
            "dr_grpo": weights / totals.weight / self.config.max_length,
        }
        return each[self.config.loss_type][scored.batch.branch_of]

    def _likelihood(self, scored: Scored) -> Metrics:
        policy, reference, _ = scored.sums()
        good = scored.having(GOOD)
        gained = policy - reference
        rewards = {
            "rewards/chosen": scored.mean(gained, good),
            "rewards/rejected": scored.mean(gained, ~good),
        }
        return likelihood(scored, good.to(policy)) | rewards

    def derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """With how much more likely good answers have become than bad ones, in nats."""
        if "rewards/chosen" not in metrics or "rewards/rejected" not in metrics:
            return metrics
        return metrics | {
            "rewards/margins": metrics["rewards/chosen"] - metrics["rewards/rejected"]
        }


def _answers(branches: Sequence[Branch]) -> list[Recorded]:
    return [one for one in branches if isinstance(one, Recorded)]


def _old(batch: Any, reference: torch.Tensor) -> torch.Tensor:
    """[M] log-probs under the model that answered; the base's where they were not captured."""
    import torch

    parts = [
        reference[part] if one.logps is None else reference.new_tensor(one.logps)
        for one, part in zip(_answers(batch.branches), batch.branch_slices, strict=True)
    ]
    return torch.cat(parts)
