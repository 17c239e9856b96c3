"""All SQL of deployments; aliases and their switches belong to the stage of models.

A row has neither the path of the home nor the loopback address of the host on which the deployment
runs: they mean something else on every other host of the home, and in a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.config import Home
from thumbwheel.core.home_paths import located, portable
from thumbwheel.db.dialects import json_text
from thumbwheel.db.hosts import HostRow, all_hosts, folder_id
from thumbwheel.db.schema import agents, aliases, deployments, model_versions, switches
from thumbwheel.deploy.types import AliasRoute, Deployment, DeploymentState, Endpoint
from thumbwheel.models.types import ModelVersion

FOLDER = "deployments"
"""Of the home: what targets need to find their servers again."""
_COLUMNS = (deployments, model_versions.c.number, model_versions.c.tainted, agents.c.slug)
_JOINED = (
    sa.select(*_COLUMNS)
    .join(model_versions, model_versions.c.id == deployments.c.version_id)
    .join(agents, agents.c.id == deployments.c.agent_id)
)
LOOPBACK = "//127.0.0.1:"
HOST = "//$HOST:"
"""Stands in a row for the address of the host on which a deployment runs."""
_NEWEST = (deployments.c.recorded_at.desc(), deployments.c.id.desc())


def insert(
    connection: sa.Connection,
    version: ModelVersion,
    export_id: str | None,
    target: str,
    name: str,
    settings: Mapping[str, Any],
    folder: str | None = None,
) -> str:
    """Insert a deployment that is being applied and return its id. An earlier one of the version on
    the target that never got further is ended."""
    same = (deployments.c.version_id == version.id) & (deployments.c.target == target)
    end(connection, same & (deployments.c.state == DeploymentState.APPLYING))
    deployment_id = ids.new("dep")
    row = {
        "id": deployment_id,
        "agent_id": version.agent_id,
        "version_id": version.id,
        "export_id": export_id,
        "target": target,
        "name": name,
        "settings": dict(settings),
        "endpoint": {},
        "state": DeploymentState.APPLYING,
        "recorded_at": datetime.now(UTC),
        "folder": folder,
    }
    connection.execute(deployments.insert().values(**row))
    return deployment_id


def set_state(
    connection: sa.Connection,
    home: Home,
    deployment: Deployment,
    state: DeploymentState,
    endpoint: Endpoint | None,
    canary: Any,
) -> None:
    """Move a deployment to `state`. Raises Conflict for a move that is not legal."""
    deployment.check_move(state)
    values = {"state": state, "canary": canary}
    if endpoint:
        values["endpoint"] = _stored(home, endpoint)
    connection.execute(
        deployments.update().where(deployments.c.id == deployment.id).values(**values)
    )


def move_endpoint(
    connection: sa.Connection, home: Home, deployment: Deployment, endpoint: Endpoint
) -> None:
    """Record the new endpoint of a server that was started again, also for the other deployments
    that it serves."""
    old_endpoint = deployment.endpoint
    warm = (deployments.c.target == deployment.target) & (
        deployments.c.state == DeploymentState.WARM
    )
    for row in find(connection, home, warm):
        if row.host is not None:
            continue
        if row.id == deployment.id:
            new_endpoint = endpoint
        elif old_endpoint and row.endpoint and _server(row.endpoint) == _server(old_endpoint):
            new_endpoint = replace(row.endpoint, url=endpoint.url)
        else:
            continue
        stored = _stored(home, new_endpoint)
        connection.execute(deployments.update().where(by_id(row.id)).values(endpoint=stored))


def _server(endpoint: Endpoint) -> tuple[str, Any]:
    return endpoint.url, endpoint.details.get("place")


def end(connection: sa.Connection, where: sa.ColumnElement[bool]) -> int:
    """Mark the matching deployments as ended; return how many were not."""
    values = {"state": DeploymentState.ENDED, "ended_at": datetime.now(UTC)}
    done = connection.execute(
        deployments.update()
        .where(where & (deployments.c.state != DeploymentState.ENDED))
        .values(**values)
    )
    return done.rowcount


def by_id(deployment_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects one deployment."""
    return deployments.c.id == deployment_id


