"""Guards: measures that must not get worse by more than a margin while the primary measure gets
better.

This is a test of non-inferiority. A guard holds when the whole interval of its change lies within
its margin; that no loss was observed is not enough. It is worse when the observed loss is beyond
the margin. Between the two it is open: there are too few items to tell. With so few groups that it
counts as not measured, an observed loss beyond the margin is suspect, and allows a canary at most.

A guard asks for no more than what runs today can do (at first v0, the base). Margins are relative
to that (`margin_of`). Where it is near chance there is nothing to lose, so the guard is shown and
decides nothing (`ability`). To add a guard: a line in RULES and a margin in `policy.GatePolicy`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from thumbwheel.core.figures import gain, percent
from thumbwheel.evaluation.policy import GatePolicy, Lenience
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    NLL_LIKED,
    Guard,
)
from thumbwheel.stats.paired import no_change_halfwidth
from thumbwheel.stats.rates import wilson
from thumbwheel.training.base_defaults import REPLAY_WEIGHT


class GuardState(StrEnum):
    """The result of a guard."""

    HOLDS = "ok"
    OPEN = "open"
    WORSE = "worse"
    UNMEASURED = "not measured"
    SUSPECT = "not measured, and seen beyond the margin"
    NEAR_CHANCE = "near chance"


class GuardRule(NamedTuple):
    """How a guard is judged. `better`: 1 for a share of answers, of which more is better; -1 for
    nats a token, of which fewer are; 0 for tokens of an answer, which should stay. `words` follow
    "may be" or "is", and contain the margin."""

    better: int
    margin: str
    words: str

    def values(self, before: float, after: float) -> str:
        """Return two values of the guard for people."""
        if self.better > 0:
            return f"{percent(before)} -> {percent(after)}"
        unit = "nats a token" if self.better else "tokens"
        return f"{before:.3g} -> {after:.3g} {unit}"

    def change(self, change: float) -> str:
        """Return a difference of two values for people, with its sign."""
        if self.better > 0:
            return gain(change)
        unit = "nats" if self.better else "tokens"
        return f"{change:+.3g} {unit}".replace("-", "−")

    def beyond(self, margin: float) -> str:
        """Return the words about a value beyond this margin."""
        text = f"{margin:.3g}"
        if self.better > 0:
            text = gain(margin).removeprefix("+")
        return self.words.format(text)


RULES: dict[str, GuardRule] = {
    NLL_LIKED: GuardRule(
        -1,
        "margin_nll",
        "more than {} nats a token worse on answers that the app gave and people liked",
    ),
    NLL: GuardRule(-1, "margin_nll", "more than {} nats a token worse"),
    EOS: GuardRule(1, "margin_eos", "down by more than {}: fewer answers end"),
    FORMAT: GuardRule(1, "margin_format", "down by more than {}: fewer answers are well-formed"),
    LENGTH: GuardRule(0, "max_growth", "changed by more than a factor of {}"),
    ANCHOR_NLL: GuardRule(-1, "margin_anchors", "more than {} nats a token worse on general text"),
    ANCHOR_TASKS: GuardRule(
        1, "margin_tasks", "down by more than {}: fewer general tasks are solved"
    ),
}
"""Guards with a margin; others are shown and decide nothing. Forgetting shows first on the agent's
own traffic, so NLL_LIKED comes first."""


FORGOTTEN = frozenset({ANCHOR_NLL, ANCHOR_TASKS})
"""Guards that show what a training took of the general skill of its base."""
FORGOTTEN_HINT = (
    "what to do: the training overwrote general skill of the base, as steps that are too large or "
    "too many do. Train again at half the rate that its run named (--learning-rate), or hold it "
    f"closer to the base's own answers to general questions (--replay-weight {2 * REPLAY_WEIGHT:g})"
)


def guard_state(guard: Guard, policy: GatePolicy) -> tuple[GuardState, str]:
    """Return the state of `guard` under `policy` and a description of the problem, empty if it
    holds."""
    state, words = _state_by_margin(guard, policy)
    share = ability(guard)
    if state is GuardState.HOLDS or share is None or share >= policy.near_chance:
        return state, words
    fallen = state in (GuardState.WORSE, GuardState.SUSPECT)
    if fallen and _highest_ability(guard, share) >= policy.near_chance:
        words += (
            f"; whether there was something to lose is open, because {percent(share)} of few "
            "items may be more"
        )
        return GuardState.OPEN, words
    skill = "gets next to nothing right"
    if guard.chance is not None:
        skill = f"is near the {guard.chance:.3g} nats of a uniform guess"
    words = f"shown only: what runs today {skill}, so there is nothing to lose"
    return GuardState.NEAR_CHANCE, words


def _state_by_margin(guard: Guard, policy: GatePolicy) -> tuple[GuardState, str]:
    groups = guard.n if guard.clusters is None else guard.clusters
    too_few = f"not measured ({groups} of at least {policy.min_guard} groups)"
    if guard.before is None or guard.after is None:
        return GuardState.UNMEASURED, too_few
    measured = groups >= policy.min_guard and guard.low is not None and guard.high is not None
    rule = RULES.get(guard.name)
    if rule is None:
        return (GuardState.HOLDS, "") if measured else (GuardState.UNMEASURED, too_few)

    margin = margin_of(rule, guard.before, policy)
    words = rule.beyond(margin)
    fallen = _loss(rule, guard.before, guard.after) > margin
    if not measured or guard.low is None or guard.high is None:
        if fallen:
            return GuardState.SUSPECT, f"{too_few}, and what was seen is {words}"
        return GuardState.UNMEASURED, too_few
    if fallen:
        return GuardState.WORSE, words
    loss_at_low = _loss(rule, guard.before, guard.before + guard.low)
    loss_at_high = _loss(rule, guard.before, guard.before + guard.high)
    if max(loss_at_low, loss_at_high) <= margin:
        return GuardState.HOLDS, ""
    if _too_few_for_interval(guard, groups, margin, policy):
        words = (
            f"{groups} groups are too few to hold its interval to the margin, whatever they show"
        )
        return GuardState.UNMEASURED, words
    words = (
        f"may be {words} (the change lies between {rule.change(guard.low)} and "
        f"{rule.change(guard.high)}); more cases would tell"
    )
    return GuardState.OPEN, words


def ability(guard: Guard) -> float | None:
    """Place the incumbent's value on a scale from knowing nothing (0) to the best possible value
    (1); None if it cannot be placed."""
    rule = RULES.get(guard.name)
    if rule is None or rule.better == 0 or guard.before is None:
        return None
    if rule.better > 0:
        return guard.before
    return None if guard.chance is None else 1 - guard.before / guard.chance


def _highest_ability(guard: Guard, share: float) -> float:
    """Return the highest plausible ability: for a share, the upper end of its interval, because
    with few items a low share may be chance."""
    if guard.chance is not None:
        return share
    groups = guard.n if guard.clusters is None else guard.clusters
    return wilson(round(share * groups), groups).high


def margin_of(rule: GuardRule, before: float, policy: GatePolicy) -> float:
    """Return how much worse the candidate may be than the incumbent, whose value is `before`.

    In nats: the margin, or `relative_nats` of `before` if that is more. For a share: the margin,
    but at most half of `before`, so that a model which solves one task in five does not lose them
    all. A margin of 0.5 or more is taken literally.
    """
    margin: float = getattr(policy, rule.margin)
    if rule.better < 0:
        return max(margin, policy.relative_nats * before)
    if rule.better > 0 and margin < 0.5:
        return min(margin, before / 2)
    return margin


def consequence(state: GuardState, policy: GatePolicy) -> Lenience | None:
    """Return the consequence of a guard in this state for the candidate; None if it holds."""
    if state is GuardState.SUSPECT:
        return "reject" if policy.unmeasured_guard == "reject" else "canary"
    verdicts: dict[GuardState, Lenience] = {
        GuardState.WORSE: "reject",
        GuardState.OPEN: policy.open_guard,
        GuardState.UNMEASURED: policy.unmeasured_guard,
        GuardState.NEAR_CHANCE: "allow",
    }
    return verdicts.get(state)


def _too_few_for_interval(guard: Guard, groups: int, margin: float, policy: GatePolicy) -> bool:
    """Return whether even an unchanged guard would have an interval wider than the margin. With
    unequal groups, the effective number counts."""
    if policy.min_interval is not None:
        return groups < policy.min_interval
    spread = guard.spread
    if spread is None or spread.limit is None:
        return False
    return no_change_halfwidth(spread.degrees + 1, 1 - policy.alpha) > margin


def guard_reason(guard: Guard, words: str) -> str:
    """Return a guard's line among the reasons of a decision."""
    if guard.before is None or guard.after is None:
        return f"guard {guard.name}: {words}"
    rule = RULES.get(guard.name)
    before, after = guard.before, guard.after
    values = f"{before:.4g} -> {after:.4g}"
    if rule is not None:
        values = rule.values(before, after)
    values += f" on {guard.n} items"
    return f"guard {guard.name}: {values}, {words}"


def _loss(rule: GuardRule, before: float, after: float) -> float:
    """Return how much worse the value became, in the unit of the margin."""
    if rule.better:
        return rule.better * (before - after)
    low, high = sorted((max(before, 1e-9), max(after, 1e-9)))
    return high / low
