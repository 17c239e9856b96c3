"""Group-relative policy optimisation (arXiv 2402.03300), with the later normalisers of DAPO
(2503.14476) and Dr. GRPO (2503.20783).

Each prompt is answered several times; an answer is as good as its reward is above the mean of its
group. Losses, clipping and advantages are those of TRL 1.16 under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    clip_metrics,
    clipped,
    flat,
    group_advantages,
    kl,
    ratios,
    token_weights,
)
from thumbwheel.training.online import (
    AnswerBatch,
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


@dataclass
class WeightedAnswer:
    """A judged answer with its advantage and the weight of each of its tokens in the loss."""

    rollout: Rollout
    advantage: float
    weight: float = 0.0


class GrpoConfig(OnlineConfig):
    """Settings of grpo."""

    reward_model_defaults: ClassVar[Mapping[str, Any]] = {"scale_rewards": "batch", "beta": 0.4}
    num_generations: int = Field(default=8, ge=2)
    """Answers sampled to each prompt, which are compared with each other."""
    loss_type: Normaliser = "dapo"
    """What the loss is divided by: dapo tokens, grpo answers and each by its tokens, dr_grpo
    answers times max_completion_length."""
    scale_rewards: Scale = "group"
    """Standard deviation that advantages are divided by: that of the group, that of the batch, or
    none; with a reward model batch, because in a group whose answers are alike the deviation is the
    model's noise."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability ratio may fall before it is clipped."""
    epsilon_high: float | None = Field(default=None, gt=0)
    """How far it may rise; unset, as far as it may fall."""
    importance_sampling_level: Level = "token"
    """Ratios a token, or one of the whole answer (GSPO)."""
    num_iterations: int = Field(default=1, ge=1)
    """Updates on every batch of answers."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the base in the loss; 0 saves its computation, kl_budget can limit it all
    the same. 0.4 with a reward model."""
    kl_estimator: KlEstimator = "k3"
    """How that KL is estimated: k1 unbiased, k2 and k3 of lower variance and never negative."""
    mask_truncated_completions: bool = False
    """Do not learn from answers that max_completion_length cut off."""
    resample_zero_variance: int = Field(default=0, ge=0)
    """How often prompts whose answers all earned the same are answered anew, in the hope of a
    difference."""


