"""Yes to a step that waits for a person.

The step is taken by the same verbs as in a turn that needs no answer, so an answer passes no check
by: what the gate has not approved is not deployed, and what may only be a canary does not become
live. A step that is out of date is moot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.switch import promote
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.loop.canary_experiment import begin_experiment
from thumbwheel.loop.cycle import deploy_once, export_once
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import answer, ask, waiting_decision
from thumbwheel.loop.trigger_types import Answered, Pending, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import CANARY, LIVE, Agent, ModelVersion


def approve(ws: Workspace, agent: Agent, name: str, by: str, clock: Clock = utc_now) -> Answered:
    """Answer yes, and take the step. Where that fails, the question goes on waiting.

    Raises NotFound, Conflict for what was answered already or is out of date, and what the step
    raises.
    """
    pending = waiting_decision(ws, agent, name)
    version = versions.by_id(ws, pending.version_id)
    _require_current(ws, agent, pending, version, clock)
    config = ws.settings(CycleConfig, "loop", _settings(pending.evidence))
    result = Answered(pending.id, WishState.APPROVED)
    if pending.kind is Wish.EXPORT:
        for format in config.export:
            result.exports.append(str(export_once(ws, version, format, config).path))
    elif pending.kind is Wish.DEPLOY:
        for_all = pending.evidence.get("verdict") == Verdict.APPROVED and not config.experiment
        alias = LIVE if for_all and config.promotes_on_gold == "on" else CANARY
        result.deployment = deploy_once(ws, version, config, alias, quant=config.quant).name
        if config.experiment:
            begun = begin_experiment(ws, version, config, CycleReport(agent.slug))
            result.experiment = begun.id if begun else None
        if for_all and config.promotes_on_gold == "ask":
            cycle = CycleReport(agent.slug, verdict=Verdict.APPROVED)
            result.next_question = ask(ws, version, Wish.PROMOTE, config, cycle, clock)
    else:
        accept = f"{by}: approved it"
        promote(ws, version, LIVE, reason=f"approved by {by}", accept=accept)
        result.live = version.name
    answer(ws, pending, WishState.APPROVED, by, None, clock)
    return result


def _require_current(
    ws: Workspace, agent: Agent, pending: Pending, version: ModelVersion, clock: Clock
) -> None:
    """Raise Conflict, and mark the decision moot, where a newer version is live or the version is
    tainted."""
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    why = None
    if version.tainted:
        why = f"{version.name} learned from data that were erased since"
    elif live_id is not None and live_id != version.id:
        live = versions.by_id(ws, live_id)
        if live.number > version.number:
            why = f"{live.name}, which is newer, is live"
    if why is not None:
        answer(ws, pending, WishState.MOOT, None, why, clock)
        raise Conflict(
            f"decision {pending.id!r}", why, "Nothing was done; the decision is moot now"
        )


def _settings(evidence: Mapping[str, Any]) -> dict[str, Any]:
    settings = evidence.get("settings") or {}
    return {name: value for name, value in settings.items() if value is not None}
