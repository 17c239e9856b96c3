"""Guards: what must not get worse while the primary measure gets better, and by how much it may.

Non-inferiority: a guard holds when the whole interval of its change lies within its margin, so that
the loss which cannot be excluded is small; that no loss was seen is not enough. It is worse when
what was seen lies beyond the margin. Between the two it is open: there are too few items to tell.
On so few groups that nothing was measured, a loss beyond the margin is a suspicion: it stops nobody
from trying a canary, and nothing more than a canary.

A guard asks for no more than what runs today can do (at first v0, the base): margins are relative
to that (`margin_of`), and where it stands near chance there is nothing to lose, so that the guard
is shown and decides nothing (`ability`). To add one: a line in RULES and a margin in
`policy.GatePolicy`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

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


class Standing(StrEnum):
    """What is known about a guard."""

    HOLDS = "ok"
    OPEN = "open"
    WORSE = "worse"
    UNMEASURED = "not measured"
    SUSPECT = "not measured, and seen beyond the margin"
    NEAR_CHANCE = "near chance"


class Rule(NamedTuple):
    """`better`: 1 where more is better, -1 where less is, 0 where it should stay. `words` take the
    margin, after "may be" or "is"."""

    better: int
    margin: str
    words: str


RULES: dict[str, Rule] = {
    NLL_LIKED: Rule(
        -1,
        "margin_nll",
        "more than {:g} nats a token worse on answers that the app gave and people liked",
    ),
    NLL: Rule(-1, "margin_nll", "more than {:g} nats a token worse"),
    EOS: Rule(1, "margin_eos", "down by more than {:g}: fewer answers end"),
    FORMAT: Rule(1, "margin_format", "down by more than {:g}: fewer answers are well-formed"),
    LENGTH: Rule(0, "max_growth", "changed by more than a factor of {:g}"),
    ANCHOR_NLL: Rule(-1, "margin_anchors", "more than {:g} nats a token worse on general text"),
    ANCHOR_TASKS: Rule(1, "margin_tasks", "down by more than {:g}: fewer general tasks are solved"),
}
"""Guards with a margin; others are shown and decide nothing. What was forgotten shows on the
agent's own traffic first."""


def standing(guard: Guard, policy: GatePolicy) -> tuple[Standing, str]:
    """Whether `guard` holds under `policy`, and what is wrong in words; no words where nothing is."""
    known, words = _standing(guard, policy)
    able = ability(guard)
    if known is not Standing.HOLDS and able is not None and able < policy.near_chance:
        if (
            known in (Standing.WORSE, Standing.SUSPECT)
            and _at_most(guard, able) >= policy.near_chance
        ):
            return (
                Standing.OPEN,
                f"{words}; whether there was something to lose is open, because {able:.4f} of few "
                "items may be more",
            )
        chance = (
            "nothing right"
            if guard.chance is None
            else f"the {guard.chance:.4f} of a uniform guess"
        )
        return (
            Standing.NEAR_CHANCE,
            f"shown only: what runs today is near {chance}, so there is nothing to lose",
        )
    return known, words


def _standing(guard: Guard, policy: GatePolicy) -> tuple[Standing, str]:
    rule, groups = RULES.get(guard.name), guard.n if guard.clusters is None else guard.clusters
    few = f"not measured ({groups} of at least {policy.min_guard} groups)"
    if guard.before is None or guard.after is None:
        return Standing.UNMEASURED, few
    margin = 0.0 if rule is None else margin_of(rule, guard.before, policy)
    words = "" if rule is None else rule.words.format(round(margin, 4))
    fallen = rule is not None and _loss(rule, guard.before, guard.after) > margin
    if groups < policy.min_guard or guard.low is None or guard.high is None:
        return (
            (Standing.SUSPECT, f"{few}, and what was seen is {words}")
            if fallen
            else (Standing.UNMEASURED, few)
        )
    if rule is None:
        return Standing.HOLDS, ""
    if fallen:
        return Standing.WORSE, words
    if (
        max(_loss(rule, guard.before, guard.before + end) for end in (guard.low, guard.high))
        > margin
    ):
        if _too_few(guard, groups, margin, policy):
            return (
                Standing.UNMEASURED,
                f"{groups} groups are too few to hold its interval to the margin, whatever they "
                "show",
            )
        return (
            Standing.OPEN,
            f"may be {words} (the change lies within {guard.low:+.4f} .. {guard.high:+.4f}); more "
            "cases would tell",
        )
    return Standing.HOLDS, ""


def ability(guard: Guard) -> float | None:
    """How far what runs today stands from knowing nothing (0) towards all that can be had (1); None
    where that is not known."""
    rule = RULES.get(guard.name)
    if rule is None or rule.better == 0 or guard.before is None:
        return None
    if rule.better > 0:
        return guard.before
    return None if guard.chance is None else 1 - guard.before / guard.chance


def _at_most(guard: Guard, able: float) -> float:
    """How able it may be: of a share the upper end of its interval, since few items right may be
    chance as well."""
    if guard.chance is not None:
        return able
    groups = guard.n if guard.clusters is None else guard.clusters
    return wilson(round(able * groups), groups).high


def margin_of(rule: Rule, before: float, policy: GatePolicy) -> float:
    """How much worse it may get, for what runs today at `before`.

    In nats it is the margin, or `relative_nats` of what there is. Of a share it is the margin, but
    no more than half of what there is: who solves one task in five must not lose them all. An owner
    who allows to lose half of all items is taken at their word.
    """
    margin: float = getattr(policy, rule.margin)
    if rule.better < 0:
        return max(margin, policy.relative_nats * before)
    if rule.better > 0 and margin < 0.5:
        return min(margin, before / 2)
    return margin


def lenience(known: Standing, policy: GatePolicy) -> Lenience | None:
    """What becomes of a candidate with a guard of this standing; None where nothing has to be said."""
    if known is Standing.SUSPECT:
        return "reject" if policy.unmeasured_guard == "reject" else "canary"
    verdicts: dict[Standing, Lenience] = {
        Standing.WORSE: "reject",
        Standing.OPEN: policy.open_guard,
        Standing.UNMEASURED: policy.unmeasured_guard,
        Standing.NEAR_CHANCE: "allow",
    }
    return verdicts.get(known)


def _too_few(guard: Guard, groups: int, margin: float, policy: GatePolicy) -> bool:
    """Whether the interval says nothing about the margin; of unequal groups those count that tell."""
    if policy.min_interval is not None:
        return groups < policy.min_interval
    spread = guard.spread
    return (
        spread is not None
        and spread.limit is not None
        and no_change_halfwidth(spread.degrees + 1, 1 - policy.alpha) > margin
    )


def described(guard: Guard, words: str) -> str:
    """A reason of the gate."""
    seen = (
        ""
        if guard.before is None or guard.after is None
        else f"{guard.before:.4f} -> {guard.after:.4f} on {guard.n} items, "
    )
    return f"guard {guard.name}: {seen}{words}"


def _loss(rule: Rule, before: float, after: float) -> float:
    """How much worse, in the unit of the margin."""
    if rule.better:
        return rule.better * (before - after)
    low, high = sorted((max(before, 1e-9), max(after, 1e-9)))
    return high / low
