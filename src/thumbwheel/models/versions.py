"""Decisions about model versions: register the base, add a candidate, find one by name, move its
state, point an alias."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Basis, ModelVersion, State, Switch

LATEST = "latest"
NUMBERED = re.compile(r"v?\d+")


def ensure_agent(ws: Workspace, agent: str) -> str:
    """The id of `agent`, created where new; raises InputError for an impossible name."""
    ids.slug(agent)
    return ws.db.write(lambda c: store.ensure_agent(c, agent))


def require_agent(ws: Workspace, agent: str) -> str:
    """The id of an agent that exists; raises NotFound with the nearest known name."""
    ids.slug(agent)
    with ws.db.read() as connection:
        known = store.agent_slugs(connection)
    if agent not in known:
        raise NotFound(
            f"agent {agent!r}",
            "nothing was recorded for it",
            f"Known: {', '.join(known) or 'none yet'}.{nearest(agent, known)} Import something "
            "first",
        )
    return ids.derived("agt", agent)


def ensure_base(ws: Workspace, agent: str, base: str, fingerprint: str) -> ModelVersion:
    """`v0`, what runs today: registered with the first base; other weights become a further
    version."""
    values = {"state": State.APPROVED, "base": base, "base_fingerprint": fingerprint}

    def work(connection: sa.Connection) -> str:
        agent_id = store.ensure_agent(connection, agent)
        known = store.find(connection, store.by_agent(agent))
        same = [
            one.id
            for one in known
            if one.adapter is None and not one.endpoint and one.base_fingerprint == fingerprint
        ]
        return same[0] if same else store.add_version(connection, agent_id, values)

    return by_id(ws, ws.db.write(work))


TAINTED = "TAINTED.txt"
"""File that an erasure leaves in an export that is to be withdrawn."""


def check_base(ws: Workspace, folder: Path) -> None:
    """Raise Conflict for a base that holds what was erased: the export of a tainted version of any
    agent."""
    with ws.db.read() as connection:
        exported = {str(Path(path).resolve()) for path in store.tainted_exports(connection)}
    if str(folder.resolve()) in exported or (folder / TAINTED).is_file():
        why = "it is the export of a tainted version: data that it was trained on was erased"
        raise Conflict(
            f"base {str(folder)!r}",
            why,
            "Train over another base, or export the version that was trained anew",
        )


def add_endpoint(
    ws: Workspace,
    agent: str,
    url: str,
    model: str,
    price_in: float | None = None,
    price_out: float | None = None,
) -> ModelVersion:
    """A model that somebody else serves, as a version: `v0` where it is what runs today. Prices are
    of a million tokens.

    The same URL and model are the same version, with the newest price. Raises InputError for what
    is no URL of an endpoint.
    """
    if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", url):
        raise InputError(
            f"endpoint {url!r}",
            "it is no http or https URL (a key in it would be stored)",
            "Give it as http://HOST:PORT/v1",
        )
    endpoint = {
        "url": url.rstrip("/"),
        "model": model,
        "price_in": price_in,
        "price_out": price_out,
    }
    values = {
        "state": State.APPROVED,
        "base": f"{model} at {endpoint['url']}",
        "endpoint": endpoint,
    }

    def work(connection: sa.Connection) -> str:
        agent_id = store.ensure_agent(connection, agent)
        for one in store.find(connection, store.by_agent(agent)):
            if one.endpoint and (one.endpoint["url"], one.endpoint["model"]) == (
                endpoint["url"],
                model,
            ):
                store.set_endpoint(connection, one.id, endpoint)
                return one.id
        return store.add_version(connection, agent_id, values)

    ids.slug(agent)
    return by_id(ws, ws.db.write(work))


def add_candidate(ws: Workspace, parent: ModelVersion, run_id: str, adapter: Path) -> ModelVersion:
    """A new candidate over `parent`'s base, with the adapter files of folder `adapter` stored as
    artifacts."""
    blobs = Artifacts(ws.home.blobs)
    files = blobs.put_folder(adapter)
    sizes = {sha256: (adapter / name).stat().st_size for name, sha256 in files.items()}
    agent_id = ids.derived("agt", parent.agent)
    values = {
        "state": State.CANDIDATE,
        "base": parent.base,
        "base_fingerprint": parent.base_fingerprint,
        "adapter": files,
        "parent_id": parent.id,
        "run_id": run_id,
    }

    def work(connection: sa.Connection) -> str:
        store.record_artifacts(connection, "adapter", sizes)
        return store.add_version(connection, agent_id, values)

    return by_id(ws, ws.db.write(work))


def versions(ws: Workspace, agent: str) -> list[ModelVersion]:
    """All versions of `agent`, oldest first."""
    require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.find(connection, store.by_agent(agent))


def by_id(ws: Workspace, version_id: str) -> ModelVersion:
    """The version with this id; raises NotFound."""
    with ws.db.read() as connection:
        found = store.find(connection, store.by_id(version_id))
    if not found:
        raise NotFound(
            f"version {version_id!r}",
            "there is no such version",
            "List them: thumbwheel models list --agent AGENT",
        )
    return found[0]


def version(ws: Workspace, agent: str, name: str) -> ModelVersion:
    """The version that `name` means: `v3`, `3`, an alias, `latest` or an id; raises NotFound with
    what exists."""
    known = versions(ws, agent)
    with ws.db.read() as connection:
        named = store.alias_names(connection, agent)
    wanted = known[-1].id if name == LATEST and known else named.get(name, name)
    ids.require_single(
        wanted, [version.id for version in known if ids.stands_for(wanted, version.id)]
    )
    for known_version in known:
        if wanted in (known_version.name, str(known_version.number)) or ids.stands_for(
            wanted, known_version.id
        ):
            return known_version
    names = [one.name for one in known] + list(named)
    raise NotFound(
        f"version {name!r} of agent {agent!r}",
        "there is no such version",
        f"Known: {', '.join(names) or 'none; train one first'}.{nearest(name, names)}",
    )


def move(ws: Workspace, one: ModelVersion, to: State, basis: Basis | None = None) -> ModelVersion:
    """Change the state, checked against the legal moves inside the transaction; raises Conflict.
    Without `basis` it stays as it is."""

    def work(connection: sa.Connection) -> None:
        current = store.find(connection, store.by_id(one.id))[0]
        current.check_move(to)
        store.set_state(connection, one.id, to, basis or current.basis)

    ws.db.write(work)
    return by_id(ws, one.id)


def withdraw(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """A candidate again, because nothing stands behind the state that is written; the caller has
    made sure of that."""
    ws.db.write(lambda connection: store.set_state(connection, version.id, State.CANDIDATE, None))
    return by_id(ws, version.id)


def confirm(ws: Workspace, one: ModelVersion, basis: Basis) -> None:
    """Let an approval stand on more; raises Conflict where the version is tainted or no longer
    approved."""

    def work(connection: sa.Connection) -> None:
        current = store.find(connection, store.by_id(one.id))[0]
        if current.tainted or current.state is not State.APPROVED:
            why = "it is tainted" if current.tainted else f"it is {current.state}"
            raise Conflict(
                f"version {one.name!r} of agent {one.agent!r}", why, "Train a new version"
            )
        store.set_state(connection, one.id, current.state, basis)

    ws.db.write(work)


def check_alias_name(alias: str) -> None:
    """Raise InputError for what cannot be the name of an alias, or means a version."""
    ids.slug(alias, "alias")
    if alias == LATEST or NUMBERED.fullmatch(alias):
        raise InputError(
            f"alias {alias!r}",
            "that name already means a version",
            "Choose another, for example 'live' or 'canary'",
        )


def point(
    ws: Workspace,
    agent: str,
    alias: str,
    one: ModelVersion,
    reason: str = "named by hand",
    evidence: Mapping[str, Any] | None = None,
) -> Switch:
    """Point `alias` at an approved version of `agent`, in one step; raises Conflict, and InputError
    for a name that means a version."""
    check_alias_name(alias)
    if one.agent != agent:
        raise Conflict(
            f"version {one.id!r}",
            f"it belongs to agent {one.agent!r}, not {agent!r}",
            "Name a version of the same agent",
        )
    agent_id = require_agent(ws, agent)

    def work(connection: sa.Connection) -> Switch:
        store.find(connection, store.by_id(one.id))[0].check_alias(alias)
        return store.add_switch(connection, agent_id, alias, one.id, reason, evidence or {})

    return ws.db.write(work)


def take_back(ws: Workspace, agent: str, switch: Switch) -> None:
    """Undo a switch that turned out to lead nowhere: the alias is what it was before, unless it was
    moved on since."""
    agent_id = require_agent(ws, agent)
    ws.db.write(lambda connection: store.take_back(connection, agent_id, switch))


def switches(ws: Workspace, agent: str, alias: str) -> list[Switch]:
    """The moves of an alias, oldest first."""
    agent_id = require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.switches_of(connection, agent_id, alias)


def aliases_of(ws: Workspace, agent: str) -> dict[str, str]:
    """alias -> version id."""
    with ws.db.read() as connection:
        return store.alias_names(connection, agent)


def adapter_folder(ws: Workspace, one: ModelVersion) -> Path | None:
    """A verified checkout of the version's adapter in the home's cache; None for a plain base."""
    if one.adapter is None:
        return None
    return Artifacts(ws.home.blobs).checkout(one.adapter, ws.home.cache / "adapters" / one.id)


def record_artifacts(connection: sa.Connection, kind: str, sizes: Mapping[str, int]) -> None:
    """Remember blobs (sha256 -> size) of another stage, inside that stage's transaction; known ones
    stay as they are."""
    store.record_artifacts(connection, kind, sizes)
