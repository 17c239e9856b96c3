"""What a run needs on the host that computes it: the files of its spec, as this host has them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.models import reward_models
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_store import UnsoundBlob
from thumbwheel.models.stored_bases import locate_stored
from thumbwheel.models.versions import adapter_folder
from thumbwheel.models.versions import version as find_version
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.training.types import Run, RunSpec


def spec_of_this_host(ws: Workspace, run: Run, spec: RunSpec) -> RunSpec:
    """Return the spec of another host's run with the paths of this host."""
    config = dict(run.config)
    if "reward_settings" in config:
        config["reward_settings"] = resolve_paths(ws, run.agent, config["reward_settings"])
    start = config.get("continue_from")
    start_folder = adapter_folder(ws, find_version(ws, run.agent, start)) if start else None
    return replace(
        spec,
        folder=str(locate_stored(ws, run.base, run.base_fingerprint)[1]),
        config=config,
        blobs=str(Artifacts.of(ws).files),
        reference_cache=str(ws.home.cache / "reference.db"),
        reward_model=reward_model_folder(ws, run.agent, config),
        start=str(start_folder) if start_folder else None,
        checkers=resolve_paths(ws, run.agent, ledger.settings(ws, run.agent).checkers),
    )


def fetch_rows(ws: Workspace, spec: RunSpec) -> None:
    """Fetch the rows of a run into the cache of this host, where the child reads them. Raises
    StorageError if the bucket does not work; missing and damaged rows are left to `open_rows`."""
    blobs = Artifacts.of(ws)
    for sha256 in spec.files.values():
        with suppress(UnsoundBlob):
            blobs.path(sha256)


def reward_model_folder(ws: Workspace, agent: str, settings: Mapping[str, Any]) -> str | None:
    """Return the path of the reward model that `settings` name, one of the agent's or a folder, or
    None if they name none."""
    named = settings.get("reward_model")
    if named is None or Path(named).expanduser().is_dir():
        return named and str(Path(named).expanduser().resolve())
    return str(reward_models.folder(ws, reward_models.find(ws, agent, named)))
