"""`thumbwheel gate`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core.config import options as options_of
from thumbwheel.evaluation.policy import GatePolicy

if TYPE_CHECKING:
    from thumbwheel.evaluation.policy import Declaration

gate = typer.Typer()
Agent = Annotated[str, typer.Option(help="The agent whose candidates the gate judges.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@gate.command()
@options_of(GatePolicy)
def declare(
    ctx: typer.Context,
    options: dict[str, Any],
    agent: Agent,
    reason: Annotated[str, typer.Option(help="Why; needed to change what is declared.")] = "",
    as_json: Json = False,
) -> None:
    """Declare once what a candidate of an agent must show, before it is needed.

    The declaration starts from the settings (section `gate`) and stays in force, whatever the
    settings become. A later change is stored with its reason, and every decision under it says so.
    Without a declaration, the first decision declares the settings.

    Example: thumbwheel gate declare --agent support --min-cases 100 --margin-eos 0.02
    """
    from thumbwheel.core import log
    from thumbwheel.evaluation import declaration as verbs

    with ctx.obj() as ws:
        declaration = verbs.declare(ws, agent, options, reason)
    if as_json:
        log.answer(declaration.model_dump(mode="json"))
    else:
        _show(agent, [declaration])


@gate.command()
def show(ctx: typer.Context, agent: Agent, as_json: Json = False) -> None:
    """What the gate asks of an agent's candidates, and how that was changed.

    Example: thumbwheel gate show --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.evaluation import declaration as verbs

    with ctx.obj() as ws:
        declared, policy = verbs.declarations(ws, agent), verbs.policy_of(ws, agent)
    if as_json:
        log.answer(
            {
                "agent": agent,
                "declared": bool(declared),
                "policy": policy.model_dump(mode="json"),
                "declarations": [declaration.model_dump(mode="json") for declaration in declared],
            }
        )
    elif declared:
        _show(agent, declared)
    else:
        log.table(
            f"gate of {agent}: not declared; the first decision will declare these settings",
            COLUMNS,
            _rows(policy),
        )


COLUMNS = ("setting", "value", "meaning")


def _show(agent: str, declared: list[Declaration]) -> None:
    from thumbwheel.core import log
    from thumbwheel.evaluation.declaration import differences

    log.table(
        f"gate of {agent}, declared {declared[-1].recorded_at:%Y-%m-%d %H:%M}",
        COLUMNS,
        _rows(declared[-1].policy),
    )
    for before, after in pairwise(declared):
        changed = ", ".join(differences(before.policy, after.policy))
        log.say(f"changed on {after.recorded_at:%Y-%m-%d %H:%M}: {changed}: {after.reason}")


def _rows(policy: GatePolicy) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in GatePolicy.model_fields.items():
        meaning = " ".join((field.description or "").split())
        rows.append((name, str(getattr(policy, name)), meaning))
    return rows
