"""Promote a version and roll back: move an alias from one deployed version to another.

Every switch is one row in one transaction. Whatever fails on the way, the alias stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, ModelError
from thumbwheel.db import session_lock
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import fitness, processes, store
from thumbwheel.deploy.routing import by_id, require_endpoint, route, warm_deployments
from thumbwheel.deploy.running import ensure_running, health
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, DeploymentState, public_name
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.export.types import Acceptance
from thumbwheel.models import versions
from thumbwheel.models.types import BASIS, LIVE, Agent, Basis, ModelVersion, Switch

UNDOES = "undoes"
"""Key in a switch's evidence: the ids of the switches that it takes back."""


def promote(
    ws: Workspace,
    model_version: ModelVersion,
    alias: str = LIVE,
    *,
    reason: str = "promoted",
    deployment: Deployment | None = None,
    accept: str | None = None,
    checks_fit: bool = True,
    over_newer: bool = True,
) -> Switch:
    """Point `alias` at a version that is deployed and passed its canary, in one step; the version
    before it stays warm. `deployment` is preferred to others of the version.

    Raises Conflict if it is not deployed, its canary was inconclusive, or it would become live
    and its target could not have answered last week's calls (`accept`, "name: reason", goes on all
    the same; without `checks_fit` this is not checked), or without `over_newer` if it would become
    live in place of a newer version. Raises ModelError if it does not answer. The alias then stays
    where it was.
    """
    evidence: dict[str, Any] = {}
    if accept is not None:
        acceptance = Acceptance.read(accept)
        evidence["accepted"] = f"{acceptance.name}: {acceptance.reason}"
        checks_fit = False
    preferred_id = deployment.id if deployment else None
    versions.check_alias_name(alias)
    with switch_lock(ws, Agent.named(model_version.agent)) as ws:
        # Under the lock its state is read anew: it may have changed since it was looked up.
        current = versions.by_id(ws, model_version.id)
        if alias == LIVE and not over_newer:
            require_none_newer(ws, current)
        checks_fit = checks_fit and alias == LIVE
        return _switch(ws, current, alias, reason, evidence, preferred_id, checks_fit=checks_fit)


def require_none_newer(ws: Workspace, model_version: ModelVersion) -> None:
    """Raise Conflict if a newer version of the agent is live."""
    live_id = versions.aliases_of(ws, Agent.named(model_version.agent)).get(LIVE)
    if live_id is None:
        return
    live = versions.by_id(ws, live_id)
    if live.number > model_version.number:
        raise Conflict(
            f"{model_version.name} as {LIVE}",
            f"{live.name}, which is newer, is {LIVE}",
            f"To put it in its place all the same: thumbwheel promote {model_version.name} "
            f"--agent {model_version.agent}",
        )


def is_first_by_traffic(ws: Workspace, model_version: ModelVersion) -> bool:
    """Return whether a won experiment alone would make it live, and no version of its agent went
    live that way before."""
    if model_version.basis is not Basis.TRAFFIC:
        return False
    history = versions.switches(ws, Agent.named(model_version.agent), LIVE)
    return all(switch.evidence.get(BASIS) != Basis.TRAFFIC for switch in history)


def rollback(ws: Workspace, agent: Agent, alias: str = LIVE) -> Switch:
    """Point `alias` back at the version before, in one step; a second time, at the one before that.

    Versions that may not be served any more are skipped, and the log names them. Raises Conflict if
    there is nothing to go back to.
    """
    versions.check_alias_name(alias)
    with switch_lock(ws, agent) as ws:
        undone = []
        current_id = versions.aliases_of(ws, agent).get(alias)
        history = effective_switches(versions.switches(ws, agent, alias))
        while history:
            latest = history.pop()
            undone.append(latest.id)
            if latest.from_id is None:
                break
            if latest.from_id == current_id:
                continue  # it moved to another deployment of the same version, or back to it
            model_version = versions.by_id(ws, latest.from_id)
            try:
                require_approval(ws, model_version, alias)
            except Conflict as error:
                log.say(f"passed over {model_version.name}: {error.why}")
                continue
            deployment_id = _last_deployment(history, model_version)
            evidence = {UNDOES: undone}
            return _switch(ws, model_version, alias, "rolled back", evidence, deployment_id)
    raise Conflict(
        f"alias {alias!r} of agent {agent.slug!r}",
        "there is no earlier version to go back to",
        f"See: thumbwheel deployments --agent {agent.slug} --history",
    )


def _last_deployment(history: Sequence[Switch], model_version: ModelVersion) -> str | None:
    """Return the id of the deployment at which the alias pointed when it last moved to this
    version, or None."""
    for switch in reversed(history):
        if switch.to_id == model_version.id:
            return switch.evidence.get("deployment")
    return None


