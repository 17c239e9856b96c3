"""Deploy, promote, roll back and undeploy versions. Every switch of an alias is one row in one
transaction.

A deployment exports what its target needs, starts it there, checks with a canary that the endpoint
serves this version, and only then moves the alias. Whatever fails on the way, the alias stays where
it was and the old deployment goes on serving. How a target works is in targets/, the front door for
clients in serve.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, DataError, ModelError, NotFound, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import canary, prepare, processes, store
from thumbwheel.deploy.canary import Canary, Verdict
from thumbwheel.deploy.prepare import Plan
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import (
    AliasRoute,
    Deployment,
    DeploymentState,
    Endpoint,
    Health,
    Package,
    public_name,
)
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.export.types import Acceptance
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, ModelVersion, State, Switch, require_untainted

UNDOES = "undoes"
"""Key in a switch's evidence: the ids of the switches that it takes back."""


@dataclass(frozen=True)
class DeployResult:
    """`switch` is None where no alias was asked for."""

    deployment: Deployment
    canary: Canary
    switch: Switch | None


def plan(
    ws: Workspace,
    agent: str,
    version: str,
    target: str,
    alias: str | None = LIVE,
    quant: str | None = None,
) -> Plan:
    """What `deploy` would do; raises what it would raise before it touches anything."""
    model_version = versions.version(ws, agent, version)
    _require_servable(ws, model_version, alias)
    return prepare.plan(ws, model_version, target, TARGETS.get(target).kinds, quant)


def deploy(
    ws: Workspace,
    agent: str,
    version: str,
    target: str,
    alias: str | None = LIVE,
    *,
    quant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    accept: str | None = None,
) -> DeployResult:
    """Serve `version` on `target`, check it with the canary, and point `alias` at it. Without an
    alias it is only kept warm.

    Raises Conflict for a version that may not be served, ModelError for one that cannot be served
    or is not the expected model, DataError where the canary cannot tell (the version then stays
    warm, and `accept`, "name: reason", overrides the doubt), StorageError for a full disk.
    """
    # Everything that can be refused is refused before anything is exported.
    deploy_plan = plan(ws, agent, version, target, alias, quant)
    model_version = versions.version(ws, agent, version)
    agent_id = versions.require_agent(ws, agent)
    driver = TARGETS.get(target)
    target_config = ws.settings(driver.Config, f"deploy.{target}", settings)
    driver.check(target_config)
    acceptance = Acceptance.read(accept) if accept else None
    aliases = versions.aliases_of(ws, agent)
    previous_id = aliases.get(alias or LIVE) or aliases.get(LIVE)
    previous = versions.by_id(ws, previous_id) if previous_id else None

    # Export, and record the deployment.
    stored_settings = target_config.model_dump(mode="json") | {"quant": quant}
    package = prepare.package(ws, model_version, deploy_plan, accept)
    package = _with_free_name(ws, package, model_version, target, stored_settings)
    deployment_id = ws.db.write(
        lambda connection: store.insert(
            connection,
            agent_id,
            model_version.id,
            package.export_id,
            target,
            package.name,
            stored_settings,
        )
    )
    deployment = by_id(ws, deployment_id)

    # Start it, and ask it.
    endpoint: Endpoint | None = None
    try:
        endpoint = driver.apply(package, target_config)
        result = canary.check(ws, model_version, previous, endpoint, driver.secret(endpoint))
    except BaseException:
        _mark_failed(ws, deployment, endpoint, None)
        raise
    if result.verdict is Verdict.FAILED:
        _mark_failed(ws, deployment, endpoint, result)
        raise ModelError(
            f"{deployment.name} on {target}",
            f"what answers is not the promoted version: {result.summary()}",
            "The alias was not moved. Export the version anew, or in a finer precision",
        )
    if result.verdict is Verdict.INCONCLUSIVE and acceptance:
        result = canary.accepted(result, f"{acceptance.name}: {acceptance.reason}")
    deployment = _set_state(ws, deployment, DeploymentState.WARM, endpoint, result)
    if alias is not None and not _canary_accepted(deployment):
        fix = (
            f'It is warm, and {alias!r} is where it was. To switch all the same: --accept "your '
            'name: why"'
        )
        raise DataError(f"the canary of {model_version.name} on {target}", result.summary(), fix)

    # Move the alias, and end what this deployment replaces.
    switch = None
    if alias is not None:
        switch = promote(
            ws,
            agent,
            model_version.name,
            alias,
            reason=f"deployed on {target}",
            deployment=deployment.id,
        )
    _end_superseded(ws, deployment)
    return DeployResult(deployment, result, switch)


