"""Chooses the shape that a method learns from for an agent, and gives the reasons, by the data
plan."""

from __future__ import annotations

from dataclasses import dataclass

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.dataplan import DataPlan, plural
from thumbwheel.datasets.plan import data_plan
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace

AUTO = "auto"
SHAPES_OF = {
    "sft": ("chats",),
    "dpo": ("pairs",),
    "kto": ("labels",),
    "reward": ("pairs", "scored"),
    "grpo": ("prompts",),
    "ppo": ("prompts",),
    "grpo_offline": ("groups",),
}
"""Method -> the shapes that it can learn from. The one with the most training rows is chosen; of
equals the first."""
LEARNS = {
    "chats": "imitates good answers",
    "pairs": "learns from a better and a worse answer to the same prompt",
    "labels": "learns from single answers that were called good or bad",
    "scored": "learns numbers",
    "prompts": "answers afresh and learns from what judges the answers",
    "groups": "learns from recorded answers to one prompt, by how good each was beside the others",
}


@dataclass(frozen=True)
class Choice:
    """A method, its shape, and the reasons, one sentence each."""

    method: str
    shape: str
    why: list[str]


def choose(
    ws: Workspace, agent: str, method: str = AUTO, config: DatasetConfig | None = None
) -> Choice:
    """The shape for `method`; `auto` is the method that the data plan recommends.

    Raises InputError for an unknown method, DataError if the agent has no data for it or no method
    is recommended.
    """
    methods = [AUTO, *SHAPES_OF]
    if method not in methods:
        raise InputError(
            f"method {method!r}",
            "there is no such method",
            f"Known: {', '.join(methods)}.{nearest(method, methods)}",
        )
    plan = data_plan(ws, agent, config)
    if method != AUTO:
        return Choice(method, *_shape(plan, method))
    if plan.recommended is None:
        raise DataError(f"feedback of agent {agent!r}", plan.why, plan.to_words()[-1])
    shape, why = _shape(plan, plan.recommended)
    return Choice(
        plan.recommended, shape, [f"{plan.recommended} is recommended, because {plan.why}", *why]
    )


def _shape(plan: DataPlan, method: str) -> tuple[str, list[str]]:
    """The shape for `method`, and the reasons."""
    possible = SHAPES_OF[method]
    shape = max(possible, key=lambda name: plan.shapes[name].counts["train"])
    shape_plan = plan.shapes[shape]
    if not shape_plan.rows:
        raise _no_rows(plan, method, shape)
    origins = ", ".join(f"{count:,} from {origin}" for origin, count in shape_plan.origins.items())
    why = [f"{method} {LEARNS[shape]}: {shape}, {origins}"]
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


def _no_rows(plan: DataPlan, method: str, shape: str) -> DataError:
    reason = f"it {LEARNS[shape]}, and there are no {shape}"
    largest_drops = list(plan.shapes[shape].drops.items())[:3]
    if largest_drops:
        drops = ", ".join(f"{count:,} x {drop}" for drop, count in largest_drops)
        reason += f" (left out: {drops})"
    with_data = []
    for name, shapes in SHAPES_OF.items():
        if any(plan.shapes[shape].rows for shape in shapes):
            with_data.append(name)
    return DataError(
        f"method {method!r} for agent {plan.agent!r}",
        reason,
        f"Methods with data: {', '.join(with_data) or 'none'}. See thumbwheel dataset plan --agent "
        f"{plan.agent}",
    )
