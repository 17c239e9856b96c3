"""Sees a run game its reward: too far from the base, longer answers for nothing, reward up while
what it does not optimise falls or stays.

It ends the run with the reason, which is no failure: the loop keeps the best checkpoint from
before. Numbers that break are divergence.py's. The first evaluation is the base, since an adapter starts
as no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.core import log
from thumbwheel.stats.paired import compare
from thumbwheel.stats.types import Comparison
from thumbwheel.training.divergence import GUARDED_RATES, collapse

WINDOW = 3
"""Steps whose mean KL is held against the budget; one batch is a noisy estimate."""
LEVEL = 0.99
"""Of the intervals that say what is noise; a run is looked at many times."""
DOUBT = 0.9
"""Of the interval that decides whether an evaluation may be the best one: passing over a sound one
costs little."""
PROVING = 8
"""Fewer answers that all fell are chance at this level (by the sign test)."""
PATIENCE = 4
"""Evaluations in a row that something held out may do without any gain while the reward rises."""
NO_ROOM, AS_GOOD = 0.9, 0.95
"""Where this share of answers has a value that is nearly as good as the best of all, nothing can be
gained."""
ENTROPY_LEFT = 0.1
"""Of the entropy at the start; below it the answers hardly vary, and it is said once."""

Values = Sequence[float | None]


@dataclass
class EvaluationRecord:
    """One evaluation: of every dev answer its reward, tokens, values of the watched functions and,
    where a reward model judges, by the metrics of divergence.GUARDED_RATES whether it has what it must keep; the
    metrics over them; the mean reward in training since the one before."""

    rewards: Values
    lengths: Sequence[int]
    metrics: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, Values] = field(default_factory=dict)
    kept: Mapping[str, Values] = field(default_factory=dict)
    trained: float | None = None


class Guard:
    """`kl_budget` in nats a token; `length_creep`: how often as long as the base's answers may get
    without being better."""

    def __init__(self, kl_budget: float | None, length_creep: float | None) -> None:
        self._kl_budget, self._length_creep = kl_budget, length_creep
        self._seen: list[EvaluationRecord] = []
        self._kl: list[float] = []
        self._rewards: list[float] = []
        self._entropy: float | None = None

    def step(self, metrics: Mapping[str, float]) -> str | None:
        """The reason to end the run after a step; None when all is well."""
        if "reward" in metrics:
            self._rewards.append(metrics["reward"])
        self._look_at_entropy(metrics.get("entropy"))
        if self._kl_budget is None or "kl" not in metrics:
            return None
        self._kl = [*self._kl, metrics["kl"]][-WINDOW:]
        now = sum(self._kl) / len(self._kl)
        if now <= self._kl_budget:
            return None
        return (
            f"the KL budget is spent: {now:.3g} nats a token away from the base, kl_budget "
            f"{self._kl_budget:g}"
        )

    def _look_at_entropy(self, now: float | None) -> None:
        if now is None or self._entropy == 0.0:
            return
        if self._entropy is None:
            self._entropy = now
        elif now < ENTROPY_LEFT * self._entropy:
            log.say(
                f"the entropy has collapsed: {now:.3g} nats a token, {self._entropy:.3g} at the "
                "start; answers to a prompt hardly vary"
            )
            self._entropy = 0.0

    def evaluation(self, seen: EvaluationRecord) -> str | None:
        """The reason to end the run after an evaluation; None when all is well, and for the first
        one, which is the base."""
        seen.trained = sum(self._rewards) / len(self._rewards) if self._rewards else None
        self._rewards = []
        self._seen.append(seen)
        if len(self._seen) == 1:
            return None
        gamed = next(
            filter(None, (self._fallen(name) or self._flat(name) for name in seen.held_out)), None
        )
        return (
            gamed
            or self._longer_for_nothing(self._seen[0], seen)
            or collapse(self._seen[0].metrics, seen.metrics)
        )

    def unfit(self) -> str | None:
        """Why the model of the newest evaluation must not be chosen: it lost, by more than noise,
        what the base's answers have."""
        base, now = self._seen[0], self._seen[-1]
        for name, values in now.kept.items():
            change = paired(base.kept[name], values, DOUBT)
            if change and change.n >= PROVING and change.high < 0:
                return (
                    f"{change.after:.0%} of fresh answers to dev prompts {GUARDED_RATES[name]}, "
                    f"{change.before:.0%} under the base"
                )
        return None

    def _longer_for_nothing(self, base: EvaluationRecord, now: EvaluationRecord) -> str | None:
        if self._length_creep is None:
            return None
        before, after = (sum(one.lengths) / len(one.lengths) for one in (base, now))
        gained = paired(base.rewards, now.rewards)
        if after <= self._length_creep * before or (gained and gained.low > 0):
            return None
        reward = (
            f"the dev reward is no better ({gained.before:.3g} to {gained.after:.3g})"
            if gained
            else "without any dev reward"
        )
        return (
            f"answers grew from {before:.0f} to {after:.0f} tokens on the dev prompts, and {reward}"
        )

    def _fallen(self, name: str) -> str | None:
        """Whether `name` is worse than at its best by more than noise, while the reward, there or
        in training, is better."""
        *earlier, now = self._seen
        best = max(earlier, key=lambda one: _mean(one.held_out[name]))
        change, reward = (
            paired(best.held_out[name], now.held_out[name]),
            paired(best.rewards, now.rewards),
        )
        better = bool(reward and reward.gain > 0) or (
            best.trained is not None and now.trained is not None and now.trained > best.trained
        )
        if change is None or change.n < PROVING or change.high >= 0 or not better:
            return None
        fell = (
            f"{name}, which is not optimised, fell from {change.before:.3g} to {change.after:.3g} "
            "on the dev prompts"
        )
        return f"the reward is being gamed: {fell} while the reward rose"

    def _flat(self, name: str) -> str | None:
        """Whether `name`, which had room, was at none of the last evaluations better, while the dev
        reward rose by more than noise."""
        *earlier, now = self._seen[-PATIENCE - 1 :]
        top = max(
            (value for one in self._seen for value in one.held_out[name] if value is not None),
            default=None,
        )
        known = [value for value in now.held_out[name] if value is not None]
        if (
            len(earlier) < PATIENCE
            or top is None
            or sum(top - value <= (1 - AS_GOOD) * abs(top) for value in known)
            > NO_ROOM * len(known)
        ):
            return None
        reward, first, *since = (
            paired(earlier[0].rewards, now.rewards),
            *(_mean(one.held_out[name]) for one in (*earlier, now)),
        )
        if reward is None or reward.n < PROVING or reward.low <= 0 or max(since) > first:
            return None
        rose = (
            f"rose from {reward.before:.3g} to {reward.after:.3g} on the dev prompts in {PATIENCE} "
            "evaluations"
        )
        return (
            f"the reward is being gamed: it {rose}, and {name}, which is not optimised, gained "
            f"nothing ({first:.3g} to {since[-1]:.3g})"
        )

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        records = [asdict(record) for record in self._seen]
        return {"seen": records, "kl": self._kl, "rewards": self._rewards, "entropy": self._entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self._seen = [EvaluationRecord(**record) for record in state["seen"]]
        self._kl, self._rewards, self._entropy = (
            list(state["kl"]),
            list(state["rewards"]),
            state["entropy"],
        )


def paired(before: Values, after: Values, level: float = LEVEL) -> Comparison | None:
    """The answers that have a value on both sides; None where there are none."""
    both = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if old is not None and new is not None
    ]
    return (
        compare([old for old, _ in both], [new for _, new in both], level=level, span=None)
        if both
        else None
    )


def _mean(values: Values) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else float("-inf")
