"""A home moves between SQLite and PostgreSQL, and is backed up and restored on both, with the same
rows and the same fingerprints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from tests.servers.postgres_server import Databases
from tests.worlds.erasure_world import AGENT, lines_of, write
from thumbwheel.access import audit, keys
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, Conflict, InputError, NotFound, StorageError
from thumbwheel.datasets.build import build
from thumbwheel.db.dialects import SQLITE, Postgresql, Sqlite, backend_at
from thumbwheel.db.migrate import upgrade
from thumbwheel.db.schema import agents, homes, metadata, traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.homes.backup import back_up, restore
from thumbwheel.homes.move import move

pytestmark = pytest.mark.postgresql
PEOPLE = 12
KEY = "of thirty-two bytes, as they all"
"""A signing key of a home."""
METADATA = {"lone": 5, "nested": [1.5, None, True, {"ü": "\U0001f553"}]}


@pytest.fixture
def new_url(databases: Databases) -> Iterator[Callable[[], str]]:
    """Makes empty databases."""
    urls: list[str] = []

    def create() -> str:
        urls.append(databases.empty())
        return urls[-1]

    yield create
    for url in urls:
        databases.drop(url)


def opened(home: Path, address: str) -> Workspace:
    variables = {} if address == SQLITE else {"THUMBWHEEL_DATABASE": address}
    return Workspace.open(Home.at(home), Sources({}, "none", variables))


def filled(home: Path, address: str, folder: Path) -> str:
    """A home with people's feedback and a dataset of it; the fingerprint of the dataset."""
    lines = [line for person in range(PEOPLE) for line in lines_of(person)]
    lines[0]["metadata"] = METADATA
    with opened(home, address) as ws:
        assert not ingest(ws, AGENT, "jsonl", write(folder / "lines.jsonl", lines)).refused
        return build(ws, AGENT, "labels").fingerprint


def rows_of(ws: Workspace) -> dict[str, list[str]]:
    with ws.db.read() as connection:
        return {
            table.name: sorted(repr(tuple(row)) for row in connection.execute(sa.select(table)))
            for table in metadata.sorted_tables
            if table is not homes
        }


def test_a_home_moves_there_and_back(tmp_path: Path, new_url: Callable[[], str]) -> None:
    home, url = tmp_path / "home", new_url()
    fingerprint = filled(home, SQLITE, tmp_path)
    with opened(home, SQLITE) as ws:
        before = rows_of(ws)
    assert before["datasets"] and before["messages"] and before["feedback_targets"]

    there = move(Home.at(home), SQLITE, url, {})
    assert (there.source, there.target) == ("sqlite", url)
    assert there.rows["traces"] == len(before["traces"])
    with opened(home, url) as ws:
        assert rows_of(ws) == before
        assert build(ws, AGENT, "labels").fingerprint == fingerprint
        assert len(rows_of(ws)["datasets"]) == 1  # built anew it is the same one
        ws.db.write(lambda c: c.execute(sa.text("DELETE FROM datasets")))
        assert build(ws, AGENT, "labels").fingerprint == fingerprint
        ingest(ws, AGENT, "jsonl", write(tmp_path / "more.jsonl", lines_of(PEOPLE)))
        after = rows_of(ws)
    with pytest.raises(ConfigError, match="the rows of this home are in 'postgresql://"):
        opened(home, SQLITE)

    with pytest.raises(Conflict, match=r"thumbwheel.db.*it is not empty"):
        move(Home.at(home), url, SQLITE, {})
    (home / "thumbwheel.db").rename(tmp_path / "before.db")
    move(Home.at(home), url, SQLITE, {})
    with opened(home, SQLITE) as ws:
        assert rows_of(ws) == after
    with pytest.raises(ConfigError, match="the rows of this home are in 'sqlite'"):
        opened(home, url)


@pytest.mark.parametrize("of", ["sqlite", "postgresql"])
def test_who_has_the_home_open_while_it_moves_leaves_no_row_behind(
    tmp_path: Path, new_url: Callable[[], str], of: str
) -> None:
    home, url = tmp_path / "home", new_url()
    source = SQLITE if of == "sqlite" else new_url()
    filled(home, source, tmp_path)
    with opened(home, source) as server:
        move(Home.at(home), source, url, {})
        before = rows_of(server)
        with pytest.raises(StorageError, match="moved to another database"):
            ingest(server, AGENT, "jsonl", write(tmp_path / "late.jsonl", lines_of(PEOPLE)))
        assert rows_of(server) == before
    with opened(home, url) as ws:
        assert rows_of(ws) == before


