"""Decisions about reward models: register the result of a run, list them, find one by name, lay its
files out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import RewardModelRecord
from thumbwheel.models.versions import LATEST, require_agent


def add(
    ws: Workspace,
    agent: str,
    run_id: str,
    base: str,
    base_fingerprint: str,
    source: Path,
    metrics: Mapping[str, Any],
) -> RewardModelRecord:
    """The next reward model of `agent`, with the files of folder `source` stored as artifacts."""
    files = Artifacts(ws.home.blobs).put_folder(source)
    sizes = {sha256: (source / name).stat().st_size for name, sha256 in files.items()}
    values = {
        "run_id": run_id,
        "base": base,
        "base_fingerprint": base_fingerprint,
        "files": files,
        "metrics": dict(metrics),
    }

    def work(connection: sa.Connection) -> None:
        store.record_artifacts(connection, "reward_model", sizes)
        store.add_reward_model(connection, ids.derived("agt", agent), values)

    ws.db.write(work)
    return next(one for one in reward_models(ws, agent) if one.run_id == run_id)


def reward_models(ws: Workspace, agent: str) -> list[RewardModelRecord]:
    """All of `agent`, oldest first."""
    require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.find_reward_models(connection, agent)


def find(ws: Workspace, agent: str, name: str) -> RewardModelRecord:
    """The one that `name` means: `rm3`, `3`, `latest` or an id; raises NotFound with what exists."""
    known = reward_models(ws, agent)
    for one in reversed(known):
        if name in (one.id, one.name, str(one.number), LATEST):
            return one
    names = [one.name for one in known]
    raise NotFound(
        f"reward model {name!r} of agent {agent!r}",
        "there is no such reward model",
        "Known: "
        f"{', '.join(names) or f'none; train one: thumbwheel train reward --agent {agent} --base BASE'}.{nearest(name, names)}",
    )


def folder(ws: Workspace, one: RewardModelRecord) -> Path:
    """A verified checkout of its files in the home's cache; raises Conflict for a tainted one,
    which may judge nothing any more."""
    if one.tainted:
        what = f"reward model {one.name!r} of agent {one.agent!r}"
        fix = f"Train another: thumbwheel train reward --agent {one.agent} --base {one.base}"
        raise Conflict(what, "it is tainted: data that it was trained on was erased", fix)
    return Artifacts(ws.home.blobs).checkout(one.files, ws.home.cache / "reward-models" / one.id)
