"""Backups that a stranger wrote: links, holes, headers without end, programs in the database."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError
from thumbwheel.db.dialects import Sqlite
from thumbwheel.homes.backup import MANIFEST, ROWS, back_up, restore
from thumbwheel.models.versions import ensure_agent

REPORT = "reports/r.html"


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
    ],
)
def test_programs_in_the_rows_are_refused(tmp_path: Path, statement: str) -> None:
    backup = backup_of(tmp_path)
    with closing(sqlite3.connect(backup / ROWS)) as connection:
        connection.execute(statement)
        connection.commit()
    declare(backup, ROWS, (backup / ROWS).read_bytes())
    assert_refused(tmp_path, backup, "trigger|view|virtual")