def test_foreign_keys_hold_after_a_move(tmp_path: Path, new_url: Callable[[], str]) -> None:
    url = new_url()
    filled(tmp_path / "home", SQLITE, tmp_path)
    move(Home.at(tmp_path / "home"), SQLITE, url, {})
    engine = Postgresql.from_url(url, "test").engine()
    names = {key["name"] for key in sa.inspect(engine).get_foreign_keys("messages")}
    engine.dispose()
    assert names == {"fk_messages_parent_id"}


def test_what_the_target_cannot_hold_is_said_and_nothing_is_copied(
    tmp_path: Path, new_url: Callable[[], str]
) -> None:
    home, url = tmp_path / "home", new_url()
    filled(home, SQLITE, tmp_path)
    with opened(home, SQLITE) as ws:
        ws.db.write(lambda c: c.execute(traces.update().values(output="a\x00b")))
    with pytest.raises(StorageError, match="cannot store a row of table 'traces'"):
        move(Home.at(home), SQLITE, url, {})
    with opened(home, SQLITE) as ws:  # the home is still there
        assert len(rows_of(ws)["agents"]) == 1
    with opened(tmp_path / "other", url) as ws:
        assert not any(rows_of(ws).values())


def test_a_move_needs_the_rows_and_an_empty_database(
    tmp_path: Path, new_url: Callable[[], str]
) -> None:
    home, url, other = tmp_path / "home", new_url(), new_url()
    with pytest.raises(NotFound, match="no such file"):
        move(Home.at(home), SQLITE, url, {})
    filled(home, SQLITE, tmp_path)
    with pytest.raises(ConfigError, match="the rows of this home are in 'sqlite'"):
        move(Home.at(home), url, other, {})
    opened(tmp_path / "second", other).db.close()
    with pytest.raises(Conflict, match="it is not empty: table 'homes'"):
        move(Home.at(home), SQLITE, other, {})
    with pytest.raises(ConfigError, match="argument TO: it is no URL"):
        move(Home.at(home), SQLITE, "elsewhere", {})
    with opened(home, SQLITE):
        pass


KILLED = """
import os, sys
from thumbwheel.core.config import Home
from thumbwheel.db import transfer
from thumbwheel.homes.move import move
transfer._count = lambda connection, table, counts=[]: counts.append(1) or (
    os.kill(os.getpid(), 9) if len(counts) > len(transfer.TABLES) else 0
)
move(Home.at(sys.argv[1]), "sqlite", sys.argv[2], {})
"""


def test_a_move_that_is_killed_has_moved_nothing(
    tmp_path: Path, new_url: Callable[[], str]
) -> None:
    home, url = tmp_path / "home", new_url()
    filled(home, SQLITE, tmp_path)
    command = [sys.executable, "-c", KILLED, str(home), url]
    assert subprocess.run(command, check=False).returncode == -9
    with opened(home, SQLITE) as ws:
        before = rows_of(ws)
    move(Home.at(home), SQLITE, url, {})
    with opened(home, url) as ws:
        assert rows_of(ws) == before


