"""Group-relative policy optimisation (arXiv 2402.03300), with the later normalisers of DAPO
(2503.14476) and Dr. GRPO (2503.20783).

Each prompt is answered several times; an answer is as good as its reward is above the mean of its
group. Losses, clipping and advantages are those of TRL 1.16 under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from thumbwheel.engine.rollout import Rollout
from thumbwheel.engine.score import Role
from thumbwheel.engine.tree import Example
from thumbwheel.training.algorithm import LossOut, Metrics, mean
from thumbwheel.training.group import (
    KlEstimator,
    Level,
    Normaliser,
    Scale,
    advantages,
    clip_metrics,
    clipped,
    flat,
    kl,
    ratios,
    shares,
)
from thumbwheel.training.online import (
    Collected,
    Experience,
    OnlineAlgorithm,
    OnlineConfig,
    Sweep,
    branches,
    importance,
)
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import TreeBatch

WANT = frozenset({"logp", "entropy"})


class GrpoConfig(OnlineConfig):
    """Settings of grpo."""

    reward_model_defaults: ClassVar[Mapping[str, Any]] = {"scale_rewards": "batch", "beta": 0.4}
    num_generations: int = Field(8, ge=2)
    """Answers sampled to each prompt, which are compared with each other."""
    loss_type: Normaliser = "dapo"
    """What the loss is divided by: dapo tokens, grpo answers and each by its tokens, dr_grpo
    answers times max_completion_length."""
    scale_rewards: Scale = "group"
    """Standard deviation that advantages are divided by: that of the group, that of the batch, or
    none; with a reward model batch, because in a group whose answers are alike the deviation is the
    model's noise."""
    epsilon: float = Field(0.2, gt=0, lt=1)
    """How far the probability ratio may fall before it is clipped."""
    epsilon_high: float | None = Field(None, gt=0)
    """How far it may rise; unset, as far as it may fall."""
    importance_sampling_level: Level = "token"
    """Ratios a token, or one of the whole answer (GSPO)."""
    num_iterations: int = Field(1, ge=1)
    """Updates on every batch of answers."""
    beta: float = Field(0.0, ge=0)
    """Weight of the KL to the base in the loss; 0 saves its computation, kl_budget can limit it all
    the same. 0.4 with a reward model."""
    kl_estimator: KlEstimator = "k3"
    """How that KL is estimated: k1 unbiased, k2 and k3 of lower variance and never negative."""
    mask_truncated_completions: bool = False
    """Do not learn from answers that max_completion_length cut off."""
    resample_zero_variance: int = Field(0, ge=0)
    """How often prompts whose answers all earned the same are answered anew, in the hope of a
    difference."""


class Grpo(OnlineAlgorithm[GrpoConfig]):
    """min(r A, clip(r) A) + beta KL over the tokens of all answers, r the ratio to the policy that
    sampled them."""

    name: ClassVar[str] = "grpo"
    rate: ClassVar[float] = 1e-4
    regularizer_setting: ClassVar[str | None] = "beta"
    Config: ClassVar[type[TrainConfig]] = GrpoConfig

    def again(self, collected: Collected, turn: int) -> list[int]:
        """Groups that teach nothing, as often as is asked for; what nobody could judge would not be
        judged a second time."""
        if turn > self.config.resample_zero_variance:
            return []
        return [
            index
            for index in _flat_groups(collected)
            if any(value is not None for value in collected.values[index])
        ]

    def passes(self, step: int) -> int:
        """As set."""
        return self.config.num_iterations

    def experience(self, collected: Collected, score: Sweep) -> Experience:
        """Every token with its advantage and its weight in the loss; old and reference log-probs
        where the loss needs them.

        An answer that changes no gradient (no advantage and no KL, or masked) is not scored, but
        counts in the denominators.
        """
        import torch

        config = self.config
        found = Experience([], {"advantage": [], "weight": []})
        found.metrics["frac_reward_zero_std"] = len(_flat_groups(collected)) / len(collected.tasks)
        taken: list[Rollout] = []
        for task, answers in zip(collected.tasks, self._learned(collected), strict=True):
            if not answers:
                continue
            rollouts, advantage, weight = zip(*answers, strict=True)
            taken += rollouts
            found.examples.append(Example(task.prompt, branches(rollouts), task.group))
            sizes = torch.tensor([len(one.ids) for one in rollouts])
            for name, each in (("advantage", advantage), ("weight", weight)):
                found.tokens[name].append(
                    torch.tensor(each, dtype=torch.float64).repeat_interleave(sizes)
                )
        if config.num_iterations > 1 or collected.off_policy:
            found.tokens["old"] = score(found.examples, Role.POLICY)
        if collected.off_policy and found.examples:
            self._correct(found, taken)
        if config.beta or config.kl_budget:
            found.tokens["reference"] = score(found.examples, Role.REF)
        return found

    def _correct(self, found: Experience, answers: Sequence[Rollout]) -> None:
        """Weigh the advantages of answers from elsewhere."""
        import torch

        old, sizes = found.tokens["old"], [len(one) for one in found.tokens["old"]]
        weights, metrics = importance(torch.cat(old), answers, self.config.importance_cap)
        found.tokens["advantage"] = [
            one * weight
            for one, weight in zip(found.tokens["advantage"], weights.split(sizes), strict=True)
        ]
        found.metrics |= metrics

    def _learned(self, collected: Collected) -> list[list[tuple[Rollout, float, float]]]:
        """Of every task the answers that change a gradient, each with its advantage and the weight
        of its tokens."""
        config = self.config
        earned = advantages(collected.values, config.scale_rewards)
        judged = [
            [
                (one, value)
                for one, value in zip(rollouts, values, strict=True)
                if value is not None and one.ids
            ]
            for rollouts, values in zip(collected.rollouts, earned, strict=True)
        ]
        answers = [one for group in judged for one, _ in group]
        counted = [one.finish == "stop" or not config.mask_truncated_completions for one in answers]
        weights = iter(
            shares(
                [len(one.ids) for one in answers],
                counted,
                config.loss_type,
                config.max_completion_length,
            )
        )
        weighed = [[(one, value, next(weights)) for one, value in group] for group in judged]
        return [[one for one in group if one[2] and (one[1] or config.beta)] for group in weighed]

    def loss(
        self,
        engine: ScoreEngine,
        batch: TreeBatch,
        values: Mapping[str, torch.Tensor],
        whole: Mapping[str, torch.Tensor],
    ) -> LossOut:
        """Weights hold the denominators already."""
        config = self.config
        high = config.epsilon_high or config.epsilon
        scores = engine.score(batch, Role.POLICY, WANT, grad=True)
        values = {name: value.to(scores.logp) for name, value in values.items()}
        ratio = ratios(
            scores.logp,
            values.get("old", scores.logp.detach()),
            batch,
            config.importance_sampling_level,
        )
        loss = clipped(ratio, values["advantage"], config.epsilon, high)
        metrics: Metrics = {"entropy": mean(scores.entropy)}
        metrics |= clip_metrics(ratio.detach(), values["advantage"], config.epsilon, high)
        if "reference" in values:
            distance = kl(config.kl_estimator, scores.logp, values["reference"], ratio)
            metrics["kl"] = mean(distance)
            loss = loss + config.beta * distance if config.beta else loss
        return LossOut((values["weight"] * loss).sum(), metrics)


def _flat_groups(collected: Collected) -> list[int]:
    """Places of the tasks whose answers all earned the same."""
    return [
        index
        for index, values in enumerate(collected.values)
        if flat([value for value in values if value is not None])
    ]
