"""Yes to a step that waits for a person.

The step is taken by the same verbs as in a turn that needs no answer, so an answer passes no check
by: what the gate has not approved is not deployed, and what may only be a canary does not become
live. A step that is out of date is moot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.switch import promote
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.loop.canary_experiment import begin_experiment
from thumbwheel.loop.cycle import deploy_once, export_once
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import answer, ask, held_decision
from thumbwheel.loop.trigger_types import DecisionOutcome, Pending, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import CANARY, LIVE, Agent, ModelVersion


def approve(
    ws: Workspace,
    agent: Agent,
    name: str,
    by: str,
    reason: str | None = None,
    alias: str | None = None,
    clock: Clock = utc_now,
) -> DecisionOutcome:
    """Approve a decision and take its step. If the step fails, the question stays open.

    `reason` is stored with the answer. `alias` (`live` or `canary`) is the alias that will point at
    the version; by default the settings of the turn decide. If the version becomes a canary first,
    the question whether it goes live stays open.

    Raises NotFound, Conflict for a decision that was answered already, is out of date or is not
    permitted, and any error of the step.
    """
    with held_decision(ws, agent, name) as pending:
        return _take_step(ws, agent, pending, by, reason, alias, clock)


def _take_step(
    ws: Workspace,
    agent: Agent,
    pending: Pending,
    by: str,
    reason: str | None,
    alias: str | None,
    clock: Clock,
) -> DecisionOutcome:
    """Take the step of a decision that is held, and store the answer."""
    version = versions.by_id(ws, pending.version_id)
    _require_current(ws, agent, pending, version, clock)
    _require_permitted(pending, alias)
    config = ws.settings(CycleConfig, "loop", _settings(pending.evidence))
    result = DecisionOutcome(pending.id, WishState.APPROVED)
    if pending.kind is Wish.EXPORT:
        for format in config.export:
            result.exports.append(str(export_once(ws, version, format, config).path))
    elif pending.kind is Wish.DEPLOY:
        for_all = pending.evidence.get("verdict") == GateVerdict.APPROVED and not config.experiment
        chosen = alias or (LIVE if for_all and config.promotes_on_gold == "on" else CANARY)
        result.deployment = deploy_once(ws, version, config, chosen, quant=config.quant).name
        if chosen == LIVE:
            result.live = version.name
        elif config.experiment:
            begun = begin_experiment(ws, version, config, CycleReport(agent.slug))
            result.experiment = begun.id if begun else None
        if chosen == CANARY and for_all and config.promotes_on_gold != "off":
            cycle = CycleReport(agent.slug, verdict=GateVerdict.APPROVED)
            result.next_question = ask(ws, version, Wish.PROMOTE, config, cycle, clock)
    elif alias == CANARY:
        promote(ws, version, CANARY, reason=_words_of(by, reason))
        result.state = WishState.WAITING
        result.next_question = pending.question
        return result
    else:
        accept = f"{by}: {reason or 'approved it'}"
        promote(ws, version, LIVE, reason=_words_of(by, reason), accept=accept, over_newer=False)
        result.live = version.name
    answer(ws, pending, WishState.APPROVED, by, reason, clock)
    return result


def _words_of(by: str, reason: str | None) -> str:
    return f"approved by {by}" + (f": {reason}" if reason else "")


def _require_permitted(pending: Pending, alias: str | None) -> None:
    """Raise InputError or Conflict if this step may not move the alias to a version."""
    if alias is None:
        return
    if alias not in (LIVE, CANARY):
        raise InputError(
            f"alias {alias!r}", "only live and canary can be chosen", "Give one of these"
        )
    if pending.kind is Wish.EXPORT:
        raise InputError(
            f"alias {alias!r}", "an export has no alias", "Leave the alias out, or decline"
        )
    why = why_not_live(pending)
    if why is not None and alias == LIVE:
        raise Conflict(f"{pending.version} as live", why, "Answer with the alias canary")


def why_not_live(pending: Pending) -> str | None:
    """Return why approving the decision may not put its version live; None if it may."""
    if pending.kind is not Wish.DEPLOY or pending.evidence.get("verdict") == GateVerdict.APPROVED:
        return None
    return "the gate approved it for a canary only"


def _require_current(
    ws: Workspace, agent: Agent, pending: Pending, version: ModelVersion, clock: Clock
) -> None:
    """Raise Conflict, and mark the decision moot, if a newer version is live or the version is
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
        raise Conflict(f"decision {pending.id!r}", why, "Nothing was done; the question is closed")


def _settings(evidence: Mapping[str, Any]) -> dict[str, Any]:
    settings = evidence.get("settings") or {}
    return {name: value for name, value in settings.items() if value is not None}
