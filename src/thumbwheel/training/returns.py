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
    rewards: torch.Tensor,
    values: torch.Tensor,
    after: torch.Tensor,
    lengths: Sequence[int],
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Return generalised advantage estimates (Schulman et al. 2015, arXiv 1506.02438), one per
    token.

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1}

    `rewards` and `values` [n] belong to several answers in a row, with `lengths` tokens each.
    `values[t]` is the critic's value before token t, `after` [answers] the value after the last
    token: 0 where the episode is over.

    >>> import torch
    >>> rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25])
    >>> gae(rewards, values, torch.zeros(1), [2], 1.0, 0.5).tolist()
    [0.125, 0.75]
    """
    import torch

    # in double precision, which Metal does not have
    exact = torch.float32 if values.device.type == "mps" else torch.float64
    counts = torch.tensor(lengths)
    starts = counts.cumsum(0) - counts
    answers = torch.arange(len(lengths)).repeat_interleave(counts)
    offsets = torch.arange(len(answers)) - starts[answers]
    last_tokens = (starts + counts - 1).to(values.device)
    answers, offsets = answers.to(values.device), offsets.to(values.device)

    # behind an answer's last token comes `after`
    before = values.to(exact)
    following = before.roll(-1).index_copy_(0, last_tokens, after.to(exact))
    deltas = rewards.to(exact) + gamma * following - before

    # [answers, longest], by doubling: the sum over 2m tokens is that over m, and that over the next
    # m times (gamma lam)^m
    advantages = deltas.new_zeros(len(lengths), max(lengths))
    advantages[answers, offsets] = deltas
    reach = 1
    while reach < advantages.shape[1]:
        later = torch.nn.functional.pad(advantages[:, reach:], (0, reach))
        advantages = advantages + (gamma * lam) ** reach * later
        reach *= 2
    return advantages[answers, offsets].to(values.dtype)


def whiten(values: torch.Tensor) -> torch.Tensor:
    """Return [n] with mean 0 and standard deviation 1 over all n (variance biased: divided by
    n)."""
    return (values - values.mean()) * (values.var(correction=0) + 1e-8).rsqrt()


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """Return 1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for one that
    predicts no better than the mean, and 0 for constant returns."""
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
        """Return `score` in standard deviations from the mean, clipped to +-`clip`."""
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
        """Adjust the coefficient to the mean KL of a batch of `answers` answers, if there is a
        target."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -STEP), STEP)
            self.coefficient *= 1 + error * min(answers / self.horizon, 1.0)
