"""Which shape a method learns from here, and why: read from the data plan, not from the method's
name alone."""

from __future__ import annotations

from dataclasses import dataclass

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.dataplan import DataPlan, ShapePlan, plural
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
"""Method -> the shapes that it can learn from; the one with the most training rows is taken, the
first of equals."""
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
    """A method, its shape, and the reasons, a sentence each."""

    method: str
    shape: str
    why: list[str]


def choose(
    ws: Workspace, agent: str, method: str = AUTO, config: DatasetConfig | None = None
) -> Choice:
    """The shape for `method`; `auto` is the method that the data plan recommends.

    Raises InputError for an unknown method, DataError where nothing of `agent` suits it or nothing
    is recommended.
    """
    if method != AUTO and method not in SHAPES_OF:
        known = [AUTO, *SHAPES_OF]
        raise InputError(
            f"method {method!r}",
            "there is no such method",
            f"Known: {', '.join(known)}.{nearest(method, known)}",
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
    possible = SHAPES_OF[method]
    shape = max(
        possible, key=lambda name: (plan.shapes[name].counts["train"], -possible.index(name))
    )
    found = plan.shapes[shape]
    if not found.rows:
        left = ", ".join(f"{count:,} x {reason}" for reason, count in list(found.drops.items())[:3])
        instead = ", ".join(
            name for name, one in SHAPES_OF.items() if any(plan.shapes[each].rows for each in one)
        )
        raise DataError(
            f"method {method!r} for agent {plan.agent!r}",
            f"it {LEARNS[shape]}, and there are no {shape}{f' (left out: {left})' if left else ''}",
            f"Methods with data: {instead or 'none'}. See thumbwheel dataset plan --agent "
            f"{plan.agent}",
        )
    why = [f"{method} {LEARNS[shape]}: {shape}, {_sources(found)}"]
    others = [f"{name} would give {plan.shapes[name].rows:,}" for name in possible if name != shape]
    why += [f"of what {method} can read it is the most: {', '.join(others)}"] if others else []
    judged = plan.methods.get(method)
    if judged and judged.missing:
        needed = ", ".join(
            plural(count, word.removesuffix("s")) for word, count in judged.missing.items()
        )
        why.append(f"this is weak: {needed} more are needed")
    return shape, why


def _sources(found: ShapePlan) -> str:
    return ", ".join(f"{count:,} from {origin}" for origin, count in found.origins.items())