def _with_free_name(
    ws: Workspace,
    package: Package,
    model_version: ModelVersion,
    target: str,
    settings: Mapping[str, Any],
) -> Package:
    """The package under the name of a warm deployment of the same export and settings; else under a
    name that no warm deployment of the version has, so that none is overwritten."""
    warm = [deployment for deployment in _warm(ws, model_version) if deployment.target == target]
    for deployment in warm:
        if deployment.export_id == package.export_id and deployment.settings == settings:
            return replace(package, name=deployment.name)
    if warm:
        return replace(package, name=f"{package.name}-{ids.new('dep')[-6:].lower()}")
    return package


def _end_superseded(ws: Workspace, new: Deployment) -> None:
    """End earlier deployments of the version on the same target. One that answers for an alias
    stays, and so does one whose canary passed where that of `new` did not."""
    in_use = {new.id}
    for alias in versions.aliases_of(ws, new.agent):
        serving = route(ws, new.agent, alias).deployment
        if serving is not None:
            in_use.add(serving.id)
    for deployment in deployments(ws, new.agent):
        if (deployment.version_id, deployment.target) != (new.version_id, new.target):
            continue
        if deployment.id in in_use:
            continue
        if _canary_accepted(deployment) and not _canary_accepted(new):
            continue
        _mark_ended(ws, deployment)
        _remove_endpoint(ws, deployment, deployment.endpoint)


def _canary_accepted(deployment: Deployment) -> bool:
    """Whether its canary passed, or somebody accepted an inconclusive one."""
    result = deployment.canary or {}
    if result.get("verdict") != Verdict.INCONCLUSIVE:
        return True
    return any("accepted by" in note for note in result["notes"])


def _require_servable(ws: Workspace, model_version: ModelVersion, alias: str | None) -> None:
    """Raise Conflict for a version that may not be served, under `alias` or at all."""
    what = model_version.label
    if alias is not None:
        versions.check_alias_name(alias)
    if model_version.endpoint is not None:
        url = model_version.endpoint["url"]
        raise Conflict(
            what,
            f"it is served elsewhere ({url}), and its weights are not here",
            "Deploy a version that was trained here",
        )
    if alias is not None:
        require_approval(ws, model_version, alias)
        return
    require_untainted(model_version.tainted, what, "Deploy another version")
    if model_version.state in (State.REJECTED, State.RETIRED):
        raise Conflict(what, f"it is {model_version.state}", "Deploy another version")


def _set_state(
    ws: Workspace,
    deployment: Deployment,
    state: DeploymentState,
    endpoint: Endpoint | None = None,
    result: Canary | None = None,
) -> Deployment:
    canary_record = result.to_json() if result else None
    ws.db.write(
        lambda connection: store.set_state(connection, deployment, state, endpoint, canary_record)
    )
    return by_id(ws, deployment.id)


def _mark_failed(
    ws: Workspace, deployment: Deployment, endpoint: Endpoint | None, result: Canary | None
) -> None:
    _set_state(ws, deployment, DeploymentState.FAILED, endpoint, result)
    _remove_endpoint(ws, deployment, endpoint)


def _mark_ended(ws: Workspace, deployment: Deployment) -> None:
    ws.db.write(lambda connection: store.end(connection, store.by_id(deployment.id)))


