"""Whether the gate could decide on a version that a turn trains now.

A turn that nobody can decide on costs a training and hears its events for nothing.
"""

from __future__ import annotations

import math

from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.models.types import Agent
from thumbwheel.training.data_plan import data_plan


def missing_for_the_gate(ws: Workspace, agent: Agent) -> str | None:
    """Say what the gate lacks; None where it has enough, or nothing can be trained yet."""
    rules = ws.settings(DatasetConfig, "dataset")
    plan = data_plan(ws, agent.slug, rules)
    if not plan.eligible:
        return None
    if plan.gold:
        basis, held_out = "gold", "reviewed cases"
    elif plan.held_cases:
        basis, held_out = "feedback cases in gate", "held-out cases"
    else:
        basis, held_out = "rows in gate", "held-out rated questions"
    needed = policy_of(ws, agent).min_cases
    groups = plan.power[basis].n
    if groups >= needed:
        return None
    ways = f"{needed} reviewed cases (thumbwheel case add, or queue approve)"
    if rules.gate:
        ways += f", or about {math.ceil(needed / rules.gate)} different rated questions"
    return (
        f"the gate decides on {needed} different {held_out} at least, and there are {groups}: "
        f"it needs {ways}"
    )
