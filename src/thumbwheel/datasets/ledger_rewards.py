"""Rewards of the ledger as what says how good an answer is: the values of a build, and the
judgement of one trace by them.

A person's word wins: rewards fill what nobody judged. Corrections and preferences stay what they
are: a text, and a direct comparison. A trace that nobody judged and that has no reward is neither
good nor bad. Does not live here: how a reward is combined (`rewards/combine`), when a dataset of
them is out of date (`stale`).
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from thumbwheel.core.errors import DataError
from thumbwheel.datasets.types import REWARD
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards import ledger
from thumbwheel.rewards.aggregate import ROUNDING, verdict_value
from thumbwheel.rewards.component import components
from thumbwheel.rewards.function import Status
from thumbwheel.rewards.types import Judgement, LabelConfig, Value

SCALE = (0.0, 1.0)


class Reward(NamedTuple):
    """The combined reward of a trace; `heard`: whether a component that reads what was said about
    it is a part of it."""

    value: float
    heard: bool


def ledger_values(ws: Workspace, agent: str, as_of: datetime | None = None) -> dict[str, Reward]:
    """Trace -> its combined reward, from 0 to 1; raises DataError where there is none, or one
    outside of that."""
    config = ledger.settings(ws, agent)
    parts, weights = (
        components(ws, agent, config),
        {name: part.weight for name, part in config.parts().items()},
    )
    hearing = [
        part.name for part in parts if "feedback" in part.function.reads and weights[part.name]
    ]
    with ws.db.read() as connection:
        every = ledger.rewards(connection, agent, config, parts, as_of)
        found = {
            one.target_id: Reward(
                one.value,
                any(
                    name in one.scores and one.scores[name].status is Status.OK for name in hearing
                ),
            )
            for one in every
            if one.value is not None
        }
    if not found:
        raise DataError(
            f"rewards of {agent!r}",
            "the ledger has none",
            f"Judge its answers first: thumbwheel reward run --agent {agent}",
        )
    if beyond := sum(not 0 <= one.value <= 1 for one in found.values()):
        fix = "Leave out the component that is to blame, or build with the reward 'feedback'"
        if config.preset == "ocd":
            fix = (
                "The preset ocd leaves 0..1, the default stays inside: rewards: {preset: default} "
                "in the settings, then reward run"
            )
        raise DataError(
            f"rewards of {agent!r}",
            f"{beyond} lie outside of 0..1, so that they are no values of answers",
            fix,
        )
    return found


def ledger_warnings(ws: Workspace, agent: str, as_of: datetime | None = None) -> list[str]:
    """What a reader of these values has to know: components with a weight that have never judged
    anything."""
    config = ledger.settings(ws, agent)
    with ws.db.read() as connection:
        names = ledger.not_run(connection, agent, config, components(ws, agent, config), as_of)
    return [ledger.not_run_warning(agent, names)] if names else []


def rewarded(
    said: Judgement | None, trace_id: str, reward: Reward | None, config: LabelConfig
) -> Judgement | None:
    """What is known about a trace where rewards say how good answers are: what people `said`, and
    `reward` where they said nothing.

    Where people judged, their verdict is the label. The reward stays the number where it lies on
    their side, and gives way to theirs, or to their verdict as a number, where it does not. A
    correction stays what it is. A reward alone is automatic, unless a component of it heard a
    person.
    """
    if said is None and reward is None:
        return None
    judgement = said or Judgement(trace_id, None, None, None, (), False, None, False)
    if _judged_by_people(judgement):
        return judgement._replace(value=_number(judgement, reward))
    if reward is None:
        return judgement._replace(good=None, strength=None, kind=None, conflict=False, value=None)
    heard_people = reward.heard and said is not None and _by_people(said)
    good = (
        True
        if reward.value >= config.good_from - ROUNDING
        else False
        if reward.value <= config.bad_to + ROUNDING
        else None
    )
    return judgement._replace(
        good=good,
        strength=None if good is None else 1.0,
        kind=REWARD,
        conflict=False,
        value=Value(reward.value, SCALE, REWARD, judgement.feedback_ids, not heard_people),
        automatic=not heard_people,
    )


def _number(judgement: Judgement, reward: Reward | None) -> Value | None:
    own = judgement.value if judgement.value and not judgement.value.automatic else None
    if reward is not None and judgement.good is not None:
        combined = Value(reward.value, SCALE, REWARD, judgement.feedback_ids)
        if combined.sides_with(judgement.good):
            return combined
    return own or verdict_value(judgement, SCALE)


def _judged_by_people(said: Judgement) -> bool:
    """Whether a person called the answer good or bad, or gave it a number."""
    return bool(said.feedback_ids and not said.automatic) or bool(
        said.value and not said.value.automatic
    )


def _by_people(said: Judgement) -> bool:
    return _judged_by_people(said) or bool(said.edit and not said.edit.automatic)