def _remove_endpoint(ws: Workspace, deployment: Deployment, endpoint: Endpoint | None) -> None:
    """Remove what answers at `endpoint`, unless a warm deployment needs it too. A server that was
    started again has another address, so addresses alone do not tell."""
    if endpoint is None:
        return
    for other in deployments(ws, deployment.agent):
        if other.state is not DeploymentState.WARM or other.target != deployment.target:
            continue
        if other.endpoint and _served_model(other.endpoint) == _served_model(endpoint):
            return
    try:
        TARGETS.get(deployment.target).remove(endpoint)
    except ThumbwheelError as error:
        log.say(f"note: {deployment.name} stays on {deployment.target}: {error}")


def _served_model(endpoint: Endpoint) -> tuple[str, str]:
    """(server, model): a server of ours is known by its folder, another one by its address."""
    return str(endpoint.details.get("place") or endpoint.url), endpoint.model


def promote(
    ws: Workspace,
    agent: str,
    version: str,
    alias: str = LIVE,
    *,
    reason: str = "promoted",
    deployment: str | None = None,
) -> Switch:
    """Point `alias` at a version that is deployed and passed its canary, in one step; the version
    before it stays warm. `deployment` prefers the deployment with this id.

    Raises Conflict where it is deployed nowhere or its canary was inconclusive, ModelError where it
    does not answer; the alias then is where it was.
    """
    model_version = versions.version(ws, agent, version)
    with _switch_lock(ws, agent, alias):
        return _switch(ws, model_version, alias, reason, {}, deployment)


def rollback(ws: Workspace, agent: str, alias: str = LIVE) -> Switch:
    """Point `alias` back at the version before, in one step; a second time, at the one before that.

    Versions that may not be served any more are skipped, and the log says so. Raises Conflict
    where there is nothing to go back to.
    """
    with _switch_lock(ws, agent, alias):
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
        f"alias {alias!r} of agent {agent!r}",
        "there is no earlier version to go back to",
        f"See: thumbwheel deployments --agent {agent} --history",
    )


def _last_deployment(history: Sequence[Switch], model_version: ModelVersion) -> str | None:
    """The deployment at which the alias pointed when it last moved to this version."""
    for switch in reversed(history):
        if switch.to_id == model_version.id:
            return switch.evidence.get("deployment")
    return None


def effective_switches(history: Sequence[Switch]) -> list[Switch]:
    """The switches that no rollback took back, oldest first; rollbacks themselves are left out."""
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
) -> Switch:
    """Move `alias`, preferring the deployment `deployment_id`. A rollback starts it again where it
    does not answer any more."""
    agent = model_version.agent
    require_approval(ws, model_version, alias)
    deployment = _choose_deployment(ws, model_version, deployment_id)
    status = health(deployment)
    if not status.alive and UNDOES in evidence:
        log.say(f"{model_version.name} is not warm any more; it is started again")
        deployment = ensure_running(ws, deployment)
        status = health(deployment)
    if not status.alive or deployment.endpoint is None:
        raise ModelError(
            f"{deployment.name} on {deployment.target}",
            f"it does not answer: {status.why}",
            f"Start it: thumbwheel deployments --agent {agent} --restart",
        )
    driver = TARGETS.get(deployment.target)
    name = public_name(agent, alias)
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
    switch = versions.point(ws, agent, alias, model_version, reason, switch_evidence)
    try:
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


def _keeps_alias(previous: Deployment, target: str) -> bool:
    """Whether the target of the previous deployment, another than `target`, goes on answering its
    own clients under the alias."""
    if previous.target == target or previous.target not in TARGETS.names():
        return False
    return TARGETS.get(previous.target).named


def _warm(ws: Workspace, model_version: ModelVersion) -> list[Deployment]:
    with ws.db.read() as connection:
        open_deployments = store.find(connection, ws.home.path, store.of_version(model_version.id))
    return [
        deployment for deployment in open_deployments if deployment.state is DeploymentState.WARM
    ]


