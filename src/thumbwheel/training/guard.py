"""Sees a run game its reward: too far from the base, longer answers for nothing, reward up while
what it does not optimise falls or stays.

It ends the run with the reason, which is no failure: the loop keeps the best checkpoint from
before. Numbers that break are divergence.py's. The first evaluation is the base, since an adapter
starts as no change.
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
    """One evaluation, with the values of every dev answer and the metrics over them."""

    rewards: Values
    lengths: Sequence[int]
    metrics: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, Values] = field(default_factory=dict)
    kept: Mapping[str, Values] = field(default_factory=dict)
    trained: float | None = None


class DriftGuard:
    """`kl_budget` in nats a token; `length_creep`: how often as long as the base's answers may get
    without being better."""

    def __init__(self, kl_budget: float | None, length_creep: float | None) -> None:
        self._kl_budget, self._length_creep = kl_budget, length_creep
        self._evaluations: list[EvaluationRecord] = []
        self._kl: list[float] = []
        self._rewards: list[float] = []
        self._entropy: float | None = None

    def step(self, metrics: Mapping[str, float]) -> str | None:
        """Return the reason to end the run after a step, or None if all is well."""
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

    def evaluation(self, evaluation: EvaluationRecord) -> str | None:
        """Return the reason to end the run after an evaluation, or None if all is well, and for the
        first one, which is the base."""
        if self._rewards:
            evaluation.trained = sum(self._rewards) / len(self._rewards)
        self._rewards = []
        self._evaluations.append(evaluation)
        if len(self._evaluations) == 1:
            return None
        base = self._evaluations[0]
        for name in evaluation.held_out:
            # A checkpoint from before it was watched has no such values to compare with.
            if any(name not in earlier.held_out for earlier in self._evaluations):
                continue
            gamed = self._fallen(name) or self._flat(name)
            if gamed:
                return gamed
        longer = self._longer_for_nothing(base, evaluation)
        return longer or collapse(base.metrics, evaluation.metrics)

    def unfit(self) -> str | None:
        """Return why the model of the newest evaluation must not be chosen, or None: a rate that
        guards the base's answers fell by more than noise."""
        base, now = self._evaluations[0], self._evaluations[-1]
        for name, values in now.kept.items():
            # A base from a checkpoint without a reward model has no such values to compare with.
            if name not in base.kept:
                continue
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
        before = sum(base.lengths) / len(base.lengths)
        after = sum(now.lengths) / len(now.lengths)
        change = paired(base.rewards, now.rewards)
        if after <= self._length_creep * before or (change and change.low > 0):
            return None
        reward = "without any dev reward"
        if change:
            reward = f"the dev reward is no better ({change.before:.3g} to {change.after:.3g})"
        return (
            f"answers grew from {before:.0f} to {after:.0f} tokens on the dev prompts, and {reward}"
        )

    def _fallen(self, name: str) -> str | None:
        """Return a reason if `name` is worse than at its best by more than noise while the reward,
        on the dev prompts or in training, is better, else None."""
        *earlier, now = self._evaluations
        best = max(earlier, key=lambda evaluation: _mean(evaluation.held_out[name]))
        change = paired(best.held_out[name], now.held_out[name])
        reward = paired(best.rewards, now.rewards)
        dev_reward_rose = reward is not None and reward.gain > 0
        training_reward_rose = (
            best.trained is not None and now.trained is not None and now.trained > best.trained
        )
        if not dev_reward_rose and not training_reward_rose:
            return None
        if change is None or change.n < PROVING or change.high >= 0:
            return None
        fell = (
            f"{name}, which is not optimised, fell from {change.before:.3g} to {change.after:.3g} "
            "on the dev prompts"
        )
        return f"the reward is being gamed: {fell} while the reward rose"

    def _flat(self, name: str) -> str | None:
        """Return a reason if `name`, which had room to rise, did not improve in the last
        evaluations while the dev reward rose by more than noise, else None."""
        recent = self._evaluations[-PATIENCE - 1 :]
        if len(recent) <= PATIENCE:
            return None

        # Where nearly all answers have the highest value that was seen, nothing can be gained.
        all_values: list[float] = []
        for evaluation in self._evaluations:
            all_values += _present(evaluation.held_out[name])
        if not all_values:
            return None
        top = max(all_values)
        values = _present(recent[-1].held_out[name])
        near_top = sum(top - value <= (1 - AS_GOOD) * abs(top) for value in values)
        if near_top > NO_ROOM * len(values):
            return None

        reward = paired(recent[0].rewards, recent[-1].rewards)
        if reward is None or reward.n < PROVING or reward.low <= 0:
            return None
        first, *later = (_mean(evaluation.held_out[name]) for evaluation in recent)
        if max(later) > first:
            return None
        rose = (
            f"rose from {reward.before:.3g} to {reward.after:.3g} on the dev prompts in {PATIENCE} "
            "evaluations"
        )
        return (
            f"the reward is being gamed: it {rose}, and {name}, which is not optimised, gained "
            f"nothing ({first:.3g} to {later[-1]:.3g})"
        )

    def state(self) -> dict[str, Any]:
        return {
            "seen": [asdict(evaluation) for evaluation in self._evaluations],
            "kl": self._kl,
            "rewards": self._rewards,
            "entropy": self._entropy,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._evaluations = [EvaluationRecord(**record) for record in state["seen"]]
        self._kl, self._rewards = list(state["kl"]), list(state["rewards"])
        self._entropy = state["entropy"]


def paired(before: Values, after: Values, level: float = LEVEL) -> Comparison | None:
    """Compare the answers that have a value on both sides; return None if there are none."""
    old_values: list[float] = []
    new_values: list[float] = []
    for old, new in zip(before, after, strict=True):
        if old is not None and new is not None:
            old_values.append(old)
            new_values.append(new)
    if not old_values:
        return None
    return compare(old_values, new_values, level=level, span=None)


def _present(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Values) -> float:
    present = _present(values)
    return sum(present) / len(present) if present else float("-inf")
