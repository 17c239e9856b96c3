"""All SQL of model versions, aliases and artifact records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.new_rows import insert_new
from thumbwheel.db.schema import (
    agents,
    aliases,
    artifacts,
    exports,
    model_versions,
    reward_models,
    stored_bases,
    switches,
)
from thumbwheel.models.types import Basis, ModelVersion, RewardModelRecord, Switch, VersionState

_JOINED = sa.select(model_versions, agents.c.slug.label("agent")).join(
    agents, agents.c.id == model_versions.c.agent_id
)


def has_agent(connection: sa.Connection, agent_id: str) -> bool:
    """Return whether there is an agent with this id."""
    return (
        connection.execute(sa.select(agents.c.id).where(agents.c.id == agent_id)).first()
        is not None
    )


def ensure_agent(connection: sa.Connection, agent: str) -> str:
    """Return the id of `agent`; create the agent if it is new."""
    agent_id = ids.derived("agt", ids.slug(agent))
    if not has_agent(connection, agent_id):
        row = {"id": agent_id, "slug": agent, "recorded_at": datetime.now(UTC)}
        insert_new(connection, agents, [row])
    return agent_id


def agent_slugs(connection: sa.Connection) -> list[str]:
    """Return the names of all agents, sorted."""
    return list(connection.execute(sa.select(agents.c.slug).order_by(agents.c.slug)).scalars())


def add_version(connection: sa.Connection, agent_id: str, values: Mapping[str, Any]) -> str:
    """Insert the next version of the agent and return its id."""
    highest = connection.execute(
        sa.select(sa.func.max(model_versions.c.number)).where(model_versions.c.agent_id == agent_id)
    ).scalar()
    version_id = ids.new("ver")
    number = 0 if highest is None else highest + 1
    connection.execute(
        model_versions.insert().values(
            id=version_id,
            agent_id=agent_id,
            number=number,
            tainted=False,
            recorded_at=datetime.now(UTC),
            **values,
        )
    )
    return version_id


def find(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[ModelVersion]:
    """Return the versions that match, oldest first."""
    rows = connection.execute(_JOINED.where(*where).order_by(model_versions.c.number)).mappings()
    return [_version(row) for row in rows]


def tainted_exports(connection: sa.Connection) -> list[str]:
    """Return the folders of all agents whose newest export is of a tainted version."""
    joined = exports.join(model_versions, model_versions.c.id == exports.c.version_id)
    query = (
        sa.select(exports.c.path, model_versions.c.tainted)
        .select_from(joined)
        .order_by(exports.c.recorded_at, exports.c.id)
    )
    newest = dict(connection.execute(query).tuples().all())
    return [path for path, tainted in newest.items() if tainted]


def add_reward_model(connection: sa.Connection, agent_id: str, values: Mapping[str, Any]) -> None:
    """Insert the next reward model of the agent."""
    highest = connection.execute(
        sa.select(sa.func.max(reward_models.c.number)).where(reward_models.c.agent_id == agent_id)
    ).scalar()
    row = {
        "id": ids.new("rwm"),
        "agent_id": agent_id,
        "number": 1 + (highest or 0),
        "recorded_at": datetime.now(UTC),
    }
    connection.execute(reward_models.insert().values(**row, **values))


def find_reward_models(connection: sa.Connection, agent: str) -> list[RewardModelRecord]:
    """Return all reward models of `agent`, oldest first."""
    joined = sa.select(reward_models, agents.c.slug.label("agent")).join(
        agents, agents.c.id == reward_models.c.agent_id
    )
    rows = connection.execute(
        joined.where(agents.c.slug == agent).order_by(reward_models.c.number)
    ).mappings()
    return [
        RewardModelRecord(**{key: row[key] for key in row if key != "agent_id"}) for row in rows
    ]


def by_agent(agent: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the versions of `agent`."""
    return agents.c.slug == agent


def with_endpoint() -> sa.ColumnElement[bool]:
    """Build the condition that selects the versions that somebody else serves."""
    return model_versions.c.endpoint.is_not(None)


def bases(connection: sa.Connection) -> set[str]:
    """Return the bases of versions that have weights here."""
    query = sa.select(model_versions.c.base).where(model_versions.c.endpoint.is_(None)).distinct()
    return set(connection.execute(query).scalars())