def _choose_deployment(
    ws: Workspace, model_version: ModelVersion, preferred_id: str | None = None
) -> Deployment:
    """Of the deployments whose canary was accepted one that answers: `preferred_id` before the
    newest. Where none answers, the first of them."""
    warm = _warm(ws, model_version)
    fix = (
        f"Run: thumbwheel deploy {model_version.name} --agent {model_version.agent} --target TARGET"
    )
    if not warm:
        raise Conflict(
            model_version.label,
            "it is deployed nowhere",
            fix,
        )
    candidates = [deployment for deployment in warm if _canary_accepted(deployment)]
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
def _switch_lock(ws: Workspace, agent: str, alias: str) -> Iterator[None]:
    """One switch of an alias at a time over all processes, so that database and target end with the
    same version."""
    versions.require_agent(ws, agent)
    versions.check_alias_name(alias)
    with processes.locked(ws.home.path / store.FOLDER / "switching" / f"{agent}.{alias}"):
        yield


def health(deployment: Deployment) -> Health:
    """Whether a deployment answers now."""
    if deployment.state is not DeploymentState.WARM or deployment.endpoint is None:
        return Health(False, f"it is {deployment.state}")
    return TARGETS.get(deployment.target).health(deployment.endpoint)


def ensure_running(ws: Workspace, deployment: Deployment) -> Deployment:
    """Start a deployment that does not answer. The canary is not repeated: the files are verified
    to be the same."""
    if not health(deployment).alive:
        deployment = _apply_again(ws, deployment)
    for alias in versions.aliases_of(ws, deployment.agent):
        serving = route(ws, deployment.agent, alias).deployment
        if serving is None or serving.id != deployment.id:
            continue
        # A target that was started again may have lost its own aliases.
        require_approval(ws, versions.by_id(ws, deployment.version_id), alias)
        driver = TARGETS.get(deployment.target)
        driver.point(public_name(deployment.agent, alias), require_endpoint(deployment))
    return deployment


def _apply_again(ws: Workspace, deployment: Deployment) -> Deployment:
    model_version = versions.version(ws, deployment.agent, deployment.version)
    driver = TARGETS.get(deployment.target)
    _require_servable(ws, model_version, None)
    settings = dict(deployment.settings)
    quant = settings.pop("quant", None)
    target_config = ws.settings(driver.Config, f"deploy.{deployment.target}", settings)
    deploy_plan = prepare.plan(ws, model_version, deployment.target, driver.kinds, quant)
    package = prepare.package(ws, model_version, deploy_plan)
    endpoint = driver.apply(replace(package, name=deployment.name), target_config)
    ws.db.write(
        lambda connection: store.move_endpoint(connection, ws.home.path, deployment, endpoint)
    )
    return by_id(ws, deployment.id)


def stop(ws: Workspace, agent: str) -> list[Deployment]:
    """Stop what serves the agent. Aliases and records stay, so that `restart` brings it back."""
    warm = [row for row in deployments(ws, agent) if row.state is DeploymentState.WARM]

    def remove(deployment: Deployment) -> None:
        TARGETS.get(deployment.target).remove(require_endpoint(deployment))

    _for_each(warm, remove)
    return warm


def restart(ws: Workspace, agent: str) -> None:
    """Start every warm deployment that does not answer, except those of tainted versions."""
    warm = [row for row in deployments(ws, agent) if row.state is DeploymentState.WARM]
    startable = [row for row in warm if not row.tainted]
    _for_each(startable, lambda deployment: ensure_running(ws, deployment))


def _for_each(rows: Sequence[Deployment], work: Callable[[Deployment], Any]) -> None:
    """Do `work` on all of them, also after one failed; raises ModelError that names those on which
    it failed."""
    failures: list[tuple[Deployment, ThumbwheelError]] = []
    for deployment in rows:
        try:
            work(deployment)
        except ThumbwheelError as error:
            failures.append((deployment, error))
    if failures:
        what = ", ".join(f"{row.name} on {row.target}" for row, _ in failures)
        why = "; ".join(dict.fromkeys(f"{error.what}: {error.why}" for _, error in failures))
        _, first_error = failures[0]
        succeeded = len(rows) - len(failures)
        raise ModelError(what, why, f"{succeeded} of {len(rows)} are done. {first_error.fix}")


def secret(deployment: Deployment) -> str | None:
    """The bearer token of a deployment's endpoint; None where it needs none."""
    if deployment.endpoint is None:
        return None
    return TARGETS.get(deployment.target).secret(deployment.endpoint)