class Grpo(OnlineAlgorithm[GrpoConfig]):
    """min(r A, clip(r) A) + beta KL over the tokens of all answers, r the ratio to the policy that
    sampled them."""

    name: ClassVar[str] = "grpo"
    title: ClassVar[str] = "GRPO"
    rate: ClassVar[float] = 1e-4
    regularizer_setting: ClassVar[str | None] = "beta"
    Config: ClassVar[type[TrainConfig]] = GrpoConfig

    def tasks_to_resample(self, collected: AnswerBatch, attempt: int) -> list[int]:
        """Return the tasks whose rewards are all equal, for up to `resample_zero_variance`
        attempts; a task without any reward is left out, since a second attempt would not be judged
        either."""
        if attempt > self.config.resample_zero_variance:
            return []
        return [
            number
            for number in _flat_groups(collected)
            if any(reward is not None for reward in collected.values[number])
        ]

    def passes(self, step: int) -> int:
        return self.config.num_iterations

    def experience(self, collected: AnswerBatch, score: Sweep) -> Experience:
        """Return every token with its advantage and its weight in the loss, and old and reference
        log-probs where the loss needs them.

        An answer that changes no gradient (no advantage and no KL, or masked) is not scored, but
        counts in the denominators.
        """
        import torch

        config = self.config
        experience = Experience([], {"advantage": [], "weight": []})
        flat_share = len(_flat_groups(collected)) / len(collected.tasks)
        experience.metrics["frac_reward_zero_std"] = flat_share

        # One example a prompt; every token gets the advantage and the weight of its answer.
        rollouts: list[Rollout] = []
        for task, answers in zip(collected.tasks, self._weighted(collected), strict=True):
            if not answers:
                continue
            group = [answer.rollout for answer in answers]
            rollouts += group
            experience.examples.append(Example(task.prompt, branches(group), task.group))
            lengths = torch.tensor([len(rollout.ids) for rollout in group])
            advantages = torch.tensor([answer.advantage for answer in answers], dtype=torch.float64)
            weights = torch.tensor([answer.weight for answer in answers], dtype=torch.float64)
            experience.tokens["advantage"].append(advantages.repeat_interleave(lengths))
            experience.tokens["weight"].append(weights.repeat_interleave(lengths))

        # The policy that sampled is the current one, except after an update or from elsewhere.
        if config.num_iterations > 1 or collected.off_policy:
            experience.tokens["old"] = score(experience.examples, Role.POLICY)
        if collected.off_policy and experience.examples:
            self._correct_off_policy(experience, rollouts)
        if config.beta or config.kl_budget:
            experience.tokens["reference"] = score(experience.examples, Role.REF)
        return experience

    def _correct_off_policy(self, experience: Experience, rollouts: Sequence[Rollout]) -> None:
        """Multiply the advantages of off-policy answers by their importance weights."""
        import torch

        old = experience.tokens["old"]
        weights, metrics = importance(torch.cat(old), rollouts, self.config.importance_cap)
        by_example = weights.split([len(logp) for logp in old])
        experience.tokens["advantage"] = [
            advantage * weight
            for advantage, weight in zip(experience.tokens["advantage"], by_example, strict=True)
        ]
        experience.metrics |= metrics

    def _weighted(self, collected: AnswerBatch) -> list[list[WeightedAnswer]]:
        """Return, for each task, the answers that change a gradient."""
        config = self.config
        advantages = group_advantages(collected.values, config.scale_rewards)
        groups: list[list[WeightedAnswer]] = []
        for rollouts, group in zip(collected.rollouts, advantages, strict=True):
            answers = [
                WeightedAnswer(rollout, advantage)
                for rollout, advantage in zip(rollouts, group, strict=True)
                if advantage is not None and rollout.ids
            ]
            groups.append(answers)

        # The denominators of the weights are those of the whole batch.
        answers = [answer for group in groups for answer in group]
        lengths = [len(answer.rollout.ids) for answer in answers]
        counted = [
            answer.rollout.finish == "stop" or not config.mask_truncated_completions
            for answer in answers
        ]
        weights = token_weights(lengths, counted, config.loss_type, config.max_completion_length)
        for answer, weight in zip(answers, weights, strict=True):
            answer.weight = weight
        return [
            [answer for answer in group if answer.weight and (answer.advantage or config.beta)]
            for group in groups
        ]

    def loss(
        self,
        engine: ScoreEngine,
        batch: TreeBatch,
        values: Mapping[str, torch.Tensor],
        whole: Mapping[str, torch.Tensor],
    ) -> LossOut:
        """Return sum_t w_t (-min(r_t A_t, clip(r_t) A_t) + beta KL_t) and its metrics; the weights
        w already include the denominators."""
        config = self.config
        epsilon_low, epsilon_high = config.epsilon, config.epsilon_high or config.epsilon
        scores = engine.score(batch, Role.POLICY, WANT, grad=True)
        logp = scores.logp
        values = {name: value.to(logp) for name, value in values.items()}
        old, advantage = values.get("old", logp.detach()), values["advantage"]

        ratio = ratios(logp, old, batch, config.importance_sampling_level)
        loss = clipped(ratio, advantage, epsilon_low, epsilon_high)
        metrics: Metrics = {"entropy": mean(scores.entropy)}
        metrics |= clip_metrics(ratio.detach(), advantage, epsilon_low, epsilon_high)
        if "reference" in values:
            divergence = kl(config.kl_estimator, logp, values["reference"], ratio)
            metrics["kl"] = mean(divergence)
            if config.beta:
                loss = loss + config.beta * divergence
        return LossOut((values["weight"] * loss).sum(), metrics)


def _flat_groups(collected: AnswerBatch) -> list[int]:
    """Return the numbers of the tasks whose answers all earned the same reward."""
    flat_groups: list[int] = []
    for number, rewards in enumerate(collected.values):
        if flat([reward for reward in rewards if reward is not None]):
            flat_groups.append(number)
    return flat_groups