def by_id(version_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the version with this id."""
    return model_versions.c.id == version_id


def by_run(run_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the version that this run produced."""
    return model_versions.c.run_id == run_id


def set_state(
    connection: sa.Connection, version_id: str, state: VersionState, basis: Basis | None
) -> None:
    """Write a new state; the caller has checked the move."""
    connection.execute(
        model_versions.update()
        .where(model_versions.c.id == version_id)
        .values(state=state, basis=basis)
    )


def set_endpoint(connection: sa.Connection, version_id: str, endpoint: Mapping[str, Any]) -> None:
    """Write where a version is served and at what price."""
    connection.execute(
        model_versions.update()
        .where(model_versions.c.id == version_id)
        .values(endpoint=dict(endpoint))
    )


def set_alias(connection: sa.Connection, agent_id: str, name: str, version_id: str) -> None:
    """Point `name` at a version, in one step."""
    key = (aliases.c.agent_id == agent_id) & (aliases.c.name == name)
    connection.execute(aliases.delete().where(key))
    connection.execute(
        aliases.insert().values(
            agent_id=agent_id, name=name, version_id=version_id, recorded_at=datetime.now(UTC)
        )
    )


def add_switch(
    connection: sa.Connection,
    agent_id: str,
    alias: str,
    version_id: str,
    reason: str,
    evidence: Mapping[str, Any],
) -> Switch:
    """Point `alias` at a version and record the switch."""
    previous_id = connection.execute(
        sa.select(aliases.c.version_id).where(
            (aliases.c.agent_id == agent_id) & (aliases.c.name == alias)
        )
    ).scalar()
    switch = Switch(
        ids.new("swi"), alias, previous_id, version_id, reason, dict(evidence), datetime.now(UTC)
    )
    set_alias(connection, agent_id, alias, version_id)
    connection.execute(switches.insert().values(agent_id=agent_id, **vars(switch)))
    return switch


def take_back(connection: sa.Connection, agent_id: str, switch: Switch) -> None:
    """Undo a switch and delete its record, unless the alias was moved again since."""
    alias = (aliases.c.agent_id == agent_id) & (aliases.c.name == switch.alias)
    if connection.execute(sa.select(aliases.c.version_id).where(alias)).scalar() != switch.to_id:
        return
    connection.execute(switches.delete().where(switches.c.id == switch.id))
    if switch.from_id is None:
        connection.execute(aliases.delete().where(alias))
    else:
        set_alias(connection, agent_id, switch.alias, switch.from_id)


def switches_of(connection: sa.Connection, agent_id: str, alias: str) -> list[Switch]:
    """Return the moves of an alias, oldest first."""
    query = sa.select(switches).where(
        (switches.c.agent_id == agent_id) & (switches.c.alias == alias)
    )
    rows = connection.execute(query.order_by(switches.c.recorded_at, switches.c.id)).mappings()
    return [Switch(**{key: row[key] for key in row if key != "agent_id"}) for row in rows]


def alias_names(connection: sa.Connection, agent_id: str) -> dict[str, str]:
    """Return alias -> version id."""
    query = sa.select(aliases.c.name, aliases.c.version_id).where(aliases.c.agent_id == agent_id)
    return dict(connection.execute(query).tuples().all())


def record_artifacts(connection: sa.Connection, kind: str, sizes: Mapping[str, int]) -> None:
    """Record blobs (sha256 -> size); existing records stay unchanged. They belong to no agent, so
    another process may record the same ones at this moment."""
    now = datetime.now(UTC)
    rows = [
        {"sha256": sha256, "kind": kind, "size": size, "recorded_at": now}
        for sha256, size in sizes.items()
    ]
    insert_new(connection, artifacts, rows)


def has_artifacts(connection: sa.Connection) -> bool:
    """Return whether any blob of the home is recorded."""
    return connection.execute(sa.select(artifacts.c.sha256).limit(1)).first() is not None


def recorded_artifacts(connection: sa.Connection) -> set[str]:
    """Return the hashes of all recorded blobs."""
    return set(connection.execute(sa.select(artifacts.c.sha256)).scalars())


def base_files(connection: sa.Connection, fingerprint: str) -> dict[str, str] | None:
    """Return name -> sha256 of the files of a stored base, None if it is not stored."""
    query = sa.select(stored_bases.c.files).where(stored_bases.c.fingerprint == fingerprint)
    files = connection.execute(query).scalar()
    return None if files is None else dict(files)


def add_base(
    connection: sa.Connection, fingerprint: str, name: str, files: Mapping[str, str]
) -> None:
    """Record that the files of a base are stored, unless that is recorded."""
    row = {
        "fingerprint": fingerprint,
        "name": name,
        "files": dict(files),
        "recorded_at": datetime.now(UTC),
    }
    insert_new(connection, stored_bases, [row])


def artifacts_of(connection: sa.Connection, kind: str) -> list[tuple[str, datetime]]:
    """Return (sha256, when it was recorded) of all artifacts of a kind, newest first."""
    query = sa.select(artifacts.c.sha256, artifacts.c.recorded_at).where(artifacts.c.kind == kind)
    return list(
        connection.execute(
            query.order_by(artifacts.c.recorded_at.desc(), artifacts.c.sha256)
        ).tuples()
    )


def forget_artifacts(connection: sa.Connection, hashes: Iterable[str]) -> None:
    """Delete the records of blobs."""
    for sha256 in hashes:
        connection.execute(artifacts.delete().where(artifacts.c.sha256 == sha256))


def _version(row: sa.RowMapping) -> ModelVersion:
    basis = row["basis"]
    return ModelVersion(
        row["id"],
        row["agent"],
        row["number"],
        VersionState(row["state"]),
        Basis(basis) if basis else None,
        row["tainted"],
        row["base"],
        row["base_fingerprint"],
        row["adapter"],
        row["parent_id"],
        row["run_id"],
        row["recorded_at"],
        row["endpoint"],
    )