@pytest.mark.parametrize("of", ["sqlite", "postgresql"])
@pytest.mark.parametrize("into", ["sqlite", "postgresql"])
def test_a_backup_is_the_home_as_it_was(
    tmp_path: Path, new_url: Callable[[], str], of: str, into: str
) -> None:
    address = SQLITE if of == "sqlite" else new_url()
    fingerprint = filled(tmp_path / "home", address, tmp_path)
    target = tmp_path / ("backup.tar" if into == "sqlite" else "backup")
    with opened(tmp_path / "home", address) as ws:
        (ws.home.path / "signing.key").write_text(KEY)
        (ws.home.inbox / "waiting.jsonl").write_text("{}\n")
        (ws.home.path / "unsent" / "server").mkdir(parents=True)
        (ws.home.path / "unsent" / "server" / "waiting.jsonl").write_text("[]\n")
        keys.add(ws, "app")
        before = rows_of(ws)
        backup = back_up(ws, target)
        keys.revoke(ws, "app")
        ingest(ws, AGENT, "jsonl", write(tmp_path / "later.jsonl", lines_of(PEOPLE)))
    assert backup.missing == []
    assert backup.counts()["blobs"] >= 1
    assert {path.name for path in tmp_path.iterdir()} >= {target.name}
    assert not list(tmp_path.glob(".*tmp"))

    restored_address = SQLITE if into == "sqlite" else new_url()
    home = Home.at(tmp_path / "restored")
    backend = backend_at(home, restored_address, "test")
    restore(home, backend, target, keep_access=True)
    with opened(home.path, restored_address) as ws:
        assert rows_of(ws) == before
        assert build(ws, AGENT, "labels").fingerprint == fingerprint
        assert [key.name for key in keys.listed(ws)] == ["app"]
        assert audit.verify(ws).problem is None
        assert (home.path / "signing.key").read_text() == KEY
        assert (home.path / "signing.key").stat().st_mode & 0o777 == 0o600
        assert (home.inbox / "waiting.jsonl").read_text() == "{}\n"
        assert (home.path / "unsent" / "server" / "waiting.jsonl").read_text() == "[]\n"


@pytest.mark.parametrize("of", ["sqlite", "postgresql"])
def test_a_backup_while_others_write_is_of_one_moment(
    tmp_path: Path, new_url: Callable[[], str], of: str
) -> None:
    address = SQLITE if of == "sqlite" else new_url()
    filled(tmp_path / "home", address, tmp_path)
    stop = threading.Event()
    with opened(tmp_path / "home", address) as ws:

        def write_on() -> None:
            number = PEOPLE
            while not stop.is_set():
                number += 1
                file = write(tmp_path / f"{number}.jsonl", lines_of(number))
                ingest(ws, AGENT, "jsonl", file)

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            for number in range(3):
                back_up(ws, tmp_path / f"backup-{number}")
        finally:
            stop.set()
            thread.join()
    sizes = []
    for number in range(3):
        home = Home.at(tmp_path / f"restored-{number}")
        restore(home, Sqlite(home.database, home.lock), tmp_path / f"backup-{number}")
        with opened(home.path, SQLITE) as ws:
            rows = rows_of(ws)
        sizes.append(len(rows["traces"]))
        # an import commits its lines together, so a person's are all there or none
        assert len(rows["traces"]) % 3 == 0
        assert len(rows["feedback"]) * 3 == len(rows["traces"]) * 5
    assert sizes == sorted(sizes)


def damage_file(backup: Path) -> str:
    (blob, *_) = (backup / "blobs").iterdir()
    blob.write_bytes(b"other")
    return "is damaged"


def lose_file(backup: Path) -> str:
    (blob, *_) = (backup / "blobs").iterdir()
    blob.unlink()
    return "is missing"


def change_manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(backup: Path) -> None:
        manifest = json.loads((backup / "backup.json").read_text())
        change(manifest)
        (backup / "backup.json").write_text(json.dumps(manifest))

    return damage


def escape(manifest: dict[str, Any]) -> None:
    manifest["files"]["inbox/../../escaped"] = manifest["files"]["thumbwheel.db"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_file, "is damaged"),
        (lose_file, "is missing"),
        (lambda backup: (backup / "backup.json").unlink(), "backup.json cannot be read"),
        (lambda backup: (backup / "backup.json").write_text("[]"), "backup.json cannot be read"),
        (change_manifest(lambda m: m.update(format=99)), "format 99 is not known"),
        (change_manifest(lambda m: m["files"].pop("thumbwheel.db")), "thumbwheel.db is missing"),
        (change_manifest(escape), "none of a home"),
    ],
)
def test_a_damaged_backup_is_refused_and_nothing_is_written(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    filled(tmp_path / "home", SQLITE, tmp_path)
    with opened(tmp_path / "home", SQLITE) as ws:
        back_up(ws, tmp_path / "backup")
    damage(tmp_path / "backup")
    home = Home.at(tmp_path / "restored")
    with pytest.raises(InputError, match=why):
        restore(home, Sqlite(home.database, home.lock), tmp_path / "backup")
    assert not home.path.exists()
    assert not (tmp_path / "escaped").exists()


def test_a_backup_goes_into_a_new_home_only_and_replaces_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "home", SQLITE, tmp_path)
    home = Home.at(tmp_path / "home")
    with opened(home.path, SQLITE) as ws:
        back_up(ws, tmp_path / "backup.tar")
        with pytest.raises(Conflict, match="it already exists"):
            back_up(ws, tmp_path / "backup.tar")
        before = rows_of(ws)
    with pytest.raises(Conflict, match="it is not empty"):
        restore(home, Sqlite(home.database, home.lock), tmp_path / "backup.tar")
    with opened(home.path, SQLITE) as ws:
        assert rows_of(ws) == before
    with pytest.raises(InputError, match="cannot be read"):
        restore(Home.at(tmp_path / "new"), Sqlite(tmp_path / "db", tmp_path / "l"), tmp_path / "no")


