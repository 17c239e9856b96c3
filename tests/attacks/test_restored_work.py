"""Work that a backup brings along, and passwords that were stored before they were refused."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.attacks.test_n06_older_homes import database_at
from tests.command_line import Run
from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.access import audit, keys, users
from thumbwheel.access.store import insert_session, sessions
from thumbwheel.access.types import LoginSession
from thumbwheel.core.config import Home
from thumbwheel.db import migrate
from thumbwheel.db.dialects import Sqlite
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.schema import deployments as deployment_rows
from thumbwheel.db.schema import jobs as job_rows
from thumbwheel.db.schema import schedules as schedule_rows
from thumbwheel.deploy import store as deployment_store
from thumbwheel.deploy.types import DeploymentState, Endpoint
from thumbwheel.homes.backup import back_up, restore
from thumbwheel.jobs import queue, schedules
from thumbwheel.jobs.types import JobState
from thumbwheel.loop import turn_store
from thumbwheel.models.versions import ensure_agent, ensure_base

PASSWORD = "hunter2-and-more"
ADDRESS = f"postgresql://reader:{PASSWORD}@db.example/app"


def hostile_backup(folder: Path) -> Path:
    """A backup with a job in each state that has not ended, a schedule and a loop."""
    spec = {"source": "jsonl", "path": "/etc/passwd", "agent": AGENT}
    with opened_home(folder / "home") as ws:
        agent_id = ensure_agent(ws, AGENT)
        for state in ("queued", "running", "cancelling"):
            row = queue.enqueue(ws, "import", spec, agent=AGENT)
            change = job_rows.update().where(job_rows.c.id == row.id).values(state=state)
            ws.db.write(lambda connection, change=change: connection.execute(change))
        schedules.add(ws, "nightly", "import", spec, "* * * * *", agent=AGENT)
        now = datetime.now(UTC)
        ws.db.write(lambda connection: turn_store.set_loop(connection, agent_id, True, {}, now))
        back_up(ws, folder / "backup")
    return folder / "backup"


def test_what_a_backup_would_do_waits_for_its_owner(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "restored")
    restored = restore(home, Sqlite(home.database, home.lock), hostile_backup(tmp_path))
    assert restored.held_back == {"jobs": 3, "schedules": 1, "loops": 1}
    with opened_home(tmp_path / "restored") as ws:
        page, _ = queue.jobs(ws, limit=10)
        assert [row.state for row in page] == [JobState.CANCELLED] * 3
        assert [row.paused for row in schedules.schedules(ws)] == [True]
        with ws.db.read() as connection:
            loop = turn_store.loop_of(connection, ensure_agent(ws, AGENT))
        assert loop is not None and not loop.enabled
        # and goes on where its owner says so
        assert queue.resume(ws, page[0].id).state is JobState.QUEUED


def backup_with_people(folder: Path) -> Path:
    """A backup of a home with a user, a key of theirs, one of an app, and an open browser."""
    with opened_home(folder / "home") as ws:
        ensure_agent(ws, AGENT)
        user = users.add(ws, "mallory", password="correct horse battery", role="owner")
        keys.add(ws, "app")
        keys.add(ws, "of-mallory", user=user.name)
        now = datetime.now(UTC)
        session = LoginSession("ses_1", user.id, now + timedelta(days=9), now)
        ws.db.write(lambda connection: insert_session(connection, session, "m" * 64))
        back_up(ws, folder / "backup")
    return folder / "backup"


def test_nobody_enters_by_a_backup(tmp_path: Path) -> None:
    """Whoever made a backup knows its keys and passwords."""
    home = Home.at(tmp_path / "restored")
    backup = backup_with_people(tmp_path)
    restored = restore(home, Sqlite(home.database, home.lock), backup)
    assert restored.shut_out == {"sessions": 1, "keys": 2, "users": 1}
    with opened_home(tmp_path / "restored") as ws:
        assert (users.listed(ws), keys.listed(ws)) == ([], [])
        with ws.db.read() as connection:
            assert sessions(connection) == []
        verdict = audit.verify(ws)
        assert verdict.rows >= 3 and verdict.problem is None  # what they did stays


def test_the_owner_of_a_backup_keeps_who_may_enter(tmp_path: Path, command_line: Run) -> None:
    backup = backup_with_people(tmp_path)
    for options, count in ((), 0), (("--keep-access",), 2):
        name = f"restored-{count}"
        code, out, err = command_line("--home", name, "restore", str(backup), *options)
        assert code == 0, err
        assert ("--keep-access" in out + err) == (count == 0)
        with opened_home(tmp_path / name) as ws:
            assert len(keys.listed(ws)) == count


def test_no_call_goes_where_a_backup_says(tmp_path: Path) -> None:
    endpoint = Endpoint("http://attacker.example/v1", "m")
    with opened_home(tmp_path / "home") as ws:
        version = ensure_base(ws, AGENT, "base", "f" * 64)

        def deploy(connection: sa.Connection) -> None:
            new = deployment_store.insert(connection, version, None, "remote", "m", {})
            (row,) = deployment_store.find(connection, ws.home, deployment_store.by_id(new))
            deployment_store.set_state(
                connection, ws.home, row, DeploymentState.WARM, endpoint, None
            )

        ws.db.write(deploy)
        back_up(ws, tmp_path / "backup")
    for keeps_access, states in ((False, ["ended"]), (True, ["warm"])):
        home = Home.at(tmp_path / f"restored-{keeps_access}")
        backend = Sqlite(home.database, home.lock)
        restored = restore(home, backend, tmp_path / "backup", keep_access=keeps_access)
        assert restored.shut_out == ({} if keeps_access else {"deployments": 1})
        with opened_home(home.path) as ws, ws.db.read() as connection:
            query = sa.select(deployment_rows.c.state)
            assert list(connection.execute(query).scalars()) == states


@pytest.mark.sqlite
def test_passwords_of_older_schedules_and_jobs_are_gone(tmp_path: Path) -> None:
    backend = database_at(tmp_path, "tw0009")
    spec: dict[str, Any] = {
        "source": "langfuse",
        "path": ADDRESS,
        "options": {"nested": [f"host=db password={PASSWORD}", "plain"]},
    }
    now = datetime.now(UTC)
    schedule = {
        "kind": "import",
        "agent": AGENT,
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "missed": "once",
        "paused": False,
        "recorded_at": now,
    }
    job = {
        "id": "job_1",
        "kind": "import",
        "spec": spec,
        "priority": 0,
        "state": "succeeded",
        "attempts": 1,
        "crashes": 0,
        "fence": 1,
        "notes": {},
        "last_event": 0,
        "recorded_at": now,
    }
    with writing(backend) as engine, engine.begin() as connection:
        rows = [
            {"id": "sch_1", "name": "with", "spec": spec, **schedule},
            {"id": "sch_2", "name": "without", "spec": {"path": "/data/a.jsonl"}, **schedule},
        ]
        connection.execute(schedule_rows.insert(), rows)
        connection.execute(job_rows.insert().values(**job))
    migrate.upgrade(backend)
    with closing(Database(backend)) as database, database.read() as connection:
        stored = connection.execute(sa.select(schedule_rows).order_by(schedule_rows.c.id)).all()
        of_job = connection.execute(sa.select(job_rows.c.spec)).scalar_one()
    assert PASSWORD not in repr(stored) + repr(of_job)
    assert stored[0].spec["path"] == "postgresql://reader:***@db.example/app"
    assert stored[0].spec["options"]["nested"][1] == "plain"
    assert [row.paused for row in stored] == [True, False]
    assert stored[1].spec == {"path": "/data/a.jsonl"}
