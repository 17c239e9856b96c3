"""No file makes the server or a command wait for ever, and a disk without room is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.servers.small_disk import SmallDisk
from tests.worlds.gateway_world import GatewayWorld, opened_home
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.db.dialects import Sqlite
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import load_base
from thumbwheel.homes.backup import back_up, restore


def put_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


REPLACEMENTS = (put_fifo, put_device)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("replace", REPLACEMENTS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_a_base_with_a_file_that_never_ends_is_refused(
    tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    tiny_base(tmp_path / "base")
    replace(tmp_path / "base" / name)
    for load in (
        lambda: find_base(str(tmp_path / "base"), tmp_path / "cache"),
        lambda: load_base(str(tmp_path / "base")),
    ):
        with pytest.raises(ModelError, match=f"{name}' is a FIFO, a socket or a device"):
            load()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("replace", REPLACEMENTS)
@pytest.mark.parametrize("name", ["backup.json", "thumbwheel.db", ""])
def test_a_backup_with_a_file_that_never_ends_is_refused(
    tmp_path: Path, name: str, replace: Callable[[Path], None]
) -> None:
    backup = tmp_path / "backup"
    with opened_home(tmp_path / "home") as ws:
        back_up(ws, backup)
    if name:
        replace(backup / name)
    else:
        replace(backup := tmp_path / "backup.tar")
    home = Home.at(tmp_path / "restored")
    with pytest.raises(InputError, match=r"cannot be read|missing or no file"):
        restore(home, Sqlite(home.database, home.lock), backup)
    assert not home.path.exists()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SmallDisk]:
    uploads = tmp_path / "home" / "uploads"
    uploads.mkdir(parents=True, mode=0o700)
    disk = SmallDisk(uploads)
    disk.mount()
    yield disk
    disk.unmount()


def test_an_upload_that_the_disk_refuses_says_so_and_leaves_nothing(
    full: SmallDisk, gateway: GatewayWorld
) -> None:
    line = b'{"type": "trace", "id": "t1", "input": "a", "output": "b"}\n'
    address = "/api/agents/support/imports?source=jsonl&path=traces.jsonl"
    refused = gateway.client.post(address, content=line * 20_000, headers=gateway.owner)
    assert refused.status_code == 507, refused.text
    assert "traces.jsonl" in refused.json()["detail"] and "upl_" not in refused.text
    assert list(full.folder.iterdir()) == []
    accepted = gateway.client.post(address, content=line, headers=gateway.owner)
    assert accepted.status_code in (200, 202), accepted.text
