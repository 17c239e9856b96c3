"""Which deployment answers for a name, and which deployments an agent has.

Nothing is started or changed here; every call reads the database anew, so that a switch of an alias
holds from the next request on.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import sqlalchemy as sa

from thumbwheel.core.addresses import is_loopback
from thumbwheel.core.errors import Conflict, ModelError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import remote_token, store
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import AliasRoute, Deployment, DeploymentState, Endpoint
from thumbwheel.evaluation.approval import approval_state, require_approval
from thumbwheel.models import versions
from thumbwheel.models.types import CANARY, LIVE, Agent, ModelVersion, require_untainted


def deployments(ws: Workspace, agent: Agent, ended: bool = False) -> list[Deployment]:
    """Return the agent's deployments, newest first; ended ones only with `ended`."""
    with ws.db.read() as connection:
        rows = store.find(connection, ws.home, store.of_agent(agent.id))
    return [row for row in rows if ended or row.state is not DeploymentState.ENDED]


def end_all(connection: sa.Connection) -> int:
    """End all deployments of a home; return how many were not ended before. Models then answer
    nothing until they are deployed again. Stops no server."""
    return store.end(connection, sa.true())


def by_id(ws: Workspace, deployment_id: str) -> Deployment:
    """Return the deployment with this id."""
    with ws.db.read() as connection:
        return store.find(connection, ws.home, store.by_id(deployment_id))[0]


def warm_deployments(ws: Workspace, model_version: ModelVersion) -> list[Deployment]:
    """Return the warm deployments of a version, newest first."""
    with ws.db.read() as connection:
        open_deployments = store.find(connection, ws.home, store.of_version(model_version.id))
    return [
        deployment for deployment in open_deployments if deployment.state is DeploymentState.WARM
    ]


def resolve(ws: Workspace, name: str) -> Deployment:
    """Return the deployment that answers for `support`, `support:canary` or `support:v3`. Raises
    NotFound for a name without a version, and Conflict if its version may not or cannot answer."""
    slug, _, alias = name.partition(":")
    what = f"model {name!r}"
    if versions.NUMBERED.fullmatch(alias):
        return answering(ws, versions.version(ws, slug, alias), CANARY)
    alias_route = route(ws, Agent.named(slug), alias or LIVE)
    deployment = alias_route.deployment
    if not alias_route.exists:
        raise NotFound(
            what,
            "that name points at no version",
            f"Deploy one: thumbwheel deploy VERSION --agent {slug} --target TARGET",
        )
    if deployment is None:
        raise Conflict(
            what,
            "its version is not deployed",
            f"Deploy it, or roll back: thumbwheel rollback --agent {slug}",
        )
    fix = "Roll back, or deploy another version"
    require_untainted(deployment.tainted, f"{what} ({deployment.version})", fix)
    require_approval(ws, versions.by_id(ws, deployment.version_id), alias or LIVE)
    return deployment


def route(ws: Workspace, agent: Agent, alias: str) -> AliasRoute:
    """Return where requests for an alias go."""
    with ws.db.read() as connection:
        return store.route(connection, ws.home, agent.id, alias)


def routes(ws: Workspace) -> list[tuple[str, str]]:
    """Return (agent, alias) of every alias of every agent."""
    with ws.db.read() as connection:
        return store.alias_names(connection)


def routing_state(ws: Workspace) -> str:
    """Return a text that changes whenever a call may have to go elsewhere: an alias moved, a
    deployment came or went, a version was approved, withdrawn or tainted."""
    with ws.db.read() as connection:
        rows = store.routing_rows(connection)
    return f"{rows} {approval_state(ws)}"


def stand_in(ws: Workspace, agent: Agent, name: str) -> Deployment:
    """Return the deployment that answers for an alias or a version (`v0`) when another one does
    not; raises as `resolve` does."""
    if name in versions.aliases_of(ws, agent):
        return resolve(ws, f"{agent.slug}:{name}")
    return answering(ws, versions.version(ws, agent.slug, name), LIVE)


def answering(
    ws: Workspace, model_version: ModelVersion, alias: str, *, unproved: bool = False
) -> Deployment:
    """Return the deployment that answers with a version, as under `alias`. Raises Conflict if it
    may not or cannot. With `unproved` the gate need not have approved it."""
    if unproved:
        fix = "Take another version"
        require_untainted(model_version.tainted, model_version.label, fix)
    else:
        require_approval(ws, model_version, alias)
    accepted = [row for row in warm_deployments(ws, model_version) if row.is_accepted]
    if not accepted:
        raise Conflict(
            model_version.label,
            "it is not deployed",
            f"Run: thumbwheel deploy {model_version.name} --agent {model_version.agent} --target "
            "TARGET --alias none",
        )
    here = [row for row in accepted if row.host is None]
    return (here or accepted)[0]


def require_endpoint(deployment: Deployment) -> Endpoint:
    """Return the deployment's endpoint. Raises Conflict if it never answered."""
    if deployment.endpoint is None:
        raise Conflict(
            f"{deployment.name} on {deployment.target}",
            f"it is {deployment.state} and does not answer",
            "Deploy it again",
        )
    return deployment.endpoint


def is_elsewhere(deployment: Deployment) -> bool:
    """Return whether the deployment answers at a loopback address of another host of the home."""
    if deployment.host is None or deployment.endpoint is None:
        return False
    return is_loopback(urlsplit(deployment.endpoint.url).hostname or "")


def require_here(deployment: Deployment) -> None:
    """Raise Conflict for a deployment of another host, whose servers nobody starts or stops from
    here."""
    if deployment.host is not None:
        raise Conflict(
            f"{deployment.name} on {deployment.target}",
            f"it runs on host {deployment.host}",
            "Run the same command there",
        )


def secret(ws: Workspace, deployment: Deployment) -> str | None:
    """Return the bearer token of a deployment's endpoint; None if it needs none. Raises ModelError
    if its server does not run."""
    if deployment.endpoint is None:
        return None
    if deployment.host is not None:
        return remote_token.token_of(ws, deployment)
    try:
        return TARGETS.get(deployment.target).secret(deployment.endpoint)
    except ModelError as error:
        # A target knows of no agents.
        fix = f"Start it again: thumbwheel deployments --agent {deployment.agent} --restart"
        raise ModelError(error.what, error.why, fix) from None
