"""Declarations: the policy of the gate is fixed for an agent once, before it is needed, and every
change of it is kept and said.

The settings of the section `gate` are where a declaration starts from; the first decision declares
them where nobody did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from thumbwheel.core.config import build
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.policy import Declaration, GatePolicy
from thumbwheel.models import versions

FIRST = "in force at the first decision"


def declarations(ws: Workspace, agent: str) -> list[Declaration]:
    """What was declared for `agent`, oldest first; the last one counts."""
    agent_id = versions.require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.declarations(connection, agent_id)


def declare(ws: Workspace, agent: str, options: Mapping[str, Any], reason: str = "") -> Declaration:
    """Fix the policy: what was declared (first: the settings) with `options` over it. Raises
    InputError for a change without a reason."""
    known = declarations(ws, agent)
    start = known[-1].policy if known else ws.settings(GatePolicy, "gate")
    policy = build(GatePolicy, {**start.model_dump(mode="json"), **options}, "the declaration")
    if known and policy == start:
        return known[-1]
    if known and not reason:
        what = ", ".join(differences(start, policy))
        raise InputError(
            f"gate of agent {agent!r}",
            f"it is declared, and this changes it ({what})",
            "Say why: --reason TEXT",
        )
    agent_id = versions.require_agent(ws, agent)
    return ws.db.write(
        lambda connection: store.add_declaration(connection, agent_id, policy, reason)
    )


def policy_of(ws: Workspace, agent: str) -> GatePolicy:
    """The policy in force: what was declared last, else the settings."""
    known = declarations(ws, agent)
    return known[-1].policy if known else ws.settings(GatePolicy, "gate")


def changes(
    known: Sequence[Declaration], used: GatePolicy, settings: GatePolicy
) -> tuple[str, ...]:
    """Everything in which `used` departs from what was declared first, and settings that were
    changed without being declared."""
    found = []
    for before, after in pairwise(known):
        what = ", ".join(differences(before.policy, after.policy))
        found.append(
            f"the gate was declared anew on {after.recorded_at:%Y-%m-%d} ({what}): {after.reason}"
        )
    declared = known[-1].policy if known else used
    if used != declared:
        found.append(
            "decided under another policy than the declared one "
            f"({', '.join(differences(declared, used))})"
        )
    elif settings not in (declared, GatePolicy()):
        found.append(
            "settings that are not declared do not count "
            f"({', '.join(differences(declared, settings))})"
        )
    return tuple(found)


def differences(before: GatePolicy, after: GatePolicy) -> list[str]:
    """In words, field by field."""
    pairs = (
        (name, getattr(before, name), getattr(after, name)) for name in GatePolicy.model_fields
    )
    return [f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in pairs if old != new]


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
