"""The arithmetic of group-relative methods (grpo, grpo_offline): advantages within a group, the
clipped surrogate, KL to the base.

Definitions are TRL 1.16's where it has one. Tensors in, tensors out; nothing here samples, scores
or sums over a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.tree import TreeBatch

Scale = Literal["group", "batch", "none"]
KlEstimator = Literal["k1", "k2", "k3"]
Normaliser = Literal["dapo", "grpo", "dr_grpo"]
Level = Literal["token", "sequence"]

SCALE_FLOOR = 1e-4
"""Added to a standard deviation before something is divided by it."""


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1 in the denominator); 0 for a single value.

    >>> spread([1.0, 3.0])
    1.4142135623730951
    """
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def flat(values: Sequence[float]) -> bool:
    """Return whether a group of rewards teaches nothing because they are all equal."""
    return math.isclose(spread(values), 0.0, abs_tol=1e-8)


def group_advantages(
    groups: Sequence[Sequence[float | None]], scale: Scale
) -> list[list[float | None]]:
    """Subtract the mean of its group from every reward, and divide by a standard deviation: the
    group's, the one of all rewards, or 1.

    A missing reward (None) has no advantage, and the others are compared without it; where all
    rewards of a group are alike the advantage is 0.

    >>> group_advantages([[1.0, 0.0, None], [1.0, 1.0, 1.0]], "none")
    [[0.5, -0.5, None], [0.0, 0.0, 0.0]]
    """
    batch_std = spread([reward for group in groups for reward in group if reward is not None])
    result: list[list[float | None]] = []
    for group in groups:
        rewards = np.array(group, dtype=float)  # NaN where a reward is missing
        present = [reward for reward in group if reward is not None]
        if flat(present):
            advantages = np.zeros(len(group))
        else:
            advantages = rewards - np.nanmean(rewards)
            if scale == "group":
                advantages /= spread(present) + SCALE_FLOOR
            elif scale == "batch":
                advantages /= batch_std + SCALE_FLOOR
        result.append(
            [
                None if reward is None else float(advantage)
                for reward, advantage in zip(group, advantages, strict=True)
            ]
        )
    return result


def token_weights(
    lengths: Sequence[int], counted: Sequence[bool], normaliser: Normaliser, longest: int
) -> list[float]:
    """Return the weight in the loss of each token of an answer, for answers of these `lengths`;
    answers that are not `counted` get 0.

    dapo: every token alike; grpo: every answer alike, its tokens share that; dr_grpo: every token
    alike, over answers x `longest`, which does not depend on how long they are. An answer that is
    not counted stays among the answers of grpo and dr_grpo.
    """
    n_answers = len(lengths)
    n_tokens = sum(length for length, counts in zip(lengths, counted, strict=True) if counts)
    weights: list[float] = []
    for length, counts in zip(lengths, counted, strict=True):
        if not counts:
            weights.append(0.0)
        elif normaliser == "dapo":
            weights.append(1 / max(1, n_tokens))
        elif normaliser == "grpo":
            weights.append(1 / (n_answers * max(1, length)))
        else:
            weights.append(1 / (n_answers * longest))
    return weights


def ratios(logp: torch.Tensor, old: torch.Tensor, batch: TreeBatch, level: Level) -> torch.Tensor:
    """Return [M] how much likelier each token, or on geometric average each answer, is now than
    when it was sampled."""
    import torch

    change = logp - old
    if level == "token":
        return torch.exp(change)
    return torch.exp(batch.branch_sum(change) / batch.branch_count())[batch.branch_of]


def clipped(ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return -min(ratio A, clip(ratio, 1 - low, 1 + high) A), [M]."""
    import torch

    return -torch.min(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)


def clip_metrics(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float
) -> dict[str, tuple[torch.Tensor, float]]:
    """Return the shares of tokens whose ratio is clipped, by side and together, as (sum, count)."""
    below = (ratio < 1 - low) & (advantage < 0)
    above = (ratio > 1 + high) & (advantage > 0)
    count = float(len(ratio))
    flags = {"low_mean": below, "high_mean": above, "region_mean": below | above}
    return {f"clip_ratio/{name}": (flag.sum().to(ratio), count) for name, flag in flags.items()}


def divergence(estimator: KlEstimator, logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return [M] estimates of KL(p || q) in nats from tokens of p (Schulman, "Approximating KL
    divergence").

    k1 = log p - log q, unbiased and noisy; k2 = k1^2 / 2, biased; k3 = q / p - 1 + k1, unbiased and
    never negative.
    """
    gap = logp - other
    if estimator == "k1":
        return gap
    return gap**2 / 2 if estimator == "k2" else (-gap).expm1() + gap


def kl(
    estimator: KlEstimator, logp: torch.Tensor, reference: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return [M] the same estimates of KL(policy || base) for a loss, from tokens that the old
    policy sampled: multiplied by the ratio of policy to old policy.

    In expectation the gradients of all three equal the gradient of the KL itself, which is why the
    ratio of k2 is detached: k2's own gradient already is the KL's.
    """
    return (ratio.detach() if estimator == "k2" else ratio) * divergence(estimator, logp, reference)