def test_a_home_with_its_rows_elsewhere_is_no_new_one(
    tmp_path: Path, new_url: Callable[[], str]
) -> None:
    home = Home.at(tmp_path / "home")
    filled(home.path, new_url(), tmp_path)
    filled(tmp_path / "other", SQLITE, tmp_path)
    with opened(tmp_path / "other", SQLITE) as ws:
        back_up(ws, tmp_path / "backup.tar")
    with pytest.raises(Conflict, match="it has rows already, in 'postgresql://"):
        restore(home, Sqlite(home.database, home.lock), tmp_path / "backup.tar")


def test_a_home_that_came_into_use_during_a_restore_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "home", SQLITE, tmp_path)
    with opened(tmp_path / "home", SQLITE) as ws:
        back_up(ws, tmp_path / "backup.tar")
    home = Home.at(tmp_path / "restored")

    def upgrade_late(snapshot: Sqlite) -> None:  # the last step before the rows are stored
        upgrade(snapshot)
        filled(home.path, SQLITE, tmp_path)

    monkeypatch.setattr("thumbwheel.homes.backup.upgrade", upgrade_late)
    with pytest.raises(Conflict, match="it is not empty"):
        restore(home, Sqlite(home.database, home.lock), tmp_path / "backup.tar")
    assert not list(home.path.glob(".*tmp"))
    with opened(home.path, SQLITE) as ws:
        assert rows_of(ws)["traces"]


def test_a_blob_that_is_gone_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "home", SQLITE, tmp_path)
    with opened(tmp_path / "home", SQLITE) as ws:
        shutil.rmtree(ws.home.blobs / "sha256")
        backup = back_up(ws, tmp_path / "backup.tar")
    assert backup.missing
    with tarfile.open(tmp_path / "backup.tar") as file:
        assert not [name for name in file.getnames() if name.startswith("blobs/")]


def test_the_commands(command_line: Run, tmp_path: Path, new_url: Callable[[], str]) -> None:
    url = new_url().replace("postgres@", "postgres:s3cret@")
    write(tmp_path / "lines.jsonl", [line for person in range(3) for line in lines_of(person)])
    assert command_line("import", "jsonl", "lines.jsonl", "--agent", AGENT)[0] == 0
    code, out, err = command_line("db", "copy", "sqlite", url, "--json")
    assert code == 0, err
    assert json.loads(out)["rows"]["agents"] == 1
    assert "s3cret" not in out + err
    code, out, err = command_line("feedback", "stats", "--agent", AGENT)
    assert code == 2
    assert "Set THUMBWHEEL_DATABASE" in err and "s3cret" not in err
    os.environ["THUMBWHEEL_DATABASE"] = url
    try:
        assert command_line("feedback", "stats", "--agent", AGENT)[0] == 0
        code, out, err = command_line("backup", "monday.tar")
        assert code == 0 and "Backed up to monday.tar" in out
        assert "s3cret" not in out + err + (tmp_path / "home" / "database.json").read_text()
    finally:
        del os.environ["THUMBWHEEL_DATABASE"]
    code, out, err = command_line("--home", "restored", "restore", "monday.tar", "--json")
    assert code == 0, err
    assert json.loads(out)["missing"] == []
    with opened(tmp_path / "restored", SQLITE) as ws, ws.db.read() as connection:
        assert list(connection.execute(sa.select(agents.c.slug)).scalars()) == [AGENT]
