"""Rewards of the ledger as what says how good an answer is: the values of a build, and the judgement of one trace by them.

Corrections and preferences stay what they are: a text, and a direct comparison. A trace without a reward is neither good nor bad.
Does not live here: how a reward is combined (`rewards/combine`), when a dataset of them is out of date (`stale`).
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.function import Status
from thumbwheel.rewards.reading import EDGE
from thumbwheel.rewards.types import Judgement, LabelConfig, Value

SCALE = (0.0, 1.0)


class Reward(NamedTuple):
    """The combined reward of a trace; `heard`: whether a component that reads what was said about it is a part of it."""

    value: float
    heard: bool


def ledger_values(ws: Workspace, agent: str, as_of: datetime | None = None) -> dict[str, Reward]:
    """Trace -> its combined reward, from 0 to 1; raises DataError where there is none, or one outside of that."""
    config = ledger.settings(ws, agent)
    parts, weights = components(ws, agent, config), {name: part.weight for name, part in config.parts().items()}
    hearing = [part.name for part in parts if "feedback" in part.function.reads and weights[part.name]]
    with ws.db.read() as connection:
        every = ledger.rewards(connection, agent, config, parts, as_of)
        found = {
            one.target_id: Reward(one.value, any(name in one.scores and one.scores[name].status is Status.OK for name in hearing))
            for one in every
            if one.value is not None
        }
    if not found:
        raise DataError(f"rewards of {agent!r}", "the ledger has none", f"Judge its answers first: thumbwheel reward run --agent {agent}")
    if beyond := sum(not 0 <= one.value <= 1 for one in found.values()):
        fix = "Leave out the component that is to blame, or build with the reward 'feedback'"
        raise DataError(f"rewards of {agent!r}", f"{beyond} lie outside of 0..1, so that they are no values of answers", fix)
    return found


def rewarded(said: Judgement | None, trace_id: str, reward: Reward | None, config: LabelConfig) -> Judgement | None:
    """What `reward` says about a trace, with the correction of what was `said`. It is automatic unless a person said something that
    makes an answer good or bad, gives it a number or corrects it, and a component that hears that is a part of it."""
    if said is None and reward is None:
        return None
    blank = said or Judgement(trace_id, None, None, None, (), False, None, False)
    if reward is None:
        return blank._replace(good=None, strength=None, kind=None, conflict=False, value=None)
    value, automatic = reward.value, not (reward.heard and said is not None and _by_people(said))
    good = True if value >= config.good_from - EDGE else False if value <= config.bad_to + EDGE else None
    number, strength = Value(value, SCALE, "reward", blank.feedback_ids, automatic), None if good is None else 1.0
    return blank._replace(good=good, strength=strength, kind="reward", conflict=False, value=number, automatic=automatic)


def _by_people(said: Judgement) -> bool:
    edit, value = said.edit, said.value
    return bool(said.feedback_ids and not said.automatic) or bool(value and not value.automatic) or bool(edit and not edit.automatic)
