"""`thumbwheel gate`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.evaluation.policy import Declaration, GatePolicy, GateState
from thumbwheel.evaluation.result import PolicyDecision

gate = typer.Typer()
Agent = Annotated[str, typer.Option(help="The agent whose candidates the gate judges.")]


@gate.command()
@options_of(GatePolicy)
def declare(
    ctx: typer.Context,
    options: dict[str, Any],
    agent: Agent,
    reason: Annotated[str, typer.Option(help="Why; needed to change what is declared.")] = "",
) -> present.Answer[Declaration]:
    """Declare once what a candidate of an agent must show, before it is needed.

    The declaration starts from the settings (section `gate`) and stays in force, whatever the
    settings become. A later change is stored with its reason, and every decision under it says so.
    Without a declaration, the first decision declares the settings.

    Example: thumbwheel gate declare --agent support --min-cases 100 --margin-eos 0.02
    """
    from thumbwheel.evaluation import declaration as verbs
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        declaration = verbs.declare(ws, require_agent(ws, agent), options, reason)
    return present.page(declaration, _declared_page(agent, [declaration]))


@gate.command()
def show(ctx: typer.Context, agent: Agent) -> present.Answer[GateState]:
    """Show the gate's requirements for an agent's candidates, and how they were changed.

    Example: thumbwheel gate show --agent support
    """
    from thumbwheel.evaluation import declaration as verbs
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        judged = require_agent(ws, agent)
        declared, policy = verbs.declarations(ws, judged), verbs.policy_of(ws, judged)
    state = GateState(
        agent=agent, declared=bool(declared), policy=policy, declarations=tuple(declared)
    )
    if declared:
        return present.page(state, _declared_page(agent, declared))
    title = f"gate of {agent}: not declared; the first decision will declare these settings"
    return present.page(state, [_policy_table(title, policy)])


@gate.command()
def decide(
    ctx: typer.Context,
    evaluation: Annotated[str, typer.Argument(help="The id of the evaluation (evl_...).")],
    agent: Agent,
) -> present.Answer[PolicyDecision]:
    """Decide on a version by an evaluation that is stored already, and store the decision.

    `evaluate --no-gate` leaves the decision out. The same evaluation under the same policy gives
    the same decision.

    Example: thumbwheel gate decide evl_0f3k2m8v1 --agent support
    """
    from thumbwheel.evaluation import gate as gates
    from thumbwheel.evaluation.evaluate import evaluation_of
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        stored = gates.gate(ws, evaluation_of(ws, require_agent(ws, agent), evaluation))
    decision = PolicyDecision.of(stored)
    reasons = [(reason,) for reason in decision.reasons]
    title = f"decision: {decision.verdict} ({decision.id})"
    return present.page(decision, [present.Table(title, ("reasons",), reasons)])


def _declared_page(agent: str, declared: list[Declaration]) -> Iterator[present.Part]:
    from thumbwheel.evaluation.declaration import differences

    title = f"gate of {agent}, declared {declared[-1].recorded_at:%Y-%m-%d %H:%M}"
    yield _policy_table(title, declared[-1].policy)
    for before, after in pairwise(declared):
        changed = ", ".join(differences(before.policy, after.policy))
        day = f"{after.recorded_at:%Y-%m-%d %H:%M}"
        yield present.Note(f"changed on {day}: {changed}: {after.reason}")


def _policy_table(title: str, policy: GatePolicy) -> present.Table:
    rows = []
    for name, field in GatePolicy.model_fields.items():
        meaning = " ".join((field.description or "").split())
        rows.append((name, str(getattr(policy, name)), meaning))
    return present.Table(title, ("setting", "value", "meaning"), rows)
