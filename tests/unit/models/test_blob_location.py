"""Where the blobs of a home are: the setting, the note in the database, and the move between folder
and bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.servers.s3_server import S3Server
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, Conflict, InputError, StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import documents
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_location import forget_cached, noted_location, require_fit
from thumbwheel.models.blob_move import move_blobs
from thumbwheel.models.blob_settings import BlobsConfig


def opened(folder: Path, blobs: str | None = None) -> Workspace:
    file = {} if blobs is None else {"blobs": blobs}
    return Workspace.open(Home.at(folder), Sources(file, "thumbwheel.yaml", {}))


def save(ws: Workspace, number: int) -> str:
    return documents.save(ws, "note", {"agent": "support", "number": number})


def numbers(ws: Workspace) -> list[int]:
    return sorted(doc.content["number"] for doc in documents.documents(ws, "note", "support"))


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        ({"blobs": "s3://wheel/home"}, {}),
        ({"blobs": {"location": "s3://wheel/home"}}, {}),
        ({}, {"THUMBWHEEL_BLOBS": "s3://wheel/home"}),
        ({"blobs": "s3://other"}, {"THUMBWHEEL_BLOBS": "s3://wheel/home"}),
        ({}, {"THUMBWHEEL_BLOBS__LOCATION": "s3://wheel/home"}),
    ],
    ids=["short", "section", "variable", "variable over file", "variable of the section"],
)
def test_the_setting_is_one_value_or_a_section(
    file: dict[str, object], environment: dict[str, str]
) -> None:
    config = Sources(file, "thumbwheel.yaml", environment).load(BlobsConfig, "blobs")
    assert config.location == "s3://wheel/home"


def test_a_setting_that_names_no_bucket_is_refused(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "home", "/srv/blobs") as ws,
        pytest.raises(ConfigError, match="names no bucket"),
    ):
        Artifacts.of(ws)


def test_one_machine_stays_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path / "home") as ws:
        sha256 = save(ws, 1)
        assert Artifacts.of(ws).path(sha256).is_relative_to(ws.home.blobs)
        assert noted_location(ws) is None
        require_fit(ws)
        assert forget_cached(ws) == 0


def test_blobs_of_a_home_are_in_its_bucket_for_every_host(bucket: str, tmp_path: Path) -> None:
    address = f"s3://{bucket}/home"
    with opened(tmp_path / "home", address) as ws:
        require_fit(ws)
        save(ws, 1)
        assert not list(ws.home.blobs.rglob("*"))
        assert numbers(ws) == [1]
        for path in (ws.home.cache / "blobs").rglob("*"):
            if path.is_file():
                path.unlink()  # another host has no file of it
        assert numbers(ws) == [1]


def test_settings_that_differ_from_the_note_are_refused(bucket: str, tmp_path: Path) -> None:
    address = f"s3://{bucket}/home"
    with opened(tmp_path / "home", address) as ws:
        save(ws, 1)
    for other in (None, f"s3://{bucket}/other"):
        with opened(tmp_path / "home", other) as ws:
            with pytest.raises(ConfigError, match=f"blobs of this home are in {address}"):
                save(ws, 2)
            with pytest.raises(ConfigError, match="thumbwheel blobs copy"):
                numbers(ws)
    with opened(tmp_path / "home", address) as ws:
        assert numbers(ws) == [1]


def test_blobs_move_both_ways_and_a_move_that_was_stopped_goes_on(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, home = f"s3://{bucket}/home", tmp_path / "home"
    with opened(home) as ws:
        for number in range(4):
            save(ws, number)
        planned = move_blobs(ws, "folder", address, dry_run=True)
        assert (planned.copied, planned.present, noted_location(ws)) == (4, 0, None)

        original, copied = Artifacts.of(ws)._store.path, []

        def stopped(store: object, sha256: str) -> Path:
            if len(copied) == 2:
                raise KeyboardInterrupt
            copied.append(sha256)
            return original(sha256)

        with monkeypatch.context() as patch:
            patch.setattr("thumbwheel.models.blob_stores.folder.FolderStore.path", stopped)
            with pytest.raises(KeyboardInterrupt):
                move_blobs(ws, "folder", address)
        assert noted_location(ws) is None
        assert numbers(ws) == [0, 1, 2, 3]

        moved = move_blobs(ws, "folder", address)
        assert (moved.copied, moved.present, moved.setting) == (2, 2, address)
        with pytest.raises(ConfigError, match="the blobs of this home are in s3://"):
            save(ws, 5)
        # the files of the folder go with a second call
        assert move_blobs(ws, "folder", address, remove=True).removed == 4
        assert not [path for path in ws.home.blobs.rglob("*") if path.is_file()]
    with opened(home, address) as ws:
        assert numbers(ws) == [0, 1, 2, 3]
        save(ws, 4)
        with pytest.raises(Conflict, match="the blobs of this home are in s3://"):
            move_blobs(ws, "folder", f"s3://{bucket}/elsewhere")
        with pytest.raises(InputError, match="names no bucket"):
            move_blobs(ws, address, "/srv")
        assert move_blobs(ws, address, "folder", remove=True).copied == 5
    with opened(home) as ws:
        assert numbers(ws) == [0, 1, 2, 3, 4]


def test_a_damaged_blob_stops_the_move(bucket: str, tmp_path: Path) -> None:
    with opened(tmp_path / "home") as ws:
        sha256 = save(ws, 1)
        Artifacts.of(ws).path(sha256).write_bytes(b"damaged")
        with pytest.raises(StorageError, match="damaged or changed"):
            move_blobs(ws, "folder", f"s3://{bucket}")
        assert noted_location(ws) is None


def test_an_unfit_bucket_is_no_target(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    locked = s3_server.bucket(ObjectLockEnabledForBucket=True)
    with opened(tmp_path / "home") as ws:
        save(ws, 1)
        with pytest.raises(ConfigError, match="object lock"):
            move_blobs(ws, "folder", f"s3://{locked}")
        assert numbers(ws) == [1]


def test_the_command_says_what_it_did_and_what_is_next(
    bucket: str, command_line: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "home") as ws:
        save(ws, 1)
    address = f"s3://{bucket}/home"
    code, out, _ = command_line("blobs", "copy", "folder", address, "--dry-run", "--json")
    assert (code, json.loads(out)["copied"]) == (0, 1)
    code, out, _ = command_line("blobs", "copy", "folder", address)
    assert code == 0
    assert f"Set blobs to {address}" in " ".join(out.split())
    assert "--delete" in out
    monkeypatch.setenv("THUMBWHEEL_BLOBS", address)
    with Workspace.open(Home.at(tmp_path / "home"), Sources.read()) as ws:
        assert numbers(ws) == [1]


@pytest.mark.slow
def test_a_server_does_not_start_with_an_unfit_bucket(
    s3_server: S3Server, bucket: str, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = s3_server.bucket(ObjectLockEnabledForBucket=True)
    for address, why in ((locked, "object lock"), (f"{bucket}-gone", "there is no bucket")):
        monkeypatch.setenv("THUMBWHEEL_BLOBS", f"s3://{address}")
        code, _, err = command_line("serve", "--port", "0", "--workers", "0")
        assert code != 0
        assert why in " ".join(err.split())
