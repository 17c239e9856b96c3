"""What a loop says where the reviewed cases (gold) cannot show a gain any more.

Every look at the same cases, and every experiment, makes the next one stricter. So a loop that goes
on for months needs cases from time to time, and asks for them.
"""

from __future__ import annotations

from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.rotation import gold_power
from thumbwheel.loop.trigger_types import TriggerConfig
from thumbwheel.models.types import Agent


def gold_request(ws: Workspace, agent: Agent, config: TriggerConfig) -> str | None:
    """Return a request to a person for reviewed cases; None if there are enough, or the loop does
    not ask."""
    if config.gold_gain is None:
        return None
    discordance = ws.settings(DatasetConfig, "dataset").plan.discordance
    power = gold_power(ws, agent, config.gold_gain, discordance)
    wanted = f"{100 * config.gold_gain:.0f} points"
    add = f"thumbwheel case add --agent {agent.slug}"
    if not power.cases:
        return (
            "no case is reviewed, so the gate allows a canary at most; "
            f"{power.missing} would show a gain of {wanted}: {add}"
        )
    if not power.missing:
        return None
    shows = "are too few to show any gain"
    if power.detectable is not None:
        shows = f"show a gain from {100 * power.detectable:.0f} points"
    earlier = power.look - 1
    times = "once" if earlier == 1 else f"{earlier} times"
    used = f", used {times} before," if earlier else ""
    return (
        f"{power.cases} reviewed cases{used} {shows}; "
        f"{power.missing} more would show {wanted}: {add}"
    )
