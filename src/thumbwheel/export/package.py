"""`export`: a version as a folder that others load; there whole and checked, or not at all.

Written beside its place under another name, compared with the trained model, hashed, synced, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, InputError, ModelError, StorageError
from thumbwheel.datasets.build import load_rows
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.load import base_fingerprint, quiet
from thumbwheel.export import parity, store
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import Export, Messages, Parity, Source
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion, State
from thumbwheel.sdk.disk import sync
from thumbwheel.training.base import locate, require_training

MANIFEST = "thumbwheel.json"
README = "README.md"
OWN = 8
"""Prompts of the agent that parity is checked on besides the built-in ones."""


def export(ws: Workspace, agent: str, version: str, format: str = "merged", to: Path | None = None) -> Export:
    """Write `version` of `agent` as `format` into the new folder `to` (default ./AGENT-VERSION-FORMAT).

    Raises Conflict for a folder that holds something and for a tainted version, ModelError where the base has changed or the result is
    not the trained model, StorageError for a full disk; none of them leaves a folder.
    """
    form = FORMATS.get(format)
    one = versions.version(ws, agent, version)
    _check(one)
    target = (to or Path(f"{agent}-{one.name}-{format}")).expanduser().absolute()
    _check_target(target)
    source = _source(ws, one)
    with _staging(target) as folder:
        with quiet():
            form.write(source, folder)
        log.say(f"comparing the {format} export with the trained model")
        found = parity.check(form, folder, source, [*parity.PROBES, *_own_probes(ws, one)])
        if found.failures:
            raise _not_the_model(one, format, found)
        (folder / README).write_text(_readme(one, format, form.usage(str(target)), source.name, found), encoding="utf-8")
        done = Export(ids.new("exp"), agent, one.name, format, target, _files(folder), found)
        (folder / MANIFEST).write_text(json.dumps(_manifest(one, done, source.name), indent=2) + "\n", encoding="utf-8")
        for path in [*folder.rglob("*"), folder]:
            sync(path)
        folder.rename(target)
    agent_id = versions.require_agent(ws, agent)
    ws.db.write(lambda connection: store.add(connection, agent_id, one.id, done))
    return done


def _source(ws: Workspace, one: ModelVersion) -> Source:
    require_training()
    name, folder = locate(one.base)
    if one.base_fingerprint is not None and base_fingerprint(folder) != one.base_fingerprint:
        raise ModelError(
            f"base {one.base!r} of version {one.name!r}",
            "its weights are not those that the version was made with",
            "Restore that base, or register the new one by training on it",
        )
    return Source(str(folder), versions.adapter_folder(ws, one), name)


def _own_probes(ws: Workspace, one: ModelVersion) -> list[Messages]:
    """Prompts of the agent's own, from the rows that the version was trained on or stopped by."""
    with ws.db.read() as connection:
        dataset_id = store.dataset_of(connection, one.id)
    if dataset_id is None:
        return []
    rows = chain(load_rows(ws, dataset_id, "dev"), load_rows(ws, dataset_id, "train"))
    return [row.prompt for row in islice((row for row in rows if not row.tools), OWN)]


def exports(ws: Workspace, version_id: str) -> list[Export]:
    """The recorded exports of a version, oldest first."""
    with ws.db.read() as connection:
        return store.of_version(connection, version_id)


def _check(one: ModelVersion) -> None:
    if one.tainted:
        raise Conflict(
            f"version {one.name!r} of agent {one.agent!r}",
            "it is tainted: data that it was trained on was erased",
            "Retrain without that data and export the new version",
        )
    if one.state is not State.APPROVED:
        log.say(f"note: {one.name} is {one.state}; the gate has not approved it, and the export says so")


def _check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"folder {str(target)!r}", "something is there already", "Name a new folder with --to, or remove that one")


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A folder beside `target` that is gone afterwards unless it was renamed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".unfinished", dir=target.parent))
        folder.chmod(0o755)
    except OSError as error:
        raise InputError(f"folder {str(target)!r}", error.strerror or str(error), "Name a folder that can be written with --to") from None
    try:
        yield folder
    except OSError as error:
        raise _unwritable(target, error) from error
    except Exception as error:
        if type(error).__module__.startswith("safetensors"):  # SafetensorError is how its writer says "disk full"
            raise _unwritable(target, error) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(target: Path, error: Exception) -> StorageError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StorageError(f"export to {str(target)!r}", f"it cannot be written: {why}", "Free some space, then run the same command again")


def _not_the_model(one: ModelVersion, format: str, found: Parity) -> ModelError:
    return ModelError(
        f"the {format} export of {one.name} of agent {one.agent!r}",
        f"loaded again it is not the model that was trained: {'; '.join(found.failures)}",
        "Nothing was kept. " + ("Report it with the base's name" if format == "adapter" else "Export it with --format adapter"),
    )


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[path.relative_to(folder).as_posix()] = {"sha256": _sha256(path), "size": path.stat().st_size}
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _manifest(one: ModelVersion, done: Export, base: str) -> dict[str, Any]:
    """thumbwheel.json: what this folder is, and the hash of every other file in it."""
    return {
        "export": done.id,
        "agent": done.agent,
        "version": done.version,
        "version_id": one.id,
        "state": one.state,
        "basis": one.basis,
        "format": done.format,
        "base": base,
        "base_fingerprint": one.base_fingerprint,
        "adapter": one.adapter,
        "run_id": one.run_id,
        "parity": asdict(done.parity),
        "files": done.files,
    }


def _readme(one: ModelVersion, format: str, usage: str, base: str, found: Parity) -> str:
    library = "peft" if format == "adapter" else "transformers"
    return (
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: {library}\npipeline_tag: text-generation\n---\n\n"
        f"# {one.agent} {one.name} ({format})\n\n"
        f"State when exported: {one.state}{f' on {one.basis}' if one.basis else ''}. "
        f"Written by Thumbwheel; `{MANIFEST}` has the lineage and the hash of every file.\n\n"
        f"```python\n{usage}```\n\n"
        f"Parity with the trained model on {found.prompts} prompts, {found.tokens} tokens (float32): largest logit difference "
        f"{found.max_abs_diff:.2g}, mean KL {found.mean_kl:.2g} nats, same most likely token {100 * found.top1:.2f} %.\n"
    )
