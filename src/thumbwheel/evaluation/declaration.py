"""Declarations: the gate's policy is fixed for an agent once, before it is needed. Every change is
stored and shown.

A declaration starts from the settings of the section `gate`. Where nobody declared them, the first
decision does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from thumbwheel.core.config import build
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import store
from thumbwheel.evaluation.policy import Declaration, GatePolicy
from thumbwheel.models.types import Agent

FIRST = "in force at the first decision"


def declarations(ws: Workspace, agent: Agent) -> list[Declaration]:
    """Return the declared policies of `agent`, oldest first; the last one counts."""
    with ws.db.read() as connection:
        return store.declarations(connection, agent.id)


def declare(
    ws: Workspace, agent: Agent, options: Mapping[str, Any], reason: str = ""
) -> Declaration:
    """Declare the policy: the one in force (at first: the settings) with `options` over it. Raises
    InputError for a change without a reason."""
    earlier = declarations(ws, agent)
    current = earlier[-1].policy if earlier else ws.settings(GatePolicy, "gate")
    policy = build(GatePolicy, {**current.model_dump(mode="json"), **options}, "the declaration")
    if earlier and policy == current:
        return earlier[-1]
    if earlier and not reason:
        changed = ", ".join(differences(current, policy))
        raise InputError(
            f"gate of agent {agent.slug!r}",
            f"it is already declared, and this changes it ({changed})",
            "Say why: --reason TEXT",
        )
    return ws.db.write(
        lambda connection: store.add_declaration(connection, agent.id, policy, reason),
        of_agent(agent.id),
    )


def policy_of(ws: Workspace, agent: Agent) -> GatePolicy:
    """Return the policy in force: the last declared one, else the settings."""
    declared = declarations(ws, agent)
    return declared[-1].policy if declared else ws.settings(GatePolicy, "gate")


def changes(
    declared: Sequence[Declaration], used: GatePolicy, settings: GatePolicy
) -> tuple[str, ...]:
    """Describe each redeclaration, a `used` policy other than the declared one, and settings that
    were changed without a declaration."""
    words = []
    for before, after in pairwise(declared):
        changed = ", ".join(differences(before.policy, after.policy))
        words.append(
            f"the gate was declared anew on {after.recorded_at:%Y-%m-%d} ({changed}): "
            f"{after.reason}"
        )
    in_force = declared[-1].policy if declared else used
    if used != in_force:
        changed = ", ".join(differences(in_force, used))
        words.append(f"decided under another policy than the declared one ({changed})")
    elif settings not in (in_force, GatePolicy()):
        changed = ", ".join(differences(in_force, settings))
        words.append(f"settings that are not declared do not count ({changed})")
    return tuple(words)


def differences(before: GatePolicy, after: GatePolicy) -> list[str]:
    """Return the fields that differ, in words."""
    words = []
    for name in GatePolicy.model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            words.append(f"{name} {_value_in_words(old)} -> {_value_in_words(new)}")
    return words


def _value_in_words(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
