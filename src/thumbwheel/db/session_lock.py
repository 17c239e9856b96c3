"""Locks that are held for longer than a transaction, by one process of all hosts of a home.

With PostgreSQL it is an advisory lock of a session of its own, which a thread keeps awake. As in
`leadership.py`, the database ends a session that is silent for `SILENT` seconds, so that the lock
of a host that was cut off is free again; whatever that host writes afterwards is refused. A home
with SQLite is on one host, where the callers lock a file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import sqlalchemy as sa

from thumbwheel.core.errors import Conflict
from thumbwheel.db.dialects import Postgresql
from thumbwheel.db.leadership import EVERY, SILENT, holder_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import lock_number

LOOK_EVERY = 0.1
"""Seconds between two tries to take a lock that another process has."""


def is_of_many_hosts(ws: Workspace) -> bool:
    """Return whether processes of several hosts may have this home open."""
    return isinstance(ws.db.backend, Postgresql)


@contextmanager
def held(ws: Workspace, name: str, *, wait: bool) -> Iterator[Workspace | None]:
    """Hold the lock of a name; yield the home, whose writes raise Conflict once the lock is lost.
    If another process has it, wait for it, or without `wait` yield None."""
    backend = ws.db.backend
    assert isinstance(backend, Postgresql)  # noqa: S101 - the caller asked is_of_many_hosts
    number, released = lock_number(name), threading.Event()
    with ExitStack() as stack:
        engine = backend.session_engine()
        stack.callback(engine.dispose)
        with backend.errors():
            session = engine.connect()
            stack.callback(_close, session)
            pid = _take(session, number, wait=wait)
        if pid is None:
            yield None
            return

        def guard(connection: sa.Connection) -> None:
            if holder_of(connection, number) != pid:
                raise Conflict(
                    f"the {name}",
                    "this host was cut off from the database meanwhile, and lost its turn",
                    "See what is live now, then try again",
                )

        thread = threading.Thread(
            target=_keep_awake, args=(session, released), name="session lock", daemon=True
        )
        thread.start()
        stack.callback(thread.join)
        stack.callback(released.set)
        yield replace(ws, db=ws.db.guarded(guard))


def _take(session: sa.Connection, number: int, *, wait: bool) -> int | None:
    """Take the lock and return the id of the session on the server; None if another one has it."""
    session.exec_driver_sql(f"SET idle_session_timeout = '{SILENT:g}s'")
    pause = threading.Event()
    while True:
        is_free, pid = session.exec_driver_sql(
            f"SELECT pg_try_advisory_lock({number}), pg_backend_pid()"
        ).one()
        if is_free:
            return int(pid)
        if not wait:
            return None
        pause.wait(LOOK_EVERY)


def _keep_awake(session: sa.Connection, released: threading.Event) -> None:
    while not released.wait(EVERY):
        try:
            session.exec_driver_sql("SELECT 1")
        except Exception:  # noqa: BLE001 - whatever the driver raises: the guard sees the loss
            return


def _close(session: sa.Connection) -> None:
    with suppress(Exception):  # it may be gone
        session.invalidate()
    with suppress(Exception):
        session.close()