def undeploy(
    ws: Workspace, agent: str, version: str, target: str | None = None, *, forget: bool = False
) -> list[Deployment]:
    """Take a version away from `target`, or from all targets; raises Conflict while an alias needs
    it, unless it is tainted.

    A target that does not answer keeps the model, and the deployment stays recorded; with `forget`
    the record ends all the same.
    """
    model_version = versions.version(ws, agent, version)
    with ws.db.read() as connection:
        matching = [
            deployment
            for deployment in store.find(
                connection, ws.home.path, store.of_version(model_version.id)
            )
            if target in (None, deployment.target)
        ]
    if not matching:
        raise NotFound(
            f"a deployment of {model_version.name!r} of agent {agent!r}",
            "there is none",
            "See: thumbwheel deployments --agent AGENT",
        )
    aliases = versions.aliases_of(ws, agent).items()
    pointing = [alias for alias, version_id in aliases if version_id == model_version.id]
    remaining = [
        deployment
        for deployment in _warm(ws, model_version)
        if deployment not in matching and _canary_accepted(deployment)
    ]
    if pointing and not remaining and not model_version.tainted:
        raise Conflict(
            f"version {model_version.name!r}",
            f"{', '.join(pointing)} points at it",
            "Promote another version first, or roll back",
        )

    def remove(deployment: Deployment) -> None:
        try:
            if deployment.endpoint is not None:
                TARGETS.get(deployment.target).remove(deployment.endpoint)
        except ThumbwheelError as error:
            if not forget:
                raise
            log.say(f"note: {deployment.name} may still be on {deployment.target}: {error}")
        _mark_ended(ws, deployment)

    _for_each(matching, remove)
    return [by_id(ws, deployment.id) for deployment in matching]


def deployments(ws: Workspace, agent: str, ended: bool = False) -> list[Deployment]:
    """The agent's deployments, newest first; ended ones only with `ended`."""
    agent_id = versions.require_agent(ws, agent)
    with ws.db.read() as connection:
        rows = store.find(connection, ws.home.path, store.of_agent(agent_id))
    return [row for row in rows if ended or row.state is not DeploymentState.ENDED]


def by_id(ws: Workspace, deployment_id: str) -> Deployment:
    """The deployment with this id."""
    with ws.db.read() as connection:
        return store.find(connection, ws.home.path, store.by_id(deployment_id))[0]


def resolve(ws: Workspace, name: str) -> Deployment:
    """The deployment that answers for `support`, or `support:canary`; raises NotFound for a name
    without a version, and Conflict where its version may not or cannot answer."""
    agent, _, alias = name.partition(":")
    what = f"model {name!r}"
    alias_route = route(ws, agent, alias or LIVE)
    deployment = alias_route.deployment
    if not alias_route.exists:
        raise NotFound(
            what,
            "no version is behind that name",
            f"Deploy one: thumbwheel deploy VERSION --agent {agent} --target TARGET",
        )
    if deployment is None:
        raise Conflict(
            what,
            "its version is deployed nowhere",
            "Deploy it, or roll back: thumbwheel rollback --agent AGENT",
        )
    fix = "Roll back, or deploy another version"
    require_untainted(deployment.tainted, f"{what} ({deployment.version})", fix)
    require_approval(ws, versions.by_id(ws, deployment.version_id), alias or LIVE)
    return deployment


def route(ws: Workspace, agent: str, alias: str) -> AliasRoute:
    """Where requests for an alias go."""
    agent_id = ids.derived("agt", ids.slug(agent))
    with ws.db.read() as connection:
        return store.route(connection, ws.home.path, agent_id, alias)


def require_endpoint(deployment: Deployment) -> Endpoint:
    """Where it answers; raises Conflict for one that never did."""
    if deployment.endpoint is None:
        raise Conflict(
            f"{deployment.name} on {deployment.target}",
            f"it is {deployment.state} and answers nowhere",
            "Deploy it again",
        )
    return deployment.endpoint
