"""A nightly import of the Decision table: where its address comes from, and that no password is
stored."""

from __future__ import annotations

import json
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from test_ocd import row
from tests.command_line import Run
from thumbwheel.capture.jobs import ImportSpec, run_import
from thumbwheel.compat import ocd
from thumbwheel.core.errors import InputError
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers import detect
from thumbwheel.importers.location import Address, with_password
from thumbwheel.jobs import queue, schedules

SECRET = "sesame99"
WITH_PASSWORD = f"postgresql://app:{SECRET}@host/desk"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "decisions.jsonl"
    path.write_text("".join(json.dumps(row(number, "CONFIRMED")) + "\n" for number in range(3)))
    return path


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, of which nothing was read yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr(detect, "_announced", set())
    return tmp_path


def test_the_env_file_of_the_project_is_read_and_named_once(
    project: Path, table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dotenv")
    (project / ".env").write_text(f'# of the app\nexport DATABASE_URL="{table}"\nOTHER=1\n')
    assert ocd.get_training_stats("FILER")["total_decisions"] == 3
    assert ocd.get_training_stats("FILER")["decisions_with_feedback"] == 3
    assert capsys.readouterr().err.count(f"DATABASE_URL is that of {project / '.env'}") == 1
    # the environment stands before the file
    monkeypatch.setenv("DATABASE_URL", "/nowhere.jsonl")
    with pytest.raises(InputError, match="nowhere"):
        ocd.get_training_stats("FILER")


def test_without_both_the_error_names_both(project: Path) -> None:
    with pytest.raises(InputError, match=r"\.env here has DATABASE_URL") as raised:
        ocd.get_training_stats("FILER")
    # a script gives a source; a command of the shell would not help it
    assert "Give: source=FILE, or set DATABASE_URL" in str(raised.value)
    assert "thumbwheel import" not in str(raised.value)


def test_a_scheduled_import_reads_the_address_when_it_runs(
    empty_ws: Workspace, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"source": "decisions", "agent": "filer"}
    schedule = schedules.add(empty_ws, "nightly", "import", spec, "30 3 * * *", agent="filer")
    monkeypatch.setenv("DATABASE_URL", str(table))
    report = run_import(empty_ws, ImportSpec(**schedule.spec))
    assert (report.stored, report.refused) == (3, 0)


def test_a_password_is_stored_in_no_schedule_and_no_job(empty_ws: Workspace) -> None:
    for spec in ({"path": WITH_PASSWORD}, {"options": {"urls": [WITH_PASSWORD]}}):
        for store in (
            partial(schedules.add, empty_ws, "nightly", "import", spec, "30 3 * * *"),
            partial(queue.enqueue, empty_ws, "import", spec),
        ):
            with pytest.raises(InputError, match="thumbwheel secrets set") as raised:
                store()
            assert SECRET not in str(raised.value) and "app:***@host" in str(raised.value)
    spec = {"source": "decisions", "path": "postgresql://app@host/desk", "key": "desk-db"}
    schedules.add(empty_ws, "nightly", "import", spec, "30 3 * * *")
    assert [schedule.spec for schedule in schedules.schedules(empty_ws)] == [spec]


def test_a_password_is_neither_printed_nor_in_the_database(
    command_line: Run, tmp_path: Path
) -> None:
    words = ("schedule", "add", "nightly", "--cron", "30 3 * * *", "--job", "import")
    about = ("--agent", "filer", "--set", "source=decisions")
    code, out, err = command_line(*words, *about, "--set", f"path={WITH_PASSWORD}")
    assert code == 2 and SECRET not in out + err
    code, out, err = command_line(*words, *about)
    assert code == 0, err
    code, out, err = command_line("schedule", "list", "--json")
    assert json.loads(out)[0]["spec"] == {"source": "decisions", "agent": "filer"}
    home = tmp_path / "home"
    with sqlite3.connect(home / "thumbwheel.db") as connection:
        assert SECRET not in "".join(connection.iterdump())


def test_a_stored_password_is_put_into_the_address(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_password(Address("postgresql://app@host:5433/desk?schema=a"), "s@/1").url == (
        "postgresql://app:s%40%2F1@host:5433/desk?schema=a"
    )
    for url in ("postgresql://host/desk", WITH_PASSWORD):
        with pytest.raises(InputError, match="a user and without a password"):
            with_password(Address(url), "x")
    SecretStore(empty_ws.home.secrets).set("desk-db", SECRET)
    spec = ImportSpec(
        source="decisions",
        agent="filer",
        path="postgresql://app@127.0.0.1:1/desk?connect_timeout=1",
        key="desk-db",
    )
    pytest.importorskip("psycopg")
    with pytest.raises(InputError) as raised:
        run_import(empty_ws, spec)
    assert "app:***@127.0.0.1" in str(raised.value) and SECRET not in str(raised.value)
