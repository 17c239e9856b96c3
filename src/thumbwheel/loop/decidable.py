"""Whether the gate could decide on a version that a turn trains now.

A turn that nobody can decide on costs a training and hears its events for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from thumbwheel.datasets.dataplan import DataPlan
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.models.types import Agent
from thumbwheel.training.data_plan import data_plan

GOLD, CASES, ROWS = "gold", "feedback cases in gate", "rows in gate"
"""What the gate could decide on, as `DataPlan.power` calls it."""
IN_WORDS = {GOLD: "reviewed cases", CASES: "held-out cases", ROWS: "held-out rated questions"}


@dataclass(frozen=True)
class Shortage:
    """Of what the gate has too few to decide on."""

    basis: str
    needed: int
    there: int
    questions: int | None
    """Different rated questions of which enough would be held out; None where none are."""


def shortage(ws: Workspace, agent: Agent, plan: DataPlan, rules: DatasetConfig) -> Shortage | None:
    """Return which test data the gate lacks by this plan, built with these rules; None if it has
    enough."""
    basis = GOLD if plan.gold else CASES if plan.held_cases else ROWS
    needed, there = policy_of(ws, agent).min_cases, plan.power[basis].n
    if there >= needed:
        return None
    return Shortage(basis, needed, there, math.ceil(needed / rules.gate) if rules.gate else None)


def missing_for_the_gate(ws: Workspace, agent: Agent) -> str | None:
    """Return which data the gate lacks; None if it has enough, or nothing can be trained yet."""
    rules = ws.settings(DatasetConfig, "dataset")
    return missing_by_plan(ws, agent, data_plan(ws, agent.slug, rules), rules)


def missing_by_plan(
    ws: Workspace, agent: Agent, plan: DataPlan, rules: DatasetConfig
) -> str | None:
    """Return which data the gate lacks by this plan; None if it has enough, or nothing can be
    trained yet."""
    lack = shortage(ws, agent, plan, rules) if plan.eligible else None
    if lack is None:
        return None
    count, more = lack.needed, ""
    if lack.basis == GOLD:
        count, more = lack.needed - lack.there, "more "
    ways = (
        f"{count} {more}reviewed cases (thumbwheel case from-traces --count {count} --agent "
        f"{agent.slug} --dry-run, or case add, or queue approve)"
    )
    if lack.questions is not None:
        ways += f", or about {lack.questions} different rated questions"
    return (
        f"the gate decides on {lack.needed} different {IN_WORDS[lack.basis]} at least, and there "
        f"are {lack.there}: it needs {ways}"
    )
