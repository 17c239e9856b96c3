"""The arithmetic of PPO: from scores to per-token rewards, advantages and returns. No model, no
configuration.

Units: scores in those of the judge, or in standard deviations once normalised; KL in nats; the KL
horizon in answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STEP = 0.2
"""Largest relative error of the KL that the adaptive coefficient answers to (Ziegler et al. 2019,
arXiv 1909.08593)."""


def gae(
    rewards: Sequence[float], values: Sequence[float], after: float, gamma: float, lam: float
) -> list[float]:
    """Generalised advantage estimates (Schulman et al. 2015, arXiv 1506.02438), one a token.

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1}

    `values[t]` is the critic's opinion before token t, `after` the one behind the last token: 0
    where the episode is over.

    >>> gae([0.0, 1.0], [0.5, 0.25], 0.0, 1.0, 0.5)
    [0.125, 0.75]
    """
    advantages = [0.0] * len(rewards)
    advantage = 0.0
    next_values = [*values[1:], after]
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantage = delta + gamma * lam * advantage
        advantages[t] = advantage
    return advantages


def batch_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    after: Sequence[float],
    ends: Sequence[int],
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """`gae` of several answers in a row, [n] as `rewards` and `values`; answer i ends before token
    `ends[i]`, and `after[i]` is the critic's opinion there."""
    flat_rewards, flat_values = rewards.tolist(), values.tolist()
    advantages: list[float] = []
    start = 0
    for end, value_after in zip(ends, after, strict=True):
        advantages += gae(flat_rewards[start:end], flat_values[start:end], value_after, gamma, lam)
        start = end
    return values.new_tensor(advantages)


def whiten(values: torch.Tensor) -> torch.Tensor:
    """[n] with mean 0 and standard deviation 1 over all n (variance biased: divided by n)."""
    return (values - values.mean()) * (values.var(correction=0) + 1e-8).rsqrt()


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for one that knows no
    more than the mean."""
    spread = float(returns.var(correction=0))
    return 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else 0.0


@dataclass
class Moments:
    """Running mean and (biased) variance of all scores seen, merged batch by batch (Chan et al.
    1979)."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, scores: Sequence[float]) -> None:
        if not scores:
            return
        n, total = len(scores), self.count + len(scores)
        mean = sum(scores) / n
        variance = sum((score - mean) ** 2 for score in scores) / n
        between = (mean - self.mean) ** 2 * self.count * n / total
        self.variance = (self.variance * self.count + variance * n + between) / total
        self.mean += (mean - self.mean) * n / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation; 1 while all scores were the same."""
        return math.sqrt(self.variance) if self.variance > 1e-12 else 1.0

    def normalised(self, score: float, clip: float) -> float:
        """`score` in standard deviations from the mean, at most `clip` of them."""
        return min(max((score - self.mean) / self.deviation, -clip), clip)

    def state(self) -> dict[str, float]:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: Mapping[str, float]) -> None:
        self.count, self.mean, self.variance = int(state["count"]), state["mean"], state["variance"]


@dataclass
class KlController:
    """The weight of the KL penalty: raised while the KL is above `target` (nats a token), lowered
    below it; no target, no change.

    One batch of n answers changes it by the factor 1 + clip(kl / target - 1, -0.2, 0.2) * n /
    horizon, n / horizon being 1 at most.

    >>> controller = KlController(0.2, target=0.1, horizon=1000)
    >>> controller.update(0.15, answers=100)
    >>> round(controller.coefficient, 6)
    0.204
    """

    coefficient: float
    target: float | None
    horizon: float

    def update(self, kl: float, answers: int) -> None:
        """Answer to the mean KL of a batch of so many answers."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -STEP), STEP)
            self.coefficient *= 1 + error * min(answers / self.horizon, 1.0)
