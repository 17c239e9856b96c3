"""Deploy a version on a target, and take it away again.

A deployment exports what its target needs, starts it there, checks with a canary that the endpoint
serves this version, and only then moves the alias (switch.py). Whatever fails on the way, the alias
stays where it was and the old deployment goes on serving. How a target works is in targets/, which
deployment answers for a name in routing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, DataError, ModelError, NotFound, ThumbwheelError
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.deploy import canary, fitness, prepare, remote_token, store
from thumbwheel.deploy.canary import Canary
from thumbwheel.deploy.prepare import DeploymentPlan
from thumbwheel.deploy.routing import (
    by_id,
    deployments,
    require_here,
    route,
    warm_deployments,
)
from thumbwheel.deploy.running import for_each
from thumbwheel.deploy.switch import promote, require_none_newer, switch_lock
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import (
    ENDPOINT,
    CanaryVerdict,
    Deployment,
    DeploymentState,
    Endpoint,
    Package,
    RemoteModel,
)
from thumbwheel.export.types import Acceptance
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, ModelVersion, Switch


@dataclass(frozen=True)
class DeployResult:
    """`switch` is None where no alias was asked for."""

    deployment: Deployment
    canary: Canary
    switch: Switch | None


def plan(
    ws: Workspace,
    model_version: ModelVersion,
    target: str,
    alias: str | None = LIVE,
    quant: str | None = None,
) -> DeploymentPlan:
    """Return what `deploy` would do. Raises the errors that it would raise before it changes
    anything."""
    prepare.require_servable(ws, model_version, alias)
    deploy_plan = prepare.plan(ws, model_version, target, TARGETS.get(target).kinds, quant)
    if alias != LIVE:
        return deploy_plan
    misfits = fitness.misfits(ws, Agent.named(model_version.agent), target)
    return replace(deploy_plan, misfits=tuple(misfits))


def deploy(
    ws: Workspace,
    model_version: ModelVersion,
    target: str,
    alias: str | None = LIVE,
    *,
    quant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    accept: str | None = None,
    over_newer: bool = True,
    on_recorded: Callable[[str], None] = lambda _: None,
) -> DeployResult:
    """Serve a version on `target`, check it with the canary, and point `alias` at it. Without an
    alias it is only kept warm. `on_recorded` gets the id of the deployment before it is started.

    Raises Conflict for a version that may not be served, or on a target that could not have
    answered last week's calls (`accept` overrides this), or without `over_newer` if a newer version
    is live, ModelError for one that cannot be served
    or is not the expected model, DataError if the canary is inconclusive (the version then stays
    warm, and `accept`, "name: reason", overrides the doubt), StorageError for a full disk.
    """
    # Everything that can be refused is refused before anything is exported.
    if alias == LIVE and not over_newer:
        require_none_newer(ws, model_version)
    deploy_plan = plan(ws, model_version, target, alias, quant)
    driver = TARGETS.get(target)
    target_config = ws.settings(driver.Config, f"deploy.{target}", settings)
    kinds = driver.check(target_config)
    if kinds is not None:
        deploy_plan = prepare.plan(ws, model_version, target, kinds, quant)
    acceptance = Acceptance.read(accept) if accept else None
    if alias == LIVE and acceptance is None:
        fitness.require_fit(ws, model_version, target)
    aliases = versions.aliases_of(ws, Agent.named(model_version.agent))
    previous_id = aliases.get(alias or LIVE) or aliases.get(LIVE)
    previous = versions.by_id(ws, previous_id) if previous_id else None

    # Export, and record the deployment.
    stored_settings = target_config.model_dump(mode="json") | {"quant": quant}
    package = prepare.package(ws, model_version, deploy_plan, accept)
    package = _with_free_name(ws, package, model_version, target, stored_settings)
    deployment_id = ws.db.write(
        lambda connection: store.insert(
            connection,
            model_version,
            package.export_id,
            target,
            package.name,
            stored_settings,
            # a server that somebody else runs is asked under the same address from every host
            None if ENDPOINT in driver.kinds else folder_id(ws.home),
        ),
        of_agent(model_version.agent_id),
    )
    on_recorded(deployment_id)
    deployment = by_id(ws, deployment_id)

    # Start it, and ask it.
    endpoint: Endpoint | None = None
    try:
        endpoint = driver.apply(package, target_config)
        result = canary.check(ws, model_version, previous, endpoint, driver.secret(endpoint))
    except BaseException:
        _mark_failed(ws, deployment, endpoint, None)
        raise
    if result.verdict is CanaryVerdict.FAILED:
        _mark_failed(ws, deployment, endpoint, result)
        raise ModelError(
            f"{deployment.name} on {target}",
            f"what answers is not the promoted version: {result.summary()}",
            "The alias was not moved. Export the version anew, or in a finer precision",
        )
    if result.verdict is CanaryVerdict.INCONCLUSIVE and acceptance:
        result = canary.accepted(result, f"{acceptance.name}: {acceptance.reason}")
    remote_token.share(ws, target, endpoint)
    deployment = _set_state(ws, deployment, DeploymentState.WARM, endpoint, result)
    if alias is not None and not deployment.is_accepted:
        fix = (
            f'It is warm, and {alias!r} is where it was. To switch all the same: --accept "your '
            'name: why"'
        )
        raise DataError(f"the canary of {model_version.name} on {target}", result.summary(), fix)

    # Move the alias, and end what this deployment replaces.
    switch = None
    if alias is not None:
        reason = f"deployed on {target}"
        switch = promote(
            ws,
            model_version,
            alias,
            reason=reason,
            deployment=deployment,
            accept=accept,
            over_newer=over_newer,
        )
    _end_superseded(ws, deployment)
    return DeployResult(deployment, result, switch)


def _with_free_name(
    ws: Workspace,
    package: Package | RemoteModel,
    model_version: ModelVersion,
    target: str,
    settings: Mapping[str, Any],
) -> Package | RemoteModel:
    """Return the package under the name of a warm deployment of the same export and settings; else
    under a name that no warm deployment of the version has, so that none is overwritten."""
    warm = [
        deployment
        for deployment in warm_deployments(ws, model_version)
        if deployment.target == target and deployment.host is None
    ]
    for deployment in warm:
        if deployment.export_id == package.export_id and deployment.settings == settings:
            return replace(package, name=deployment.name)
    if warm:
        return replace(package, name=f"{package.name}-{ids.new('dep')[-6:].lower()}")
    return package


def _end_superseded(ws: Workspace, new: Deployment) -> None:
    """End earlier deployments of the version on the same target. A deployment that answers for an
    alias stays, and so does one whose canary passed if the canary of `new` did not."""
    agent = Agent.named(new.agent)
    with switch_lock(ws, agent) as ws:
        in_use = {new.id}
        for alias in versions.aliases_of(ws, agent):
            serving = route(ws, agent, alias).deployment
            if serving is not None:
                in_use.add(serving.id)
        for deployment in deployments(ws, agent):
            if (deployment.version_id, deployment.target) != (new.version_id, new.target):
                continue
            if deployment.id in in_use or deployment.host is not None:
                continue
            if deployment.is_accepted and not new.is_accepted:
                continue
            _mark_ended(ws, deployment)
            _remove_endpoint(ws, deployment, deployment.endpoint)


def _set_state(
    ws: Workspace,
    deployment: Deployment,
    state: DeploymentState,
    endpoint: Endpoint | None = None,
    result: Canary | None = None,
) -> Deployment:
    canary_record = result.to_json() if result else None
    ws.db.write(
        lambda connection: store.set_state(
            connection, ws.home, deployment, state, endpoint, canary_record
        ),
        of_agent(Agent.named(deployment.agent).id),
    )
    return by_id(ws, deployment.id)


def _mark_failed(
    ws: Workspace, deployment: Deployment, endpoint: Endpoint | None, result: Canary | None
) -> None:
    _set_state(ws, deployment, DeploymentState.FAILED, endpoint, result)
    _remove_endpoint(ws, deployment, endpoint)


def _mark_ended(ws: Workspace, deployment: Deployment) -> None:
    ws.db.write(
        lambda connection: store.end(connection, store.by_id(deployment.id)),
        of_agent(Agent.named(deployment.agent).id),
    )


def _remove_endpoint(ws: Workspace, deployment: Deployment, endpoint: Endpoint | None) -> None:
    """Remove the model at `endpoint`, unless a warm deployment needs it too. A server that was
    started again has another address, so addresses alone do not tell."""
    if endpoint is None:
        return
    for other in deployments(ws, Agent.named(deployment.agent)):
        if other.state is not DeploymentState.WARM or other.target != deployment.target:
            continue
        if other.host is not None:
            continue
        if other.endpoint and _served_model(other.endpoint) == _served_model(endpoint):
            return
    try:
        TARGETS.get(deployment.target).remove(endpoint)
    except ThumbwheelError as error:
        log.say(f"note: {deployment.name} stays on {deployment.target}: {error}")


def _served_model(endpoint: Endpoint) -> tuple[str, str]:
    """Return (server, model): a server of this home is known by its folder, another one by its
    address."""
    return str(endpoint.details.get("place") or endpoint.url), endpoint.model


def undeploy(
    ws: Workspace, model_version: ModelVersion, target: str | None = None, *, forget: bool = False
) -> list[Deployment]:
    """Take a version away from `target`, or from all targets. Raises Conflict while an alias needs
    it, unless it is tainted.

    A target that does not answer keeps the model, and the deployment stays recorded; with `forget`
    the record ends all the same.
    """
    with switch_lock(ws, Agent.named(model_version.agent)) as ws:
        return _undeploy(ws, model_version, target, forget=forget)


def _undeploy(
    ws: Workspace, model_version: ModelVersion, target: str | None, *, forget: bool
) -> list[Deployment]:
    """Take a version away, as `undeploy` does, while no alias can move."""
    with ws.db.read() as connection:
        matching = [
            deployment
            for deployment in store.find(connection, ws.home, store.of_version(model_version.id))
            if target in (None, deployment.target)
        ]
    if not matching:
        raise NotFound(
            f"a deployment of {model_version.name!r} of agent {model_version.agent!r}",
            "there is none",
            f"See: thumbwheel deployments --agent {model_version.agent}",
        )
    aliases = versions.aliases_of(ws, Agent.named(model_version.agent)).items()
    pointing = [alias for alias, version_id in aliases if version_id == model_version.id]
    remaining = [
        deployment
        for deployment in warm_deployments(ws, model_version)
        if deployment not in matching and deployment.is_accepted
    ]
    if pointing and not remaining and not model_version.tainted:
        raise Conflict(
            f"version {model_version.name!r}",
            f"{', '.join(pointing)} points at it",
            "Promote another version first, or roll back",
        )

    def remove(deployment: Deployment) -> None:
        if not forget:
            require_here(deployment)
        try:
            if deployment.endpoint is not None and deployment.host is None:
                TARGETS.get(deployment.target).remove(deployment.endpoint)
        except ThumbwheelError as error:
            if not forget:
                raise
            log.say(f"note: {deployment.name} may still be on {deployment.target}: {error}")
        _mark_ended(ws, deployment)

    for_each(matching, remove)
    return [by_id(ws, deployment.id) for deployment in matching]
