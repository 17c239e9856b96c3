"""Guards: what must not get worse while the primary measure gets better, and by how much it may.

Non-inferiority: a guard holds when the whole interval of its change lies within its margin, so that the loss which cannot be excluded is
small; that no loss was seen is not enough. It is worse when what was seen lies beyond the margin. Between the two it is open: there are
too few items to tell. To add one: a line in RULES and a margin in `policy.GatePolicy`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.types import ANCHOR_NLL, ANCHOR_TASKS, EOS, FORMAT, LENGTH, NLL, Guard
from thumbwheel.stats.paired import unchanged


class Standing(StrEnum):
    """What is known about a guard."""

    HOLDS = "ok"
    OPEN = "open"
    WORSE = "worse"
    UNMEASURED = "not measured"


class Rule(NamedTuple):
    """`better`: 1 where more is better, -1 where less is, 0 where it should stay. `words` take the margin, after "may be" or "is"."""

    better: int
    margin: str
    words: str


RULES: dict[str, Rule] = {
    NLL: Rule(-1, "margin_nll", "more than {:g} nats a token worse"),
    EOS: Rule(1, "margin_eos", "down by more than {:g}: fewer answers end"),
    FORMAT: Rule(1, "margin_format", "down by more than {:g}: fewer answers are well-formed"),
    LENGTH: Rule(0, "max_growth", "changed by more than a factor of {:g}"),
    ANCHOR_NLL: Rule(-1, "margin_anchors", "more than {:g} nats a token worse on general text"),
    ANCHOR_TASKS: Rule(1, "margin_tasks", "down by more than {:g}: fewer general tasks are solved"),
}
"""Guards with a margin; others are shown and decide nothing."""


def standing(guard: Guard, policy: GatePolicy) -> tuple[Standing, str]:
    """Whether `guard` holds under `policy`, and what is wrong in words; no words where nothing is."""
    rule, groups = RULES.get(guard.name), guard.n if guard.clusters is None else guard.clusters
    if groups < policy.min_guard or guard.before is None or guard.after is None or guard.low is None or guard.high is None:
        return Standing.UNMEASURED, f"not measured ({groups} of at least {policy.min_guard} groups)"
    if rule is None:
        return Standing.HOLDS, ""
    margin: float = getattr(policy, rule.margin)
    words = rule.words.format(margin)
    if _loss(rule, guard.before, guard.after) > margin:
        return Standing.WORSE, words
    if max(_loss(rule, guard.before, guard.before + end) for end in (guard.low, guard.high)) > margin:
        if _too_few(guard, groups, margin, policy):
            return Standing.UNMEASURED, f"{groups} groups are too few to hold its interval to the margin, whatever they show"
        return Standing.OPEN, f"may be {words} (the change lies within {guard.low:+.4f} .. {guard.high:+.4f}); more cases would tell"
    return Standing.HOLDS, ""


def _too_few(guard: Guard, groups: int, margin: float, policy: GatePolicy) -> bool:
    """Whether the interval says nothing about the margin; of unequal groups those count that tell."""
    if policy.min_interval is not None:
        return groups < policy.min_interval
    spread = guard.spread
    return spread is not None and spread.limit is not None and unchanged(spread.degrees + 1, 1 - policy.alpha) > margin


def described(guard: Guard, words: str) -> str:
    """A reason of the gate."""
    seen = "" if guard.before is None or guard.after is None else f"{guard.before:.4f} -> {guard.after:.4f} on {guard.n} items, "
    return f"guard {guard.name}: {seen}{words}"


def _loss(rule: Rule, before: float, after: float) -> float:
    """How much worse, in the unit of the margin."""
    if rule.better:
        return rule.better * (before - after)
    low, high = sorted((max(before, 1e-9), max(after, 1e-9)))
    return high / low