def of_agent(agent_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the deployments of an agent."""
    return deployments.c.agent_id == agent_id


def of_version(version_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the deployments of a version that have not ended."""
    return (deployments.c.version_id == version_id) & (deployments.c.state != DeploymentState.ENDED)


def find(connection: sa.Connection, home: Home, *where: sa.ColumnElement[bool]) -> list[Deployment]:
    """Return the deployments that match, newest first."""
    hosts = _Hosts.of(connection, home)
    rows = connection.execute(_JOINED.where(*where).order_by(*_NEWEST)).mappings()
    return [_deployment(hosts, row) for row in rows]


def route(connection: sa.Connection, home: Home, agent_id: str, alias: str) -> AliasRoute:
    """Return where requests for an alias go: to a warm deployment of its version on this host, if
    there is one; of several to the one that the alias was switched to, else to the newest."""
    hosts = _Hosts.of(connection, home)
    alias_switches = (switches.c.agent_id == agent_id) & (switches.c.alias == alias)
    switched_to = (
        sa.select(json_text(switches.c.evidence, "deployment"))
        .where(alias_switches)
        .order_by(switches.c.recorded_at.desc(), switches.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    warm = (deployments.c.version_id == aliases.c.version_id) & (
        deployments.c.state == DeploymentState.WARM
    )
    query = (
        sa.select(*_COLUMNS)
        .select_from(aliases)
        .join(model_versions, model_versions.c.id == aliases.c.version_id)
        .join(agents, agents.c.id == aliases.c.agent_id)
        .outerjoin(deployments, warm & (deployments.c.agent_id == aliases.c.agent_id))
        .where((aliases.c.agent_id == agent_id) & (aliases.c.name == alias))
        .order_by(
            sa.func.coalesce(deployments.c.folder == hosts.folder, sa.false()).desc(),
            (deployments.c.id == switched_to).desc(),
            *_NEWEST,
        )
        .limit(1)
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        return AliasRoute(exists=False, deployment=None)
    if row["id"] is None:
        return AliasRoute(exists=True, deployment=None)
    return AliasRoute(exists=True, deployment=_deployment(hosts, row))


def routing_rows(connection: sa.Connection) -> list[Any]:
    """Return every value of an alias, its version and a warm deployment that may decide where a
    call goes."""
    pointing = sa.select(
        agents.c.slug, aliases.c.name, aliases.c.version_id, aliases.c.recorded_at
    ).join(agents, agents.c.id == aliases.c.agent_id)
    of_versions = sa.select(
        model_versions.c.id,
        model_versions.c.state,
        model_versions.c.basis,
        model_versions.c.tainted,
        model_versions.c.adapter,
        model_versions.c.endpoint,
    )
    warm = sa.select(deployments.c.id, deployments.c.endpoint, deployments.c.canary).where(
        deployments.c.state == DeploymentState.WARM
    )
    last_switch = sa.select(sa.func.count(), sa.func.max(switches.c.id))
    queries = (pointing, of_versions, warm, last_switch)
    return [sorted(map(repr, connection.execute(query))) for query in queries]


def alias_names(connection: sa.Connection) -> list[tuple[str, str]]:
    """Return (agent, alias) of all agents."""
    query = (
        sa.select(agents.c.slug, aliases.c.name)
        .join(agents, agents.c.id == aliases.c.agent_id)
        .order_by(agents.c.slug, aliases.c.name)
    )
    return [(row.slug, row.name) for row in connection.execute(query)]


@dataclass(frozen=True)
class _Hosts:
    """The hosts of the home, as this one sees them."""

    home: Home
    folder: str
    by_folder: Mapping[str, HostRow]
    """Empty for a home with one host."""

    @classmethod
    def of(cls, connection: sa.Connection, home: Home) -> _Hosts:
        return cls(home, folder_id(home), {row.folder: row for row in all_hosts(connection)})

    def other(self, folder: str | None) -> HostRow | None:
        """Return the host of a folder, None if it is this one."""
        if not self.by_folder or folder is None or folder == self.folder:
            return None
        return self.by_folder.get(folder) or HostRow(folder, "another host", None)


def _stored(home: Home, endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint for its row."""
    return _replaced(portable(asdict(endpoint), home.path), LOOPBACK, HOST)


def _endpoint(hosts: _Hosts, row: sa.RowMapping, host: HostRow | None) -> Endpoint:
    """Return the endpoint of a row, as this host reaches it. Where the server listens on loopback
    alone, or its host has no address, it is a loopback one, which `routing.is_elsewhere` tells
    apart."""
    content = located(row["endpoint"], hosts.home.path)
    is_reachable = bool(content["details"].get("is_reachable"))
    address = host.address if host is not None and is_reachable else None
    return Endpoint(**_replaced(content, HOST, f"//{address}:" if address else LOOPBACK))


def _replaced(content: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return an endpoint with another host in its addresses."""
    details = {
        name: value.replace(old, new, 1) if isinstance(value, str) else value
        for name, value in content["details"].items()
    }
    return {**content, "url": content["url"].replace(old, new, 1), "details": details}


def _deployment(hosts: _Hosts, row: sa.RowMapping) -> Deployment:
    host = hosts.other(row["folder"])
    return Deployment(
        id=row["id"],
        agent=row["slug"],
        version=f"v{row['number']}",
        version_id=row["version_id"],
        tainted=row["tainted"],
        export_id=row["export_id"],
        target=row["target"],
        name=row["name"],
        settings=row["settings"],
        endpoint=_endpoint(hosts, row, host) if row["endpoint"] else None,
        state=DeploymentState(row["state"]),
        canary=row["canary"],
        recorded_at=row["recorded_at"],
        folder=row["folder"],
        host=host.name if host is not None else None,
    )
