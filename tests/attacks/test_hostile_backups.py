"""Backups that a stranger wrote: links, holes, headers without end, programs in the database."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError, NotFound, StorageError
from thumbwheel.core.home_paths import HOME
from thumbwheel.db.dialects import Sqlite
from thumbwheel.db.schema import aliases as alias_rows
from thumbwheel.db.schema import datasets as dataset_rows
from thumbwheel.db.schema import exports as export_rows
from thumbwheel.db.schema import model_versions as model_version_rows
from thumbwheel.db.schema import runs as run_rows
from thumbwheel.db.workspace import Workspace
from thumbwheel.export.package import exports
from thumbwheel.export.types import Parity, ParityLimits
from thumbwheel.homes.backup import MANIFEST, REPORTS, ROWS, back_up, restore
from thumbwheel.homes.version_retention import retain_versions
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.models.versions import ensure_agent
from thumbwheel.report.written_reports import noted_lines
from thumbwheel.server.api.export_files import file_of

REPORT = "reports/r.html"
PARITY = Parity(5, 200, "F32", 1e-6, 1e-9, 1.0, 0.5, True, ParityLimits(1e-4, 0.99))


def backup_of(folder: Path) -> Path:
    """A backup as a folder."""
    with opened_home(folder / "home") as ws:
        ensure_agent(ws, AGENT)
        back_up(ws, folder / "backup")
    return folder / "backup"


def declare(backup: Path, name: str, content: bytes) -> None:
    """Put a file and its hash into the manifest."""
    manifest = json.loads((backup / MANIFEST).read_text())
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    manifest["files"][name] = entry
    (backup / MANIFEST).write_text(json.dumps(manifest))


def change_rows(backup: Path, statement: str) -> None:
    """Run SQL in the rows of a backup."""
    with closing(sqlite3.connect(backup / ROWS)) as connection:
        connection.execute(statement)
        connection.commit()
    declare(backup, ROWS, (backup / ROWS).read_bytes())


def add_version(ws: Workspace) -> ModelVersion:
    return versions.ensure_base(ws, AGENT, "base", "f" * 64)


def insert_export(ws: Workspace, version: ModelVersion, export_id: str, path: str) -> None:
    row = {
        "id": export_id,
        "agent_id": version.agent_id,
        "version_id": version.id,
        "format": "merged",
        "path": path,
        "files": {},
        "parity": asdict(PARITY),
        "recorded_at": datetime.now(UTC),
    }
    ws.db.write(lambda connection: connection.execute(export_rows.insert().values(row)))


def backup_with_version(folder: Path) -> Path:
    """A backup as a folder, with a version that is live, a run and an export."""
    with opened_home(folder / "home") as ws:
        version = add_version(ws)
        insert_export(ws, version, "exp_1", f"{HOME}/exports/v0")
        now = datetime.now(UTC)
        alias = {
            "agent_id": version.agent_id,
            "name": "live",
            "version_id": version.id,
            "recorded_at": now,
        }
        dataset = {
            "id": "dst_1",
            "agent_id": version.agent_id,
            "shape": "sft",
            "manifest": {"files": {}},
            "fingerprint": "f" * 64,
            "recorded_at": now,
        }
        run = {
            "id": "run_1",
            "agent_id": version.agent_id,
            "dataset_id": "dst_1",
            "algorithm": "sft",
            "base": "base",
            "config": {},
            "environment": {},
            "seed": 0,
            "state": "finished",
            "recorded_at": now,
        }
        rows = {alias_rows: alias, dataset_rows: dataset, run_rows: run}
        for table, row in rows.items():
            insert = table.insert().values(row)
            ws.db.write(lambda connection, insert=insert: connection.execute(insert))
        back_up(ws, folder / "backup")
    return folder / "backup"


def packed(backup: Path, add: Callable[[tarfile.TarFile], None] = lambda tar: None) -> Path:
    """The backup as a tar file, with what `add` adds."""
    path = backup.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        for file in sorted(backup.rglob("*")):
            if file.is_file():
                tar.add(file, file.relative_to(backup).as_posix())
        add(tar)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in more.items():
        setattr(info, field, value)
    return info


def assert_refused(tmp_path: Path, backup: Path, reason: str) -> None:
    home = Home.at(tmp_path / "restored")
    with pytest.raises(InputError, match=reason):
        restore(home, Sqlite(home.database, home.lock), backup)
    assert not home.path.exists()


def test_a_link_in_an_archive_is_no_file(tmp_path: Path) -> None:
    backup = backup_of(tmp_path)
    content = (backup / ROWS).read_bytes()
    declare(backup, REPORT, content)
    for target in (ROWS, REPORT, "reports/other", "/etc/passwd"):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = member(REPORT, kind, linkname=target)
            other = member("reports/other", kind, linkname=REPORT)
            archive = packed(backup, lambda tar, link=link, other=other: add_all(tar, other, link))
            assert_refused(tmp_path, archive, "missing or no file")
    for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE):
        special = member(REPORT, kind, devmajor=1, devminor=5)
        archive = packed(backup, lambda tar, special=special: tar.addfile(special))
        assert_refused(tmp_path, archive, "missing or no file")


def add_all(tar: tarfile.TarFile, *members: tarfile.TarInfo) -> None:
    for info in members:
        tar.addfile(info)


@pytest.mark.timeout(120)
def test_a_file_with_holes_is_no_file(tmp_path: Path) -> None:
    backup = backup_of(tmp_path)
    size = 1 << 50  # a petabyte of zeros in a few bytes
    declare(backup, REPORT, b"")

    def add(tar: tarfile.TarFile) -> None:
        hole = member(REPORT, size=0)
        hole.pax_headers = {
            "GNU.sparse.size": str(size),
            "GNU.sparse.map": f"0,0,{size},0",
            "GNU.sparse.name": REPORT,
        }
        tar.addfile(hole)

    assert_refused(tmp_path, packed(backup, add), "missing or no file")


def test_an_archive_with_thousands_of_files_is_not_searched_anew_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = backup_of(tmp_path)
    for number in range(60):
        name, content = f"reports/r{number}.html", str(number).encode()
        declare(backup, name, content)
        (backup / "reports").mkdir(exist_ok=True)
        (backup / name).write_bytes(content)
    archive = packed(backup)

    def searched(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("all members are looked at for one name")

    monkeypatch.setattr(tarfile.TarFile, "_getmember", searched)
    home = Home.at(tmp_path / "restored")
    restored = restore(home, Sqlite(home.database, home.lock), archive)
    assert restored.counts()["reports"] == 60


def test_headers_that_follow_each_other_for_ever_are_no_archive(tmp_path: Path) -> None:
    header = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1)
    block = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    archive = tmp_path / "deep.tar"
    first = member(MANIFEST, size=2).tobuf(tarfile.GNU_FORMAT) + b"{}".ljust(512, b"\0")
    archive.write_bytes(first + block * 3_000)
    assert_refused(tmp_path, archive, "cannot be read")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"[]", b"{}", b"null"])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    backup = backup_of(tmp_path)
    (backup / MANIFEST).write_bytes(content)
    assert_refused(tmp_path, backup, "cannot be read")

    def add(tar: tarfile.TarFile) -> None:
        tar.addfile(member(MANIFEST, size=len(content)), io.BytesIO(content))

    assert_refused(tmp_path, packed(backup, add), "cannot be read")


@pytest.mark.parametrize("name", ["../evil", "/etc/cron.d/x", "inbox/../../evil", "blobs/../x"])
def test_a_name_leads_out_of_no_home(tmp_path: Path, name: str) -> None:
    backup = backup_of(tmp_path)
    declare(backup, name, b"x")

    def add(tar: tarfile.TarFile) -> None:
        tar.addfile(member(name, size=1), io.BytesIO(b"x"))

    assert_refused(tmp_path, packed(backup, add), "none of a home")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON agents BEGIN UPDATE agents SET slug = 'evil'; END",
        "CREATE VIEW v AS SELECT * FROM agents",
        "CREATE VIRTUAL TABLE v USING fts5(content)",
        "ALTER TABLE agents ADD COLUMN c TEXT AS (hex(zeroblob(1000000)))",
        "CREATE INDEX i ON agents (length(hex(zeroblob(length(slug)))))",
    ],
)
def test_programs_in_the_rows_are_refused(tmp_path: Path, statement: str) -> None:
    backup = backup_of(tmp_path)
    change_rows(backup, statement)
    assert_refused(tmp_path, backup, "trigger|view|virtual|generated|expression")


@pytest.mark.parametrize(
    "change",
    [
        "model_versions SET id = '../../../neighbour'",
        "model_versions SET id = '/etc/neighbour'",
        "model_versions SET id = '..'",
        "model_versions SET number = '/../../neighbour'",
        "model_versions SET base_fingerprint = '../neighbour'",
        "agents SET slug = '../neighbour'",
        "aliases SET name = 'live/../../neighbour'",
        "exports SET quant = '../../neighbour'",
        "runs SET id = '../neighbour'",
    ],
)
def test_no_name_in_the_rows_leads_out_of_the_home(tmp_path: Path, change: str) -> None:
    """The files of a version are written into a folder that has its id, and those of a run are
    deleted from one."""
    backup = backup_with_version(tmp_path)
    change_rows(backup, f"UPDATE {change}")
    assert_refused(tmp_path, backup, "leads out of a home")


def test_a_server_gives_out_no_file_that_a_backup_names(tmp_path: Path) -> None:
    backup = backup_with_version(tmp_path)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    files = json.dumps({"key": {"sha256": "0" * 64, "size": 6}})
    change = f"UPDATE exports SET path = '{tmp_path / 'private'}', files = '{files}'"
    change_rows(backup, change)
    for keeps_access, is_given in ((False, False), (True, True)):
        home = Home.at(tmp_path / f"restored-{keeps_access}")
        backend = Sqlite(home.database, home.lock)
        restored = restore(home, backend, backup, keep_access=keeps_access)
        assert restored.shut_out == ({} if keeps_access else {"paths of exports": 1})
        with opened_home(home.path) as ws:
            (export,) = exports(ws, versions.version(ws, AGENT, "v0"))
            if is_given:  # the backup is the owner's own
                assert file_of(export, "key").read_text() == "secret"
            else:
                with pytest.raises(NotFound):
                    file_of(export, "key")


def test_an_erasure_deletes_no_file_that_a_backup_names(tmp_path: Path) -> None:
    backup = backup_of(tmp_path)
    note = {"version": "ver_1", "path": "/home/ann/.profile", "sha256": "0" * 64}
    content = json.dumps(note).encode() + b"\n"
    (backup / REPORTS).write_bytes(content)
    declare(backup, REPORTS, content)
    for keeps_access, notes in ((False, []), (True, [note])):
        home = Home.at(tmp_path / f"restored-{keeps_access}")
        restore(home, Sqlite(home.database, home.lock), backup, keep_access=keeps_access)
        with opened_home(home.path) as ws:
            assert noted_lines(ws) == notes


def test_a_retention_deletes_exports_of_the_home_alone(tmp_path: Path) -> None:
    neighbour = tmp_path / "neighbour"
    neighbour.mkdir()
    with opened_home(tmp_path / "home") as ws:
        version = add_version(ws)
        ours = ws.home.path / "exports" / "ours"
        for folder in (ours, neighbour):
            (folder / "weights").mkdir(parents=True)
        (ws.home.path / "exports" / "link").symlink_to(neighbour)
        paths = (
            str(ours),
            f"{HOME}/exports/../../neighbour",
            f"{HOME}/exports/link",
            f"{HOME}/exports/..",
        )
        for number, path in enumerate((*paths, f"{HOME}/exports")):
            insert_export(ws, version, f"exp_{number}", path)
        retire = model_version_rows.update().values(state="retired")
        ws.db.write(lambda connection: connection.execute(retire))
        agent = Agent.named(AGENT)
        retain_versions(ws, agent, datetime.now(UTC), frozenset(), dry_run=False)
        assert not ours.exists() and ours.parent.is_dir()
    assert (neighbour / "weights").is_dir()


def test_a_name_of_a_file_and_a_folder_is_an_error_with_a_reason(tmp_path: Path) -> None:
    backup = backup_of(tmp_path)
    names = ("inbox/a/b", "inbox/a")

    def add(tar: tarfile.TarFile) -> None:
        for name in names:
            tar.addfile(member(name, size=1), io.BytesIO(b"x"))

    for name in names:
        declare(backup, name, b"x")
    home = Home.at(tmp_path / "restored")
    with pytest.raises(StorageError, match="cannot be written"):
        restore(home, Sqlite(home.database, home.lock), packed(backup, add))


@pytest.mark.parametrize("field", ["sha256", "size"])
def test_an_entry_of_the_manifest_has_a_hash_and_a_size(tmp_path: Path, field: str) -> None:
    backup = backup_of(tmp_path)
    manifest = json.loads((backup / MANIFEST).read_text())
    manifest["files"][ROWS][field] = ["many"]
    (backup / MANIFEST).write_text(json.dumps(manifest))
    assert_refused(tmp_path, backup, "cannot be read")
