"""A base's fingerprint is read once, and again as soon as its files are others."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thumbwheel.core.errors import ModelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine import base_check
from thumbwheel.engine.base_check import locate_unchanged, remembered_fingerprint

HOUR = 3600 * 10**9


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The file of a base, written an hour ago."""
    path = tmp_path / "base" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"first")
    age(path, 2 * HOUR)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read of the files, in the stead of tensors."""
    seen: list[str] = []

    def fingerprint(folder: Path) -> str:
        seen.append((folder / "model.safetensors").read_text())
        return f"sha of {seen[-1]}"

    monkeypatch.setattr(base_check, "base_fingerprint", fingerprint)
    return seen


def age(path: Path, nanoseconds: int) -> None:
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now - nanoseconds, now - nanoseconds))


def test_it_is_read_once(weights: Path, reads: list[str], tmp_path: Path) -> None:
    folder, cache = weights.parent, tmp_path / "cache"
    assert remembered_fingerprint(folder, cache) == remembered_fingerprint(folder, cache)
    assert reads == ["first"]
    assert list(cache.iterdir()) == [cache / base_check.REMEMBERED]


def test_other_files_are_read_anew(weights: Path, reads: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    remembered_fingerprint(weights.parent, cache)
    weights.write_bytes(b"other")
    age(weights, HOUR)
    assert remembered_fingerprint(weights.parent, cache) == "sha of other"


def test_a_file_that_was_just_written_is_not_relied_on(
    weights: Path, reads: list[str], tmp_path: Path
) -> None:
    weights.write_bytes(b"fresh")
    for _ in range(2):
        remembered_fingerprint(weights.parent, tmp_path / "cache")
    assert reads == ["fresh", "fresh"]


@pytest.mark.parametrize("damage", ["", "{", "[]"])
def test_a_damaged_memory_is_none(
    weights: Path, reads: list[str], tmp_path: Path, damage: str
) -> None:
    (tmp_path / base_check.REMEMBERED).write_text(damage)
    assert remembered_fingerprint(weights.parent, tmp_path) == "sha of first"


def test_a_version_whose_base_has_changed(
    weights: Path, reads: list[str], empty_ws: Workspace
) -> None:
    version: Any = SimpleNamespace(
        base=str(weights.parent), base_fingerprint="sha of first", name="v1"
    )
    assert locate_unchanged(empty_ws, version)[1] == weights.parent.resolve()
    weights.write_bytes(b"other")
    with pytest.raises(ModelError, match="differ from those that the version was trained on"):
        locate_unchanged(empty_ws, version)
