"""All SQL of deployments; aliases and their switches belong to the stage of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.schema import agents, aliases, deployments, model_versions, switches
from thumbwheel.deploy.types import Deployment, DeploymentState, Endpoint

FOLDER = "deployments"
"""Of the home: what targets need to find their servers again."""
_COLUMNS = (deployments, model_versions.c.number, model_versions.c.tainted, agents.c.slug)
_JOINED = (
    sa.select(*_COLUMNS)
    .join(model_versions, model_versions.c.id == deployments.c.version_id)
    .join(agents, agents.c.id == deployments.c.agent_id)
)
_NEWEST = (deployments.c.recorded_at.desc(), deployments.c.id.desc())


def begin(
    connection: sa.Connection,
    agent_id: str,
    version_id: str,
    export_id: str | None,
    target: str,
    name: str,
    settings: Mapping[str, Any],
) -> str:
    """Insert a deployment that is being applied and return its id; an earlier one that never got
    further has ended."""
    same = (deployments.c.version_id == version_id) & (deployments.c.target == target)
    end(connection, same & (deployments.c.state == DeploymentState.APPLYING))
    made = ids.new("dep")
    values = {
        "id": made,
        "agent_id": agent_id,
        "version_id": version_id,
        "export_id": export_id,
        "target": target,
        "name": name,
    }
    row = values | {
        "settings": dict(settings),
        "endpoint": {},
        "state": DeploymentState.APPLYING,
        "recorded_at": datetime.now(UTC),
    }
    connection.execute(deployments.insert().values(**row))
    return made


def settle(
    connection: sa.Connection,
    one: Deployment,
    to: DeploymentState,
    endpoint: Endpoint | None,
    canary: Any,
) -> None:
    """Move a deployment on."""
    one.check_move(to)
    values = {"state": to, "canary": canary} | ({"endpoint": asdict(endpoint)} if endpoint else {})
    connection.execute(deployments.update().where(deployments.c.id == one.id).values(**values))


def move_endpoint(
    connection: sa.Connection, home: Path, one: Deployment, endpoint: Endpoint
) -> None:
    """The server was started again and may answer elsewhere, with all others that it serves."""
    before, warm = (
        one.endpoint,
        (deployments.c.target == one.target) & (deployments.c.state == DeploymentState.WARM),
    )
    for row in find(connection, home, warm):
        if row.id == one.id:
            now = endpoint
        elif before and row.endpoint and _server(row.endpoint) == _server(before):
            now = replace(row.endpoint, url=endpoint.url)
        else:
            continue
        connection.execute(deployments.update().where(by_id(row.id)).values(endpoint=asdict(now)))


def _server(endpoint: Endpoint) -> tuple[str, Any]:
    return endpoint.url, endpoint.details.get("place")


def end(connection: sa.Connection, where: sa.ColumnElement[bool]) -> None:
    """These are no more."""
    values = {"state": DeploymentState.ENDED, "ended_at": datetime.now(UTC)}
    connection.execute(
        deployments.update()
        .where(where & (deployments.c.state != DeploymentState.ENDED))
        .values(**values)
    )


def by_id(deployment_id: str) -> sa.ColumnElement[bool]:
    """Condition: this one."""
    return deployments.c.id == deployment_id


def of_agent(agent_id: str) -> sa.ColumnElement[bool]:
    """Condition: the agent's."""
    return deployments.c.agent_id == agent_id


def of_version(version_id: str) -> sa.ColumnElement[bool]:
    """Condition: those of a version that have not ended."""
    return (deployments.c.version_id == version_id) & (deployments.c.state != DeploymentState.ENDED)


def find(connection: sa.Connection, home: Path, *where: sa.ColumnElement[bool]) -> list[Deployment]:
    """Deployments that match, newest first."""
    return [
        _deployment(home, row)
        for row in connection.execute(_JOINED.where(*where).order_by(*_NEWEST)).mappings()
    ]


def behind(
    connection: sa.Connection, home: Path, agent_id: str, alias: str
) -> tuple[bool, Deployment | None]:
    """(whether the alias points anywhere, the warm deployment that answers for it: the one that it
    was switched to)."""
    moves = (switches.c.agent_id == agent_id) & (switches.c.alias == alias)
    newest = sa.select(switches.c.evidence["deployment"].as_string()).where(moves)
    switched = (
        newest.order_by(switches.c.recorded_at.desc(), switches.c.id.desc())
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
    )
    row = (
        connection.execute(query.order_by((deployments.c.id == switched).desc(), *_NEWEST).limit(1))
        .mappings()
        .first()
    )
    return row is not None, None if row is None or row["id"] is None else _deployment(home, row)


def _endpoint(home: Path, stored: Mapping[str, Any]) -> Endpoint:
    """Where it answers, with the target's folder in this home: a copy keeps no path into the home
    that it was copied from."""
    details = dict(stored["details"])
    if "place" in details:
        parts = Path(details["place"]).parts
        last = len(parts) - 1 - parts[::-1].index(FOLDER)
        details["place"] = str(home.joinpath(*parts[last:]))
    return Endpoint(**dict(stored) | {"details": details})


def _deployment(home: Path, row: sa.RowMapping) -> Deployment:
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
        endpoint=_endpoint(home, row["endpoint"]) if row["endpoint"] else None,
        state=DeploymentState(row["state"]),
        canary=row["canary"],
        recorded_at=row["recorded_at"],
    )
