"""Experiments together with deployments, which do not know each other: what may be an arm, and what
a decision does to an alias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import fitness, routing, switch
from thumbwheel.evaluation.traffic import WON
from thumbwheel.experiments import controller
from thumbwheel.experiments.running import running
from thumbwheel.experiments.types import (
    Decision,
    Experiment,
    ExperimentConfig,
    Forecast,
    Plan,
    State,
)
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import ask, decisions
from thumbwheel.loop.quarantine import hold_bursts
from thumbwheel.loop.trigger_types import Pending, Wish
from thumbwheel.loop.triggers import trigger_config
from thumbwheel.models import versions
from thumbwheel.models.types import CANARY, LIVE, Agent, ModelVersion


@dataclass(frozen=True)
class AliasEffects:
    """Moves aliases by switches of deployments."""

    ws: Workspace

    def promote(
        self, winner: ModelVersion, control: str, alias: str, reason: str, ask_first: bool
    ) -> None:
        """Point the alias at the winner, in one step, or put the question to a person. Do nothing
        if it points there already or was moved since the experiment began."""
        current = versions.aliases_of(self.ws, Agent.named(winner.agent)).get(alias)
        if current == winner.id:
            return
        version = versions.by_id(self.ws, winner.id)
        if current != control:
            log.say(f"{alias!r} was moved since the experiment began; it stays where it is")
        elif ask_first and alias == LIVE and switch.is_first_by_traffic(self.ws, version):
            log.say(f"waits for a person: {ask_about_winner(self.ws, version, reason)}")
        elif alias == LIVE and (remarks := self._misfits(version)):
            question = ask_about_winner(self.ws, version, "; ".join([reason, *remarks]))
            log.say(f"waits for a person: {question}")
        else:
            switch.promote(self.ws, version, alias, reason=reason, checks_fit=False)

    def _misfits(self, version: ModelVersion) -> list[str]:
        """Return remarks on features that last week's calls used and the winner's target does not
        support."""
        deployment = routing.answering(self.ws, version, LIVE)
        agent = Agent.named(version.agent)
        return fitness.misfits(self.ws, agent, deployment.target, deployment)

    def roll_back(
        self, loser: ModelVersion, control: ModelVersion, alias: str, reason: str
    ) -> None:
        """Move the alias and the canary alias from the loser to the control, if they point at the
        loser."""
        for name in (alias, CANARY):
            current = versions.aliases_of(self.ws, Agent.named(loser.agent)).get(name)
            if current == loser.id:
                version = versions.by_id(self.ws, control.id)
                switch.promote(self.ws, version, name, reason=reason, checks_fit=False)


def ask_about_winner(ws: Workspace, winner: ModelVersion, reason: str) -> str:
    """Ask whether a version that won its experiment goes live, once per version; return the
    question."""
    cycle = CycleReport(winner.agent, version=winner.name, reasons=[reason])
    return ask(ws, winner, Wish.PROMOTE, CycleConfig(), cycle)


def waiting_winner(ws: Workspace, experiment: Experiment) -> Pending | None:
    """Return the open question about the version that won this experiment, or None."""
    if experiment.state is not State.WON:
        return None
    winners = [
        verdict.version_id
        for verdict in controller.verdicts_of(ws, experiment)
        if verdict.verdict == WON
    ]
    for pending in decisions(ws, Agent.named(experiment.agent)):
        if pending.kind is Wish.PROMOTE and pending.version_id in winners:
            return pending
    return None


def draft(
    ws: Workspace,
    agent: Agent,
    alias: str,
    names: Sequence[str],
    guards: Sequence[str],
    options: dict[str, Any],
) -> tuple[Plan, Forecast]:
    """Return the plan of an experiment with these versions as arms, the control first, and its
    forecast; changes nothing.

    Raises Conflict if an arm is not deployed or may not answer, if the alias points at none of the
    arms, and if an arm could win without being compared with the version that the alias points at.
    """
    arms = [versions.version(ws, agent.slug, name) for name in names]
    config = ws.settings(ExperimentConfig, "experiment", options)
    plan, forecast = controller.plan(ws, agent, arms, guards, config)
    for arm in arms:
        routing.answering(ws, arm, CANARY, unproved=config.unproved)
    current = versions.aliases_of(ws, agent).get(alias)
    if current not in {arm.id for arm in arms}:
        shown = versions.by_id(ws, current).name if current else "nothing"
        raise Conflict(
            f"arms {', '.join(arm.name for arm in arms)}",
            f"alias {alias!r} points at {shown}, which is not one of them; it would answer "
            "the units that take no part",
            f"Name it as the first arm: --arm {shown}" if current else "Deploy a version first",
        )
    if current != arms[0].id and len(arms) > 2:
        shown = versions.by_id(ws, current).name
        raise Conflict(
            f"control {arms[0].name}",
            f"alias {alias!r} points at {shown}, and an arm that wins against {arms[0].name} need "
            f"not be better than {shown}",
            f"Name it as the first arm: --arm {shown}, or compare those two alone",
        )
    return plan, forecast


def start(
    ws: Workspace,
    agent: Agent,
    alias: str,
    plan: Plan,
    forecast: Forecast,
    despite: str = "",
    salt: str | None = None,
) -> Experiment:
    """Start the planned experiment; `salt` as in `controller.start`.

    Raises Conflict if earlier experiments speak against an arm, unless `despite` gives a reason to
    start it anyway.
    """
    if forecast.veto and not despite:
        raise Conflict(
            "the experiment", forecast.veto, "Leave that arm out, or say why: --despite TEXT"
        )
    return controller.start(ws, agent, alias, plan, salt)


def turn_all(ws: Workspace, now: datetime | None = None) -> dict[str, Decision]:
    """Update every running experiment; return experiment id -> decision. An experiment whose update
    fails is left out, logged and tried again next time."""
    results = {}
    for experiment in running(ws):
        try:
            _hold_bursts(ws, Agent.named(experiment.agent), now or datetime.now(UTC))
            results[experiment.id] = controller.turn(
                ws, experiment, AliasEffects(ws), now or datetime.now(UTC)
            )
        except ThumbwheelError as error:
            log.logger.error("experiment %s: %s", experiment.id, error)
    return results


def _hold_bursts(ws: Workspace, agent: Agent, now: datetime) -> None:
    """Hold bursts of feedback before they are counted, even if the agent's loop is off."""
    for quarantine in hold_bursts(ws, agent, trigger_config(ws, agent), now):
        log.logger.warning("feedback of %s came in a burst: held as %s", agent.slug, quarantine)
