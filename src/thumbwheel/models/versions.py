"""Model versions: register a base, add a candidate, find a version by name, change its state, point
an alias at it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.home_paths import may_be
from thumbwheel.core.plugins import nearest
from thumbwheel.core.secret_store import SecretStore, StoredSecret
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import (
    AGENT_SECRET,
    BASIS,
    HOME_SECRET,
    Agent,
    Basis,
    EndpointAddress,
    ModelVersion,
    Switch,
    VersionState,
    require_untainted,
)

V = TypeVar("V", bound=ModelVersion)
LATEST = "latest"
NUMBERED = re.compile(r"v?\d+")


def ensure_agent(ws: Workspace, agent: str) -> str:
    """Return the id of `agent`, created if new. Raises InputError for an invalid name."""
    agent_id = Agent.named(agent).id
    with ws.db.read() as connection:
        if store.has_agent(connection, agent_id):
            return agent_id
    return ws.db.write(lambda connection: store.ensure_agent(connection, agent), of_agent(agent_id))


def require_agent(ws: Workspace, slug: str) -> Agent:
    """Return the existing agent of this name. Raises NotFound with the nearest known name."""
    agent = Agent.named(slug)
    with ws.db.read() as connection:
        known_agents = store.agent_slugs(connection)
    if slug not in known_agents:
        raise NotFound(
            f"agent {slug!r}",
            "no such agent",
            f"Known: {', '.join(known_agents) or 'none yet'}.{nearest(slug, known_agents)} "
            "Import something first",
            outside="Check the name, or import something first",
        )
    return agent


def agents(ws: Workspace) -> list[Agent]:
    """Return every agent of the home, by name."""
    with ws.db.read() as connection:
        return [Agent.named(slug) for slug in store.agent_slugs(connection)]


def ensure_base(ws: Workspace, agent: str, base: str, fingerprint: str) -> ModelVersion:
    """Return the version of this base without an adapter, created if new: `v0` for the first base,
    a further version for other weights."""
    values = {"state": VersionState.APPROVED, "base": base, "base_fingerprint": fingerprint}

    def work(connection: sa.Connection) -> str:
        agent_id = store.ensure_agent(connection, agent)
        existing = store.find(connection, store.by_agent(agent))
        for version in existing:
            is_base = version.adapter is None and not version.endpoint
            if is_base and version.base_fingerprint == fingerprint:
                return version.id
        return store.add_version(connection, agent_id, values)

    return by_id(ws, ws.db.write(work, of_agent(Agent.named(agent).id)))


TAINTED = "TAINTED.txt"
"""File that an erasure leaves in an export that has to be withdrawn."""


def check_base(ws: Workspace, folder: Path) -> None:
    """Raise Conflict if the base is the export of a tainted version of any agent, and so holds
    erased data."""
    with ws.db.read() as connection:
        exported = store.tainted_exports(connection)
    base = str(folder.resolve())
    if any(may_be(path, base) for path in exported) or (folder / TAINTED).is_file():
        why = "it is the export of a tainted version: data that it was trained on was erased"
        raise Conflict(
            f"base {str(folder)!r}",
            why,
            "Train over another base, or export the version that was trained anew",
        )


def add_endpoint(
    ws: Workspace, agent: str, address: EndpointAddress, owns_home: bool = True
) -> ModelVersion:
    """Register a model that somebody else serves as a version: `v0` if it is the first.

    The same URL and model are the same version, with the newest price and secret. `owns_home`:
    whether the caller may name secrets of the home, and not only those of the agent. Raises
    InputError for an invalid URL, NotFound for a secret that the caller may not name.
    """
    address.check()
    endpoint = asdict(address) | {
        "url": address.url.rstrip("/"),
        "secret_of": _secret_owner(ws, agent, address.secret, owns_home),
    }
    model = address.model
    values = {
        "state": VersionState.APPROVED,
        "base": f"{model} at {endpoint['url']}",
        "endpoint": endpoint,
    }

    def work(connection: sa.Connection) -> str:
        agent_id = store.ensure_agent(connection, agent)
        for version in store.find(connection, store.by_agent(agent)):
            existing = version.endpoint
            if existing and existing["url"] == endpoint["url"] and existing["model"] == model:
                store.set_endpoint(connection, version.id, endpoint)
                return version.id
        return store.add_version(connection, agent_id, values)

    return by_id(ws, ws.db.write(work, of_agent(Agent.named(agent).id)))


def _secret_owner(ws: Workspace, agent: str, secret: str | None, owns_home: bool) -> str:
    """Return who owns the secret of this name: the agent if it has one, else the home. Raises
    NotFound if the agent has none and `owns_home` is False."""
    if secret is None or secret in SecretStore(ws.home.secrets, agent).names():
        return AGENT_SECRET
    if not owns_home:
        raise NotFound(
            f"secret {secret!r}",
            f"agent {agent!r} has no such secret, and only the home's owner may use those of the "
            "home",
            f"The home's owner stores it: thumbwheel secrets set {secret} --of-agent {agent}",
        )
    return HOME_SECRET


def bases(ws: Workspace) -> set[str]:
    """Return the names of the bases of all versions that were trained here."""
    with ws.db.read() as connection:
        return store.bases(connection)


def secret_names(ws: Workspace) -> dict[StoredSecret, list[str]]:
    """Return the secrets that versions of any agent name -> `agent version` of each."""
    with ws.db.read() as connection:
        remote_versions = store.find(connection, store.with_endpoint())
    needed: dict[StoredSecret, list[str]] = {}
    for version in remote_versions:
        if version.endpoint and (name := version.endpoint.get("secret")):
            secret = StoredSecret(name, version.secret_agent)
            needed.setdefault(secret, []).append(f"{version.agent} {version.name}")
    return needed


def add_candidate(
    ws: Workspace, parent: ModelVersion, run_id: str | None, adapter: Path
) -> ModelVersion:
    """Add a candidate over `parent`'s base; the files of folder `adapter` become artifacts.

    A run gives one version: if the version of `run_id` exists, it is returned. Without a run the
    adapter was trained elsewhere, and the same files over the same base are the same version.
    """
    blobs = Artifacts.of(ws)
    files = blobs.put_folder(adapter)
    sizes = {sha256: (adapter / name).stat().st_size for name, sha256 in files.items()}
    values = {
        "state": VersionState.CANDIDATE,
        "base": parent.base,
        "base_fingerprint": parent.base_fingerprint,
        "adapter": files,
        "parent_id": parent.id,
        "run_id": run_id,
    }

    def work(connection: sa.Connection) -> str:
        if run_id is None:
            same = [
                version
                for version in store.find(connection, store.by_agent(parent.agent))
                if (version.run_id, version.parent_id, version.adapter) == (None, parent.id, files)
            ]
        else:
            same = store.find(connection, store.by_run(run_id))
        if same:
            return same[0].id
        store.record_artifacts(connection, "adapter", sizes)
        return store.add_version(connection, parent.agent_id, values)

    return by_id(ws, ws.db.write(work, of_agent(parent.agent_id)))


def versions(ws: Workspace, agent: Agent) -> list[ModelVersion]:
    """Return all versions of `agent`, oldest first."""
    with ws.db.read() as connection:
        return store.find(connection, store.by_agent(agent.slug))


def by_id(ws: Workspace, version_id: str) -> ModelVersion:
    """Return the version with this id. Raises NotFound."""
    with ws.db.read() as connection:
        matches = store.find(connection, store.by_id(version_id))
    if not matches:
        raise NotFound(
            f"version {version_id!r}",
            "there is no such version",
            "List them: thumbwheel models list --agent AGENT",
        )
    return matches[0]


def version(ws: Workspace, slug: str, name: str) -> ModelVersion:
    """Return the version that `name` means for the agent `slug`: `v3`, `3`, an alias, `latest` or
    an id.

    Raises NotFound with the names that exist.
    """
    agent = require_agent(ws, slug)
    return version_named(slug, name, versions(ws, agent), aliases_of(ws, agent))


def version_named(slug: str, name: str, existing: Sequence[V], aliases: Mapping[str, str]) -> V:
    """Return the version that `name` means, as `version` does, of the existing ones of an agent;
    `aliases`: alias -> id of the version that it points at."""
    wanted = aliases.get(name, name)
    if name == LATEST and existing:
        wanted = existing[-1].id
    matching_ids = [version.id for version in existing if ids.stands_for(wanted, version.id)]
    ids.require_single(wanted, matching_ids)
    for candidate in existing:
        if wanted in (candidate.name, str(candidate.number)) or candidate.id in matching_ids:
            return candidate
    names = [version.name for version in existing] + list(aliases)
    raise NotFound(
        f"version {name!r} of agent {slug!r}",
        "there is no such version",
        f"Known: {', '.join(names) or 'none; train one first'}.{nearest(name, names)}",
    )


def move(
    ws: Workspace, version: ModelVersion, state: VersionState, basis: Basis | None = None
) -> ModelVersion:
    """Change the state; the legal moves are checked inside the transaction. Raises Conflict.

    Without `basis` the basis stays unchanged.
    """

    def work(connection: sa.Connection) -> None:
        current = store.find(connection, store.by_id(version.id))[0]
        current.check_move(state)
        store.set_state(connection, version.id, state, basis or current.basis)

    ws.db.write(work, of_agent(version.agent_id))
    return by_id(ws, version.id)


def withdraw(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """Make the version a candidate again; the caller has checked that nothing supports its present
    state."""
    ws.db.write(
        lambda connection: store.set_state(connection, version.id, VersionState.CANDIDATE, None),
        of_agent(version.agent_id),
    )
    return by_id(ws, version.id)


def confirm(ws: Workspace, version: ModelVersion, basis: Basis) -> None:
    """Change the basis of an approval. Raises Conflict if the version is tainted or no longer
    approved."""

    def work(connection: sa.Connection) -> None:
        current = store.find(connection, store.by_id(version.id))[0]
        require_untainted(current.tainted, current.label, "Train a new version")
        if current.state is not VersionState.APPROVED:
            raise Conflict(current.label, f"it is {current.state}", "Train a new version")
        store.set_state(connection, version.id, current.state, basis)

    ws.db.write(work, of_agent(version.agent_id))


def check_alias_name(alias: str) -> None:
    """Raise InputError for an invalid alias name, and for one that means a version."""
    ids.slug(alias, "alias")
    if alias == LATEST or NUMBERED.fullmatch(alias):
        raise InputError(
            f"alias {alias!r}",
            "that name already stands for a version",
            "Choose another, for example 'live' or 'canary'",
        )


def point(
    ws: Workspace,
    version: ModelVersion,
    alias: str,
    reason: str = "named by hand",
    evidence: Mapping[str, Any] | None = None,
) -> Switch:
    """Point `alias` of the version's agent at the version, atomically. Its state is read anew, and
    the switch keeps the basis of its approval.

    Raises Conflict for a version that may not be served under it, InputError for an invalid alias.
    """
    check_alias_name(alias)

    def work(connection: sa.Connection) -> Switch:
        current = store.find(connection, store.by_id(version.id))[0]
        current.check_alias(alias)
        proof = dict(evidence or {})
        if current.basis is not None:
            proof[BASIS] = current.basis
        return store.add_switch(connection, version.agent_id, alias, version.id, reason, proof)

    return ws.db.write(work, of_agent(version.agent_id))


def take_back(ws: Workspace, agent: Agent, switch: Switch) -> None:
    """Undo a failed switch: the alias points where it did before, unless it was moved since."""
    ws.db.write(
        lambda connection: store.take_back(connection, agent.id, switch), of_agent(agent.id)
    )


def switches(ws: Workspace, agent: Agent, alias: str) -> list[Switch]:
    """Return the moves of an alias, oldest first."""
    with ws.db.read() as connection:
        return store.switches_of(connection, agent.id, alias)


def aliases_of(ws: Workspace, agent: Agent) -> dict[str, str]:
    """Return alias -> version id."""
    with ws.db.read() as connection:
        return store.alias_names(connection, agent.id)


def adapter_folder(ws: Workspace, version: ModelVersion) -> Path | None:
    """Return a verified checkout of the version's adapter in the home's cache; None for a plain
    base. Raises Conflict for a retired version, whose files are gone."""
    if version.adapter is None:
        return None
    if version.state is VersionState.RETIRED:
        raise Conflict(
            version.label,
            "it is retired: its files were removed, since nothing needed them",
            f"Train it again: thumbwheel run reproduce {version.run_id}",
        )
    return Artifacts.of(ws).checkout(version.adapter, ws.home.cache / "adapters" / version.id)


def record_artifacts(connection: sa.Connection, kind: str, sizes: Mapping[str, int]) -> None:
    """Record blobs (sha256 -> size) of another stage inside that stage's transaction; existing
    records stay unchanged."""
    store.record_artifacts(connection, kind, sizes)
