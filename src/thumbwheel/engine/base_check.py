"""Whether the weights of a base are still those that a version was made with.

A fingerprint reads the whole base, which takes seconds to minutes. So it is remembered in the
home's cache for as long as path, size and time of the weights' files stay the same.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.core.files import replace
from thumbwheel.engine.load import base_fingerprint
from thumbwheel.models.base import NAMES, Base, locate, require_training
from thumbwheel.models.gguf.base import source_of
from thumbwheel.models.types import ModelVersion

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace

REMEMBERED = "base_fingerprints.json"
"""File of the cache: folder -> what its files were like, and their fingerprint."""
SETTLED = 2.0
"""Seconds after which a file that was written is taken to be whole: within them a second change
could leave its time as it is."""


def find_base(name: str | None, cache: Path) -> Base:
    """Find the base of this name: a folder, a GGUF file or a hub id.

    Raises MissingExtra where training is not installed, InputError without a name, ModelError where
    there is no such base.
    """
    require_training()
    if name is None:
        raise InputError(
            "--base",
            "no base model was named",
            f"Give {NAMES}",
        )
    public_name, folder = locate(name)
    if source := source_of(folder):
        log.say(f"base {public_name}: {source.description}, trained as {source.dtype}")
    return Base(public_name, folder, remembered_fingerprint(folder, cache))


def remembered_fingerprint(folder: Path, cache: Path) -> str:
    """Return `base_fingerprint` of `folder`, computed again only when its files have changed."""
    name, files = str(folder.resolve()), _files(folder)
    remembered = _read(cache / REMEMBERED)
    entry = remembered.get(name)
    if entry is not None and entry["files"] == files:
        return str(entry["sha256"])
    sha256 = base_fingerprint(folder)
    newest = max((modified for _, _, modified in files), default=0)
    if files and files == _files(folder) and time.time_ns() - newest > SETTLED * 1e9:
        remembered[name] = {"files": files, "sha256": sha256}
        _write(cache / REMEMBERED, remembered)
    return sha256


def locate_unchanged(ws: Workspace, version: ModelVersion) -> tuple[str, Path]:
    """Return (name, folder) of a version's base: where its name leads, else a checkout of its
    files, if they are stored.

    Raises ModelError if it is in neither place, or if its weights are no longer the ones that the
    version was made with.
    """
    # here: a training child, which reads the fingerprint, has no use for a database
    from thumbwheel.models.stored_bases import locate_stored

    name, folder = locate_stored(ws, version.base, version.base_fingerprint)
    expected = version.base_fingerprint
    if expected is not None and remembered_fingerprint(folder, ws.home.cache) != expected:
        raise ModelError(
            f"base {version.base!r} of version {version.name!r}",
            "its weights differ from those that the version was trained on",
            "Restore that base, or register the new one by training on it",
        )
    return name, folder


def _files(folder: Path) -> list[list[Any]]:
    """Return [name, bytes, nanoseconds of the last change] of the weight files; a link counts as
    the file that it leads to."""
    files: list[list[Any]] = []
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        files.append([path.name, status.st_size, status.st_mtime_ns])
    return files


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _write(path: Path, remembered: dict[str, Any]) -> None:
    """Replace the file. If it is missing, a fingerprint is only computed again, so a full disk is
    no error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json.dumps(remembered, indent=2))