def effective_switches(history: Sequence[Switch]) -> list[Switch]:
    """Return the switches that no rollback took back, oldest first; rollbacks themselves are left
    out."""
    undone: set[str] = set()
    for switch in history:
        undone.update(switch.evidence.get(UNDOES, ()))
    return [
        switch for switch in history if switch.id not in undone and UNDOES not in switch.evidence
    ]


def _switch(
    ws: Workspace,
    model_version: ModelVersion,
    alias: str,
    reason: str,
    evidence: Mapping[str, Any],
    deployment_id: str | None,
    *,
    checks_fit: bool = False,
) -> Switch:
    """Move `alias`, preferring the deployment `deployment_id`. A rollback starts the deployment
    again if it no longer answers. With `checks_fit` the target is checked against last week's
    calls."""
    agent = Agent.named(model_version.agent)
    require_approval(ws, model_version, alias)
    deployment = _choose_deployment(ws, model_version, deployment_id)
    if checks_fit:
        fitness.require_fit(ws, model_version, deployment.target, deployment)
    status = health(deployment)
    if not status.alive and UNDOES in evidence:
        log.say(f"{model_version.name} is not warm any more; it is started again")
        deployment = ensure_running(ws, deployment)
        status = health(deployment)
    if not status.alive or deployment.endpoint is None:
        raise ModelError(
            f"{deployment.name} on {deployment.target}",
            f"it does not answer: {status.why}",
            f"Start it: thumbwheel deployments --agent {agent.slug} --restart",
        )
    driver = TARGETS.get(deployment.target)
    name = public_name(agent.slug, alias)
    endpoint = require_endpoint(deployment)

    # Nothing to record where the alias is there already.
    history = versions.switches(ws, agent, alias)
    is_current = versions.aliases_of(ws, agent).get(alias) == model_version.id
    if history and is_current and history[-1].evidence.get("deployment") == deployment.id:
        driver.point(name, endpoint)
        return history[-1]

    # First the database, then the target, so that a target that fails can be undone.
    previous = route(ws, agent, alias).deployment
    switch_evidence = {"deployment": deployment.id, **evidence}
    switch = versions.point(ws, model_version, alias, reason, switch_evidence)
    try:
        _require_open(ws, deployment)
        driver.point(name, endpoint)
    except BaseException:
        versions.take_back(ws, agent, switch)
        raise
    if previous is not None and _keeps_alias(previous, deployment.target):
        log.say(
            f"{previous.target} itself goes on answering for {name!r} with {previous.version}; ask "
            "`thumbwheel serve`, or undeploy that"
        )
    return switch


def _require_open(ws: Workspace, deployment: Deployment) -> None:
    """Raise Conflict if another host ended the deployment meanwhile."""
    if by_id(ws, deployment.id).state in (DeploymentState.ENDED, DeploymentState.FAILED):
        raise Conflict(
            f"{deployment.name} on {deployment.target}",
            "it was taken away in the same moment",
            "Deploy it again",
        )


def _keeps_alias(previous: Deployment, target: str) -> bool:
    """Return whether the target of the previous deployment, another than `target`, goes on
    answering its own clients under the alias."""
    if previous.target == target or previous.target not in TARGETS.names():
        return False
    return TARGETS.get(previous.target).named


def _choose_deployment(
    ws: Workspace, model_version: ModelVersion, preferred_id: str | None = None
) -> Deployment:
    """Return an answering deployment among those whose canary was accepted: `preferred_id` before
    the newest. If none answers, return the first of them. Raises Conflict if no deployment is warm,
    or no canary was accepted."""
    warm = warm_deployments(ws, model_version)
    fix = (
        f"Run: thumbwheel deploy {model_version.name} --agent {model_version.agent} --target TARGET"
    )
    if not warm:
        raise Conflict(
            model_version.label,
            "it is not deployed",
            fix,
        )
    candidates = [deployment for deployment in warm if deployment.is_accepted]
    if not candidates:
        raise Conflict(
            f"{warm[0].name} on {warm[0].target}",
            "its canary was inconclusive",
            f'{fix} --accept "your name: why"',
        )
    candidates.sort(key=lambda deployment: deployment.id != preferred_id)
    for deployment in candidates:
        if health(deployment).alive:
            return deployment
    return candidates[0]


@contextmanager
def switch_lock(ws: Workspace, agent: Agent) -> Iterator[Workspace]:
    """Allow one process of the home at a time to switch aliases of an agent or to end its
    deployments, so that database and target end with the same version, and no alias moves to what
    is being taken away. Yield the home through which to write meanwhile."""
    if session_lock.is_of_many_hosts(ws):
        with session_lock.held(ws, f"switch of {agent.slug!r}", wait=True) as held:
            assert held is not None  # noqa: S101 - it was waited for
            yield held
    else:
        with processes.locked(ws.home.path / store.FOLDER / "switching" / agent.slug):
            yield ws
