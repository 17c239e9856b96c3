"""Chooses the shape that a method learns from for an agent, and gives the reasons, by the data
plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.dataplan import DataPlan, plural
from thumbwheel.datasets.learner import Learner
from thumbwheel.datasets.plan import data_plan
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace

AUTO = "auto"


@dataclass(frozen=True)
class ShapeChoice:
    """A method, its shape, and the reasons, one sentence each."""

    method: str
    shape: str
    why: list[str]


def choose(
    ws: Workspace,
    agent: str,
    learners: Mapping[str, Learner],
    method: str = AUTO,
    config: DatasetConfig | None = None,
) -> ShapeChoice:
    """Choose the shape for `method`; `auto` is the method that the data plan recommends.

    Raises InputError for an unknown method, DataError if the agent has no data for it or no method
    is recommended.
    """
    methods = [AUTO, *learners]
    if method not in methods:
        raise InputError(
            f"method {method!r}",
            "there is no such method",
            f"Known: {', '.join(methods)}.{nearest(method, methods)}",
        )
    plan = data_plan(ws, agent, learners, config)
    if method != AUTO:
        return ShapeChoice(method, *_shape(plan, learners, method))
    if plan.recommended is None:
        raise DataError(f"feedback of agent {agent!r}", plan.why, plan.to_words()[-1])
    shape, why = _shape(plan, learners, plan.recommended)
    return ShapeChoice(
        plan.recommended, shape, [f"{plan.recommended} is recommended, because {plan.why}", *why]
    )


def _shape(plan: DataPlan, learners: Mapping[str, Learner], method: str) -> tuple[str, list[str]]:
    """Return the shape for `method`, and the reasons. Raises DataError if it would have no rows."""
    possible = learners[method].shapes
    shape = max(possible, key=lambda name: plan.shapes[name].counts["train"])
    shape_plan = plan.shapes[shape]
    if not shape_plan.rows:
        raise _no_rows(plan, learners, method, shape)
    origins = ", ".join(f"{count:,} from {origin}" for origin, count in shape_plan.origins.items())
    why = [f"{method} {SHAPES.get(shape).teaches}: {shape}, {origins}"]
    others = [f"{name} would give {plan.shapes[name].rows:,}" for name in possible if name != shape]
    if others:
        why.append(f"of what {method} can read it is the most: {', '.join(others)}")
    method_plan = plan.methods.get(method)
    if method_plan and method_plan.missing:
        needed = ", ".join(
            plural(count, word.removesuffix("s")) for word, count in method_plan.missing.items()
        )
        why.append(f"this is weak: {needed} more are needed")
    return shape, why


def _no_rows(plan: DataPlan, learners: Mapping[str, Learner], method: str, shape: str) -> DataError:
    reason = f"it {SHAPES.get(shape).teaches}, and there are no {shape}"
    largest_drops = list(plan.shapes[shape].drops.items())[:3]
    if largest_drops:
        drops = ", ".join(f"{count:,} x {drop}" for drop, count in largest_drops)
        reason += f" (left out: {drops})"
    with_data = []
    for name, learner in learners.items():
        if any(plan.shapes[possible].rows for possible in learner.shapes):
            with_data.append(name)
    return DataError(
        f"method {method!r} for agent {plan.agent!r}",
        reason,
        f"Methods with data: {', '.join(with_data) or 'none'}. See thumbwheel dataset plan --agent "
        f"{plan.agent}",
    )
