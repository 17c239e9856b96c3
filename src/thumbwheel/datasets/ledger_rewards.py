"""Datasets that take the quality of an answer from the ledger of rewards: the rewards of all
traces, and the judgement of one trace by its reward.

People win: a reward counts only where nobody judged. Corrections and preferences stay as they are:
a text, and a direct comparison. A trace with neither a judgement nor a reward is neither good nor
bad. How a reward is combined is in `rewards/combine`, when a dataset of rewards is out of date in
`stale`.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from thumbwheel.core.errors import DataError
from thumbwheel.datasets.types import REWARD
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.aggregate import ROUNDING, verdict_value
from thumbwheel.rewards.component import components
from thumbwheel.rewards.function import JudgementStatus
from thumbwheel.rewards.presets import PRESETS
from thumbwheel.rewards.types import Judgement, LabelConfig, Value

SCALE = (0.0, 1.0)


class TraceReward(NamedTuple):
    """The combined reward of a trace; `uses_feedback`: a component that reads the feedback about
    the trace contributed to it. `firm` is the reward without its weak components, as `next_turn`,
    and None where it has no others."""

    value: float
    uses_feedback: bool
    firm: float | None


def ledger_values(
    ws: Workspace, agent: Agent, as_of: datetime | None = None
) -> dict[str, TraceReward]:
    """Return trace id -> its combined reward, from 0 to 1. Raises DataError if there is none, or
    one out of range."""
    config = ledger.settings(ws, agent.slug)
    parts = components(ws, agent.slug, config)
    weights = {name: part.weight for name, part in config.parts().items()}
    feedback_parts = [
        part.name for part in parts if "feedback" in part.function.reads and weights[part.name]
    ]
    weak_parts = {part.name for part in parts if part.function.weak}
    rewards: dict[str, TraceReward] = {}
    with ws.db.read() as connection:
        for combined in ledger.rewards(connection, agent, config, parts, as_of):
            if combined.value is None:
                continue
            scores = [combined.scores.get(name) for name in feedback_parts]
            uses_feedback = any(score and score.status is JudgementStatus.OK for score in scores)
            firm: float | None = combined.value
            if weak_parts & combined.scores.keys():
                firm_scores = {
                    name: score for name, score in combined.scores.items() if name not in weak_parts
                }
                firm = config.combine(firm_scores)
            rewards[combined.target_id] = TraceReward(combined.value, uses_feedback, firm)
    if not rewards:
        raise DataError(
            f"rewards of {agent.slug!r}",
            "the ledger has no rewards",
            f"Judge its answers first: thumbwheel reward run --agent {agent.slug}",
        )
    out_of_range = sum(not 0 <= reward.value <= 1 for reward in rewards.values())
    if out_of_range:
        fix = "Leave out the component that is to blame, or build with the reward 'feedback'"
        if PRESETS.get(config.preset).leaves_unit_interval:
            fix = (
                f"The preset {config.preset} leaves 0..1, the default stays inside: rewards: "
                "{preset: default} in the settings, then reward run"
            )
        raise DataError(
            f"rewards of {agent.slug!r}",
            f"{out_of_range} are outside 0..1, so they are not values of answers",
            fix,
        )
    return rewards


def ledger_warnings(ws: Workspace, agent: Agent, as_of: datetime | None = None) -> list[str]:
    """Return warnings about these rewards: components with a weight that have never judged
    anything."""
    config = ledger.settings(ws, agent.slug)
    with ws.db.read() as connection:
        names = ledger.not_run(connection, agent, config, components(ws, agent.slug, config), as_of)
    return [ledger.not_run_warning(agent.slug, names)] if names else []


def with_reward(
    feedback: Judgement | None, trace_id: str, reward: TraceReward | None, config: LabelConfig
) -> Judgement | None:
    """Return the judgement of a trace by its `feedback`, and by its `reward` if people did not
    judge it; None without both.

    If people judged, their verdict is the label. The reward stays the number if it agrees with the
    verdict; otherwise the people's own number replaces it, or their verdict as a number. A
    correction stays unchanged. A reward alone is automatic, unless a component of it read feedback
    of a person. A weak component counts in a reward alone, and makes it automatic: it is never
    combined with a person's judgement, and the gate takes no automatic judgement.
    """
    if feedback is None and reward is None:
        return None
    judgement = feedback or Judgement(trace_id, None, None, None, (), False, None, False)
    if _judged_by_people(judgement):
        return judgement._replace(value=_number(judgement, reward))
    if reward is None:
        return judgement._replace(good=None, strength=None, kind=None, conflict=False, value=None)
    is_firm = reward.firm == reward.value
    from_people = is_firm and reward.uses_feedback and _by_people(judgement)
    good = None
    if reward.value >= config.good_from - ROUNDING:
        good = True
    elif reward.value <= config.bad_to + ROUNDING:
        good = False
    return judgement._replace(
        good=good,
        strength=None if good is None else 1.0,
        kind=REWARD,
        conflict=False,
        value=Value(reward.value, SCALE, REWARD, judgement.feedback_ids, not from_people),
        automatic=not from_people,
    )


def _number(judgement: Judgement, reward: TraceReward | None) -> Value | None:
    if reward is not None and reward.firm is not None and judgement.good is not None:
        combined = Value(reward.firm, SCALE, REWARD, judgement.feedback_ids)
        if combined.sides_with(judgement.good):
            return combined
    if judgement.value and not judgement.value.automatic:
        return judgement.value
    return verdict_value(judgement, SCALE)


def _judged_by_people(judgement: Judgement) -> bool:
    """Return whether a person called the answer good or bad, or gave it a number."""
    called = bool(judgement.feedback_ids) and not judgement.automatic
    numbered = judgement.value is not None and not judgement.value.automatic
    return called or numbered


def _by_people(judgement: Judgement) -> bool:
    """Return whether a person judged the answer or corrected it."""
    corrected = judgement.edit is not None and not judgement.edit.automatic
    return _judged_by_people(judgement) or corrected
