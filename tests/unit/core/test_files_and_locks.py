"""Files that are complete or absent, and locks between processes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from thumbwheel.core import files, locks
from thumbwheel.core.errors import Conflict


def test_a_file_is_replaced_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.replace(path, "one")
    files.replace(path, "two \ud800", mode=0o600, errors="backslashreplace")
    assert path.read_text() == "two \\ud800" and os.listdir(tmp_path) == ["state.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    files.replace(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.replace(path, "new \ud800")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        files.replace(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["state.json"]
    error = files.unwritable("the state", raised.value)
    assert str(error) == (
        "the state: it cannot be written: No space left on device. Free space, then try again"
    )
    assert "only a part of it (zip\n" not in str(files.unwritable("it", ValueError("zip\nmore")))


def test_a_lock_is_held_by_one_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        locks.try_lock(path, create=False)
    handle = locks.lock(path, "the run", "another process has it")
    assert locks.try_lock(path) is None
    with pytest.raises(Conflict, match="the run: another process has it"):
        locks.lock(path, "the run", "another process has it")
    os.close(handle)
    with locks.wait_for(path):
        assert locks.try_lock(path) is None
    os.close(locks.lock(path, "the run", "nobody has it"))
