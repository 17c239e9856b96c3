"""Reward models: register the result of a run, list them, find one by name, check out its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent, RewardModelRecord, require_untainted
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
    """Register the next reward model of `agent`; the files of folder `source` become artifacts. A
    run gives one: if the model of `run_id` exists, it is returned."""
    files = Artifacts.of(ws).put_folder(source)
    sizes = {sha256: (source / name).stat().st_size for name, sha256 in files.items()}
    values = {
        "run_id": run_id,
        "base": base,
        "base_fingerprint": base_fingerprint,
        "files": files,
        "metrics": dict(metrics),
    }

    def work(connection: sa.Connection) -> None:
        existing = store.find_reward_models(connection, agent)
        if run_id in (model.run_id for model in existing):
            return
        store.record_artifacts(connection, "reward_model", sizes)
        store.add_reward_model(connection, Agent.named(agent).id, values)

    ws.db.write(work, of_agent(Agent.named(agent).id))
    return next(model for model in reward_models(ws, agent) if model.run_id == run_id)


def reward_models(ws: Workspace, agent: str) -> list[RewardModelRecord]:
    """Return all reward models of `agent`, oldest first. Raises NotFound for an unknown agent."""
    require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.find_reward_models(connection, agent)


def find(ws: Workspace, agent: str, name: str) -> RewardModelRecord:
    """Return the reward model that `name` means: `rm3`, `3`, `latest` or an id.

    Raises NotFound with the names that exist.
    """
    models = reward_models(ws, agent)
    for model in reversed(models):
        if name in (model.id, model.name, str(model.number), LATEST):
            return model
    names = [model.name for model in models]
    listing = ", ".join(names)
    if not names:
        listing = f"none; train one: thumbwheel train reward --agent {agent} --base BASE"
    raise NotFound(
        f"reward model {name!r} of agent {agent!r}",
        "there is no such reward model",
        f"Known: {listing}.{nearest(name, names)}",
    )


def folder(ws: Workspace, reward_model: RewardModelRecord) -> Path:
    """Return a verified checkout of the model's files in the home's cache.

    Raises Conflict for a tainted model, which must not be used any more.
    """
    agent, base = reward_model.agent, reward_model.base
    what = f"reward model {reward_model.name!r} of agent {agent!r}"
    fix = f"Train another: thumbwheel train reward --agent {agent} --base {base}"
    require_untainted(reward_model.tainted, what, fix)
    target = ws.home.cache / "reward-models" / reward_model.id
    return Artifacts.of(ws).checkout(reward_model.files, target)
