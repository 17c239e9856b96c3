"""Rewards of the ledger as what says how good an answer is: the values of a build, and the judgement of one trace by them.

Corrections and preferences stay what they are: a text, and a direct comparison. A trace without a reward is neither good nor bad.
Does not live here: how a reward is combined (`rewards/combine`), when a dataset of them is out of date (`stale`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.reading import EDGE
from thumbwheel.rewards.types import Judgement, LabelConfig, Value

SCALE = (0.0, 1.0)


def ledger_values(ws: Workspace, agent: str, as_of: datetime | None = None) -> dict[str, float]:
    """Trace -> its combined reward, from 0 to 1; raises DataError where there is none, or one outside of that."""
    config = ledger.settings(ws, agent)
    with ws.db.read() as connection:
        every = ledger.rewards(connection, agent, config, components(ws, agent, config), as_of)
        found = {one.target_id: one.value for one in every if one.value is not None}
    if not found:
        raise DataError(f"rewards of {agent!r}", "the ledger has none", f"Judge its answers first: thumbwheel reward run --agent {agent}")
    if beyond := sum(not 0 <= value <= 1 for value in found.values()):
        fix = "Leave out the component that is to blame, or build with the reward 'feedback'"
        raise DataError(f"rewards of {agent!r}", f"{beyond} lie outside of 0..1, so that they are no values of answers", fix)
    return found


def rewarded(said: Judgement | None, trace_id: str, value: float | None, config: LabelConfig) -> Judgement | None:
    """What the reward `value` says about a trace, with the correction of what was `said`. Without people it is automatic."""
    if said is None and value is None:
        return None
    blank = said or Judgement(trace_id, None, None, None, (), False, None, False, automatic=True)
    if value is None:
        return replace(blank, good=None, strength=None, kind=None, conflict=False, value=None)
    good = True if value >= config.good_from - EDGE else False if value <= config.bad_to + EDGE else None
    number = Value(value, SCALE, "reward", blank.feedback_ids)
    return replace(blank, good=good, strength=None if good is None else 1.0, kind="reward", conflict=False, value=number)
