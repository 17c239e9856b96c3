"""Where the rows of a home are kept, and everything that differs between SQLite and PostgreSQL:
connecting, locking, what errors mean, types, snapshots, and taking deleted bytes off the disk.

The rest of the project writes SQLAlchemy that both understand. The two promise the same: readers
see one state and cannot write, writes exclude each other as `write_locks.py` says, an acknowledged
write is on disk, text sorts by code point, and text and JSON are accepted and come back alike.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import AddConstraint, DropConstraint
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from thumbwheel.core import log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError, MissingExtra, StorageError
from thumbwheel.core.locks import FairLock
from thumbwheel.core.stored_json import parsed, read_json
from thumbwheel.db.write_locks import WHOLE_HOME, WriteLock, lock_number
from thumbwheel.db.writer import WRITE_LOCK, TransactionLost

if TYPE_CHECKING:
    import psycopg

VARIABLE = "THUMBWHEEL_DATABASE"
"""The variable that names a PostgreSQL database; without it a home keeps its rows in SQLite."""

SQLITE, POSTGRESQL = "sqlite", "postgresql"
EXAMPLE = "postgresql://USER@HOST:5432/DATABASE"

WAIT = 30.0
"""Seconds to wait for another process that writes, or for a server that starts again."""

READERS, IDLE_READERS = 50, 5
"""Most connections of a process that read at once, more than a server has threads; and how many of
them stay open."""

READER_WAIT = 10.0
"""Seconds to wait for one of them."""

STANDING = 10.0
"""Seconds after which PostgreSQL ends a write in which nothing happens any more: its process was
stopped, or its host hangs, and everybody else waits for it. It is less than the lease of a worker,
so that those that wait keep their jobs."""

SILENT_SECONDS = 2.0
"""Seconds of waiting after which the user is told."""

TIMEOUTS: Mapping[str, int] = {
    "connect_timeout": 10,  # seconds
    "tcp_user_timeout": 15_000,  # milliseconds
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""libpq's settings that notice a server that went away without a word (a cable that was pulled);
without them a command hangs for minutes. The URL may set others."""

OLDEST_SERVER = 15
"""The oldest major version of PostgreSQL that CI tests."""

WRITER_LOCK = lock_number("writer")
"""The advisory lock of the home, which every writer takes, most of them shared; PostgreSQL keeps
such locks by database."""

STANDING_WRITERS = f"""
SELECT pg_terminate_backend(holder.pid)
FROM pg_locks AS holder JOIN pg_stat_activity AS activity USING (pid)
WHERE holder.locktype = 'advisory' AND holder.granted
AND holder.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((holder.classid::bigint << 32) | holder.objid::bigint) = {WRITER_LOCK}
AND activity.wait_event = 'ClientRead'
AND greatest(activity.state_change, activity.query_start)
    < clock_timestamp() - make_interval(secs => :seconds)
"""
"""Ends the writers from whom the server has heard nothing for so long."""
CHANNEL = "thumbwheel_changes"
"""Where commits are announced; each database has its own. The server commits such transactions one
after the other, so rows of capture, of which there are many, are not announced."""
WATCHES = itertools.count()
"""Numbers the connections that listen."""
LOCK_TIMEOUT = "55P03"
"""SQLSTATE of a lock that was not to be had in time."""


class Backend(Protocol):
    """The database of one home."""

    @property
    def name(self) -> str:
        """How messages name it; holds no secret."""

    @property
    def address(self) -> str:
        """`SQLITE`, or the URL without secrets."""

    @property
    def secret_address(self) -> str:
        """What `opened_at` opens in a child process. It may hold a password: hand it over by a pipe
        or the environment, never by the command line."""

    def watch(self, driver: Any) -> Callable[[], object]:
        """Return a function that returns another value after each commit of another connection that
        is not quiet (`write_locks.py`); a call costs microseconds. `driver` is a connection of the
        driver that is used for nothing else."""

    @property
    def has_many_writers(self) -> bool:
        """Whether a write leaves others free to write meanwhile (`write_locks.py`)."""

    @property
    def exists(self) -> bool:
        """Whether there can be rows already."""

    def engine(self) -> sa.Engine:
        """Return an engine that may write. Use it inside `exclusive`."""

    def reader(self) -> sa.Engine:
        """Return an engine whose transactions see one state of the database and cannot write."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep every other process from writing until the end of the block. Raises StorageError if
        waiting for it takes too long."""

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of this database into StorageError, or into TransactionLost if the same
        work can succeed when it is run again at once."""

    def snapshot(self, connection: sa.Connection) -> str | None:
        """Return a name with which another process can `follow` the state that `connection` sees,
        while `connection` is open; None if the database has no such names."""

    def follow(self, connection: sa.Connection, snapshot: str | None) -> None:
        """Make the fresh `connection` see the state that a snapshot names."""

    def out_of_order(
        self, connection: sa.Connection, references: Sequence[sa.ForeignKeyConstraint]
    ) -> AbstractContextManager[None]:
        """Allow rows to be written before the rows that they reference by one of `references`; at
        the end of the transaction all of them must exist."""

    def save_file(self, path: Path) -> bool:
        """Write a snapshot of the database into a new SQLite file, by its own means. Return False
        if it has none."""

    def prepare_erasure(self, connection: sa.Connection) -> None:
        """Call before rows are deleted whose bytes are to go too; `compact` follows."""

    def compact(self, tables: Sequence[str]) -> None:
        """Rewrite `tables` without deleted rows, so that the files of the database hold no byte of
        them.

        Raises StorageError if another program still reads the old rows.
        """


def backend_of(home: Home, environment: Mapping[str, str]) -> Backend:
    """Return the database of `home`: the one in THUMBWHEEL_DATABASE, else SQLite's file in the
    home."""
    return backend_at(home, environment.get(VARIABLE, ""), f"variable {VARIABLE}")


def backend_at(home: Home, address: str, where: str) -> Backend:
    """Return the database at `address`: a PostgreSQL URL, or "sqlite" for the file in the home.

    Raises ConfigError, which names `where` it was set and never the address itself, as that may
    hold a password.
    """
    if address in ("", SQLITE):
        return Sqlite(home.database, home.lock)
    return Postgresql.from_url(address, where)


def opened_at(secret_address: str) -> Backend:
    """Return, for reading, the database that another process named by its `secret_address`."""
    if secret_address.startswith(f"{POSTGRESQL}://"):
        return Postgresql.from_url(secret_address, "another process")
    path = Path(secret_address)
    return Sqlite(path, path.with_name("unused.lock"))


# SQLite


@dataclass(frozen=True)
class Sqlite:
    """One file in WAL mode with `synchronous=FULL`.

    Exactly one connection writes at a time, over all processes: the writer holds `lock` while it
    writes. (Before SQLite 3.51.3, two connections that write and checkpoint at the same instant can
    corrupt a WAL file: sqlite.org/wal.html#walresetbug.) Readers open the file read-only, so
    closing them checkpoints nothing.
    """

    path: Path
    lock: Path
    wait: float = WAIT
    _locks: threading.local = field(default_factory=threading.local, repr=False, compare=False)
    """The FairLock of each thread, which keeps the place in the queue of one that gave up."""

    @property
    def name(self) -> str:
        return f"database {str(self.path)!r}"

    @property
    def address(self) -> str:
        return SQLITE

    @property
    def secret_address(self) -> str:
        return str(self.path)

    def watch(self, driver: Any) -> Callable[[], object]:
        return lambda: driver.execute("PRAGMA data_version").fetchone()

    @property
    def has_many_writers(self) -> bool:
        return False

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def engine(self) -> sa.Engine:
        return self._engine("rwc")

    def reader(self) -> sa.Engine:
        return self._engine("ro")

    def _engine(self, mode: str) -> sa.Engine:
        def connect() -> sqlite3.Connection:
            if mode != "ro":
                # Create the file with private permissions first: SQLite's log and index inherit
                # them. If that fails, SQLite's own message says it better. A file that is there is
                # not opened: to close it again would take this process's locks off it, another
                # process would believe to be alone and delete the log, and what this one commits
                # afterwards would be lost (sqlite.org/howtocorrupt.html, 2.2).
                with suppress(OSError):
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            return sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=self.wait,
                isolation_level=None,
                check_same_thread=False,
            )

        engine = sa.create_engine(
            "sqlite://", creator=connect, poolclass=sa.pool.QueuePool, **pool_options()
        )

        @sa.event.listens_for(engine, "connect")
        def settings(connection: sqlite3.Connection, _: Any) -> None:
            if mode != "ro":
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.create_function("readable_json", 1, readable_json, deterministic=True)

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            holder = f"another program that holds {str(self.path)!r}"
            with _said_after_delay(f"waiting for {holder}, at most {self.wait:g} s"):
                connection.exec_driver_sql("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")

        return engine

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        other = f"another process that writes to {str(self.lock.parent)!r}"
        message = f"waiting for {other}, at most {self.wait:g} s"
        if not hasattr(self._locks, "lock"):
            self._locks.lock = FairLock(self.lock)
        hold = self._locks.lock.hold(
            self.wait, notice_after=SILENT_SECONDS, notice=lambda: log.say(message)
        )
        with ExitStack() as stack:
            try:
                stack.enter_context(hold)
            except OSError as error:
                raise self._lock_error(error) from None
            yield

    def _lock_error(self, error: OSError) -> StorageError:
        if isinstance(error, TimeoutError):
            return StorageError(
                f"home {str(self.lock.parent)!r}",
                "another process is writing to it and did not finish",
                "Wait for that process or stop it (fuser shows who holds writer.lock), then try "
                "again",
            )
        return StorageError(
            f"lock file {str(self.lock)!r}",
            error.strerror or str(error),
            "Make the home writable, or name another with --home",
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.DatabaseError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            explained = self._explained(cause)
            if explained is None:
                raise
            raise StorageError(self.name, *explained) from error

    def _explained(self, cause: BaseException | None) -> tuple[str, str] | None:
        """Return (why it failed, fix), or None if the storage did not cause the error."""
        reason = str(cause)
        if isinstance(cause, sqlite3.OperationalError):
            for words, explained in SQLITE_ERRORS.items():
                if words in reason:
                    return explained
            return reason, "Run the command again; if it stays, report it"
        is_damaged = "malformed" in reason or "not a database" in reason
        if isinstance(cause, sqlite3.DatabaseError) and is_damaged:
            return "the file is damaged or no database", "Restore it from a backup"
        return None

    def snapshot(self, connection: sa.Connection) -> str | None:
        return None

    def follow(self, connection: sa.Connection, snapshot: str | None) -> None:
        pass

    @contextmanager
    def out_of_order(
        self, connection: sa.Connection, references: Sequence[sa.ForeignKeyConstraint]
    ) -> Iterator[None]:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        yield

    def save_file(self, path: Path) -> bool:
        engine = self.reader()
        try:
            with self.errors(), closing(engine.raw_connection()) as connection:
                raw: Any = connection.driver_connection
                with closing(sqlite3.connect(path)) as target:
                    raw.backup(target)
        finally:
            engine.dispose()
        return True

    def damage(self) -> str | None:
        """Return a description of the file's damage, or None if every page of it can be read."""
        try:
            with closing(sqlite3.connect(self.path)) as connection:
                verdict = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
        except sqlite3.DatabaseError as error:
            return str(error)
        return None if verdict == "ok" else verdict

    def programs(self) -> list[str]:
        """Return the kinds and names of triggers, views, virtual tables, generated columns and
        indexes of expressions in the file, of which the schema has none."""
        query = (
            "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
            " UNION ALL SELECT 'virtual table', name FROM sqlite_master"
            " WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'"
            " UNION ALL SELECT 'generated column', part.name"
            " FROM sqlite_master AS owner, pragma_table_xinfo(owner.name) AS part"
            " WHERE owner.type = 'table' AND part.hidden IN (2, 3)"
            " UNION ALL SELECT 'expression in index', owner.name"
            " FROM sqlite_master AS owner, pragma_index_xinfo(owner.name) AS part"
            " WHERE owner.type = 'index' AND part.cid = -2"
        )
        with closing(sqlite3.connect(self.path)) as connection:
            return [f"{kind} {name}" for kind, name in connection.execute(query)]

    def prepare_erasure(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")

    def compact(self, tables: Sequence[str]) -> None:
        with self.exclusive(), self.errors():
            engine = self.engine()
            try:
                busy = self._vacuum(engine)
            finally:
                engine.dispose()
        if busy:
            raise StorageError(
                self.name,
                "another program reads it, so its log cannot be emptied",
                "Close that program, then run the same command again",
            )

    def _vacuum(self, engine: sa.Engine) -> bool:
        """Rewrite the file and empty its log. Return True if a reader kept the log from being
        emptied."""
        with closing(engine.raw_connection()) as connection:
            raw: Any = connection.driver_connection
            raw.execute("PRAGMA secure_delete=ON")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            raw.execute("VACUUM")
            return bool(raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])


SQLITE_ERRORS: Mapping[str, tuple[str, str]] = {
    "locked": (
        "it is locked by another program",
        "Close the program that has it open, then try again",
    ),
    "full": (
        "the disk is full; this step was not stored",
        "Free some space, then run the same command again",
    ),
    "disk I/O": (
        "the disk refused to read or write",
        "Check the disk (and its free space), then run the same command again",
    ),
    "unable to open": ("it cannot be opened", "Check that the home exists and may be written"),
    "readonly": (
        "it may not be written",
        "Make the home writable, or name another with --home",
    ),
}
"""Words of SQLite's message -> why it failed, and what to do."""


# PostgreSQL


@dataclass(frozen=True)
class Postgresql:
    """One database of a PostgreSQL server, by psycopg 3.

    Readers are REPEATABLE READ, READ ONLY. A writer holds the advisory locks of its work
    (`write_locks.py`) from the beginning of its transaction to the end. It is READ COMMITTED: the
    snapshot of a REPEATABLE READ transaction would be older than the lock that it waited for, and
    miss what the last writer did.
    """

    url: sa.URL = field(repr=False)
    wait: float = WAIT

    @classmethod
    def from_url(cls, address: str, where: str) -> Postgresql:
        """Return the database at a URL. Raises ConfigError, which does not show the URL, and
        MissingExtra."""
        url = _checked_url(address, where)
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise MissingExtra.of("a PostgreSQL database", "psycopg", "postgres") from error
        return cls(url)

    @property
    def name(self) -> str:
        return f"database {self.address!r}"

    @property
    def address(self) -> str:
        """The URL without passwords and settings."""
        user = f"{self.url.username}@" if self.url.username else ""
        host = self.url.host or self._setting("host") or ""
        port = self.url.port or self._setting("port")
        at_port = f":{port}" if port else ""
        return f"{POSTGRESQL}://{user}{host}{at_port}/{self.url.database or ''}"

    @property
    def secret_address(self) -> str:
        return self.url.render_as_string(hide_password=False)

    def watch(self, driver: Any) -> Callable[[], object]:
        number = next(WATCHES)  # what was announced to an earlier connection may have been missed
        announced = 0

        def count(_: object) -> None:
            nonlocal announced
            announced += 1

        def marker() -> tuple[int, int]:
            # a round trip: whatever was announced before it has arrived after it
            driver.execute("SELECT 1")
            return number, announced

        driver.autocommit = True  # the server announces nothing within a transaction
        driver.add_notify_handler(count)
        driver.execute(f"LISTEN {CHANNEL}")
        return marker

    @property
    def has_many_writers(self) -> bool:
        return True

    @property
    def exists(self) -> bool:
        return True

    def _setting(self, key: str) -> str | None:
        value = self.url.query.get(key)
        return value if isinstance(value, str) else None

    @property
    def _secrets(self) -> list[str]:
        """What no message may show, longest first."""
        values = [self.url.password, self._setting("password"), self._setting("sslpassword")]
        secrets: set[str] = set()
        for value in values:
            if value:
                secrets |= {value, quote(value), quote(value, safe="")}
        return sorted(secrets, key=len, reverse=True)

    def scrubbed(self, text: str) -> str:
        """Return `text` with *** in place of the passwords of the URL."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def engine(self) -> sa.Engine:
        engine = self._engine()

        @sa.event.listens_for(engine, "connect")
        def limit(connection: psycopg.Connection, _: Any) -> None:
            connection.execute(f"SET idle_in_transaction_session_timeout = '{STANDING:g}s'")
            connection.commit()

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            other = f"another process that writes to {self.address!r}"
            with _said_after_delay(f"waiting for {other}, at most {self.wait:g} s"):
                lock = connection.get_execution_options().get(WRITE_LOCK, WHOLE_HOME)
                self._take_locks(connection, _advisory_locks(lock))

        @sa.event.listens_for(engine, "commit")
        def announce(connection: sa.Connection) -> None:
            if connection.get_execution_options().get(WRITE_LOCK, WHOLE_HOME).is_quiet:
                return
            driver: Any = connection.connection.driver_connection
            driver.execute(f"NOTIFY {CHANNEL}")

        return engine

    def session_engine(self) -> sa.Engine:
        """Return an engine whose connections keep their session, and commit each statement."""
        return self._engine(isolation_level="AUTOCOMMIT")

    def _take_locks(self, connection: sa.Connection, locks: Sequence[str]) -> None:
        """Take advisory locks, given as calls of the server's functions without their prefix.

        The server ends a write that stands still between two statements (STANDING). It waits
        without a limit for one whose process was stopped within the messages of a statement; a
        process that has waited as long for a lock ends that one.
        """
        # one question for all; each is tried only where the ones before it were free
        are_free = "TRUE"
        for lock in reversed(locks):
            are_free = f"CASE WHEN pg_try_{lock} THEN {are_free} ELSE FALSE END"
        if connection.exec_driver_sql(f"SELECT {are_free}").scalar_one():
            return
        wait_for_all = [f"SELECT pg_{lock}" for lock in locks]
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{min(STANDING, self.wait):g}s'")
        try:
            for statement in wait_for_all:
                connection.exec_driver_sql(statement)
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != LOCK_TIMEOUT or self.wait <= STANDING:
                raise
            connection.connection.rollback()  # of nothing yet
            connection.execute(sa.text(STANDING_WRITERS), {"seconds": STANDING})
            rest = self.wait - STANDING
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{rest:g}s'")
            for statement in wait_for_all:
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{self.wait:g}s'")

    def reader(self) -> sa.Engine:
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        return self._engine(execution_options=options)

    def _engine(self, **options: Any) -> sa.Engine:
        engine = sa.create_engine(
            self.url.set(drivername=f"{POSTGRESQL}+psycopg"),
            connect_args={key: TIMEOUTS[key] for key in TIMEOUTS if key not in self.url.query},
            # a connection that a restart of the server broke is replaced before it is used
            pool_pre_ping=True,
            **pool_options(),
            json_deserializer=read_json,
            **options,
        )
        connected = threading.Event()

        @sa.event.listens_for(engine, "do_connect")
        def connect(_: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
            # A server that answered before, or answers that it is starting, comes back soon.
            connection = self._connect(parameters, patient=connected.is_set())
            connected.set()
            return connection

        @sa.event.listens_for(engine, "connect")
        def settings(connection: psycopg.Connection, _: Any) -> None:
            self._check(connection)
            connection.execute("SET timezone = 'UTC'")
            # streamed results are read to their end, so plans for their first rows are no help
            connection.execute("SET cursor_tuple_fraction = 1")
            connection.execute(f"SET lock_timeout = '{self.wait:g}s'")
            # acknowledged means on disk, whatever is the default of the server
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            connection.commit()

        return engine

    def _connect(self, parameters: dict[str, Any], patient: bool) -> psycopg.Connection:
        import psycopg
        from psycopg.conninfo import make_conninfo
        from psycopg.pq import PGconn, Ping

        plain = {key: value for key, value in parameters.items() if key != "context"}
        conninfo = make_conninfo("", **plain).encode()
        awaited = (Ping.REJECT, Ping.NO_RESPONSE) if patient else (Ping.REJECT,)
        deadline = time.monotonic() + self.wait
        came_up = False
        with _said_after_delay(f"waiting for {self.address!r}, at most {self.wait:g} s"):
            while True:
                try:
                    return psycopg.connect(**parameters)
                except psycopg.OperationalError:
                    state = PGconn.ping(conninfo)
                    if state == Ping.OK and not came_up:
                        came_up = True  # perhaps only since it refused: once more
                    elif state not in awaited or time.monotonic() > deadline:
                        raise
                time.sleep(0.1)

    def _check(self, connection: psycopg.Connection) -> None:
        """Refuse a server that is too old, or a database that cannot hold every text."""
        version = connection.info.server_version // 10_000
        if version < OLDEST_SERVER:
            raise StorageError(
                self.name,
                f"its server is PostgreSQL {version}; thumbwheel needs {OLDEST_SERVER} or later",
                "Upgrade the server, or name another with THUMBWHEEL_DATABASE",
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StorageError(
                self.name,
                f"its encoding is {encoding}, which cannot store every text",
                "Create one with: createdb --encoding=UTF8 --template=template0 NAME",
            )

    def exclusive(self) -> AbstractContextManager[None]:
        # the transaction takes the lock itself, and its end gives it back, also after a kill
        return nullcontext()

    @contextmanager
    def errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (DBAPIError, psycopg.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            explained = self._explained(cause)
            if explained is None:
                raise
            is_disconnected = isinstance(error, DBAPIError) and error.connection_invalidated
            rolled_back = getattr(cause, "sqlstate", None) in ROLLED_BACK
            # without the cause: a message of psycopg may quote the connection string
            if is_disconnected or rolled_back:
                raise TransactionLost(self.name, *explained, rolled_back) from None
            raise StorageError(self.name, *explained) from None

    def _explained(self, cause: BaseException | None) -> tuple[str, str] | None:
        """Return (why it failed, fix), or None if the storage did not cause the error."""
        import psycopg

        if not isinstance(cause, psycopg.Error):
            return None
        state = cause.sqlstate
        if state is None:
            if not isinstance(cause, psycopg.OperationalError):
                return None
            reason = self.scrubbed(" ".join(str(cause).split()))
            return f"it does not answer ({reason})", CONNECTION_FIX
        for start, explained in POSTGRESQL_ERRORS.items():
            if state.startswith(start):
                return explained
        if isinstance(cause, psycopg.OperationalError):
            reason = self.scrubbed(" ".join(str(cause).split()))
            return reason, "Run the command again; if it stays, report it"
        return None

    def snapshot(self, connection: sa.Connection) -> str | None:
        return str(connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())

    def follow(self, connection: sa.Connection, snapshot: str | None) -> None:
        if snapshot is not None:
            if not re.fullmatch(r"[0-9A-F-]+", snapshot):
                raise ValueError(f"snapshot {snapshot!r}")
            connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    @contextmanager
    def out_of_order(
        self, connection: sa.Connection, references: Sequence[sa.ForeignKeyConstraint]
    ) -> Iterator[None]:
        # Constraints are checked by statement, so they are taken off and put back, in the same
        # transaction.
        for reference in references:
            connection.execute(DropConstraint(reference, isolate_from_table=False))
        yield
        for reference in references:
            connection.execute(AddConstraint(reference, isolate_from_table=False))

    def save_file(self, path: Path) -> bool:
        return False

    def prepare_erasure(self, connection: sa.Connection) -> None:
        pass

    def compact(self, tables: Sequence[str]) -> None:
        engine = self.session_engine()
        try:
            with self.errors(), engine.connect() as connection:
                self._wait_for_older_readers(connection)
                for table in tables:
                    connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table}")
        finally:
            engine.dispose()

    def _wait_for_older_readers(self, connection: sa.Connection) -> None:
        """Wait until no transaction sees rows deleted by now, which VACUUM would keep. Raises
        StorageError after `wait` seconds."""
        now = connection.exec_driver_sql("SELECT pg_current_xact_id()::text").scalar_one()
        older = sa.text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND age(backend_xmin) > age(CAST(:now AS xid))"
        )
        deadline = time.monotonic() + self.wait
        message = f"waiting for another program that reads {self.address!r}"
        with _said_after_delay(f"{message}, at most {self.wait:g} s"):
            while connection.execute(older, {"now": now}).scalar_one():
                if time.monotonic() > deadline:
                    raise StorageError(
                        self.name,
                        "another program reads it, so the server keeps what was deleted",
                        "Close that program, then run the same command again",
                    )
                time.sleep(0.1)


def _advisory_locks(lock: WriteLock) -> list[str]:
    """Return the locks of a write, as calls of the server's functions without their prefix."""
    if lock.is_whole_home:
        return [f"advisory_xact_lock({WRITER_LOCK})"]
    names = [f"advisory_xact_lock({lock_number(name)})" for name in lock.names]
    return [f"advisory_xact_lock_shared({WRITER_LOCK})", *names]


ROLLED_BACK = ("40001", "40P01", "25P03")
"""SQLSTATE of a serialization failure, of a deadlock, and of a write that stood still."""

CONNECTION_FIX = (
    "Check that the server runs and that THUMBWHEEL_DATABASE names its host, port, user and "
    "database, then run the same command again"
)

POSTGRESQL_ERRORS: Mapping[str, tuple[str, str]] = {
    "08": ("the connection to the server broke", CONNECTION_FIX),
    "57P": ("the server was stopped or is starting", "Run the same command again once it runs"),
    "25006": (
        "it may only be read (a standby, or default_transaction_read_only)",
        "Name the primary server with THUMBWHEEL_DATABASE",
    ),
    "25P03": (
        f"nothing happened in a write of this program for {STANDING:g} s, so the server ended it",
        "Run the same command again",
    ),
    "28": (
        "the server refuses this user",
        "Check user and password (in ~/.pgpass, PGPASSWORD or the URL) and pg_hba.conf",
    ),
    "3D000": ("there is no database of this name", "Create it with createdb, or correct the URL"),
    "40": (
        "other programs held the same rows again and again",
        "Close programs that lock its tables, then run the same command again",
    ),
    "42501": (
        "its user lacks a privilege",
        "Let the user own the database: ALTER DATABASE NAME OWNER TO USER",
    ),
    "53100": (
        "the disk of the server is full; this step was not stored",
        "Free some space there, then run the same command again",
    ),
    "53300": (
        "the server has no free connection",
        "Close other programs, or raise max_connections there",
    ),
    "53": ("the server lacks memory", "Give it more, then run the same command again"),
    "55P03": (
        "another process is writing to it and did not finish",
        "Wait for that process or stop it (pg_locks shows who holds what), then try again",
    ),
    "57014": (
        "the server cancelled the statement",
        "Raise statement_timeout for this user, then run the same command again",
    ),
    "58": (
        "the disk of the server refused to read or write",
        "Look into the log of the server, then run the same command again",
    ),
    "XX": (
        "the server reports damaged data or a fault of its own",
        "Look into its log; restore the database from a backup if it is damaged",
    ),
}
"""Beginnings of SQLSTATE -> why it failed, and what to do; the first that fits counts."""

HOST = re.compile(r"[\w.:,/-]*", re.ASCII)


def _checked_url(address: str, where: str) -> sa.URL:
    why = None
    try:
        url = sa.make_url(address)
    except (ArgumentError, ValueError):
        why = "it is no URL of a database"
    else:
        if url.drivername not in (POSTGRESQL, "postgres"):
            why = f"databases of kind {url.drivername!r} are not supported"
        elif not HOST.fullmatch(url.host or ""):
            why = "its host cannot be one; in a password, write '@' as %40, ':' as %3A, '/' as %2F"
        elif not url.database:
            why = "it names no database"
    if why is not None:
        fix = f"Write {EXAMPLE}, or remove it to keep the rows in the home's SQLite file"
        raise ConfigError(where, why, fix)
    return url.set(drivername=POSTGRESQL)


def pool_options() -> dict[str, Any]:
    """Return SQLAlchemy's options for a pool of `READERS` connections."""
    return {
        "pool_size": IDLE_READERS,
        "max_overflow": READERS - IDLE_READERS,
        "pool_timeout": READER_WAIT,
    }


@contextmanager
def _said_after_delay(text: str) -> Iterator[None]:
    """Print `text` once if the block takes longer than `SILENT_SECONDS`."""
    timer = threading.Timer(SILENT_SECONDS, log.say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# types and expressions


def text_type(length: int | None) -> TypeEngine[str]:
    """Return a type for text that sorts by code point in both databases. SQLite does not enforce a
    `length`, and PostgreSQL gets none, so both accept the same texts."""
    plain: TypeEngine[str] = sa.Text() if length is None else sa.String(length)
    return plain.with_variant(sa.Text(collation="C"), POSTGRESQL)


def time_type(dialect: sa.Dialect) -> TypeEngine[datetime]:
    """Return the type of a column of instants."""
    return sa.DateTime(timezone=dialect.name == POSTGRESQL)


def stored_time(value: datetime, dialect: sa.Dialect) -> datetime:
    """Return an aware time as the driver takes it: in UTC, for SQLite without an offset."""
    in_utc = value.astimezone(UTC)
    return in_utc if dialect.name == POSTGRESQL else in_utc.replace(tzinfo=None)


def time_reader(dialect: sa.Dialect) -> Callable[[Any], datetime | None]:
    """Return a function that converts a stored time into an aware one in UTC."""
    return _instant_of_time if dialect.name == POSTGRESQL else _instant_of_text


@lru_cache(maxsize=1024)
def _instant_of_text(text: str | None) -> datetime | None:
    # cached, because what is imported together has the same time
    return datetime.fromisoformat(text + "+00:00") if text else None


def _instant_of_time(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=UTC) if time else None


def json_reader(dialect: sa.Dialect) -> Callable[[Any], Any] | None:
    """Return a function that converts a stored JSON value into a Python value, or None if the
    driver has done so already."""
    return None if dialect.name == POSTGRESQL else parsed


class json_text(FunctionElement[str]):  # noqa: N801 - used as a function
    """`json_text(column, key)`: the text under a key of a JSON column; null where there is none."""

    type = sa.String()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[Any], key: str) -> None:
        # part of the statement: a parameter in GROUP BY need not be that of the column
        super().__init__(column, sa.literal_column(f"'{key}'"))


SUSPECT = r"\\u(0000|[dD][89a-fA-F])"
"""Cheap to look for: what may be NUL or a half surrogate pair in JSON, and mostly is a whole
pair."""

ESCAPES = re.compile(r"\\(?:u(?:0000|[dD][c-fC-F]..|[dD][89abAB]..(?:\\u[dD][c-fC-F]..)?)|.)")
"""Escapes in JSON; those of 6 characters are the ones that text cannot hold: NUL and the halves of
surrogate pairs."""


def readable_json(text: str | None) -> str | None:
    """Return JSON with NUL and lone surrogates replaced by U+FFFD; extracting a text from it would
    fail otherwise."""
    if not isinstance(text, str) or not re.search(SUSPECT, text):
        return text
    return ESCAPES.sub(lambda match: r"\ufffd" if len(match[0]) == 6 else match[0], text)


# The same for PostgreSQL: an escape begins after an even number of backslashes.
_START = r"(?<=[^\\](\\\\)*)"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
UNREADABLE = rf"{_START}(\\u0000|{_HIGH}(?!{_LOW}))|(?<![^\\](\\\\)*{_HIGH}){_START}{_LOW}"


@compiles(json_text)
def _json_text(element: json_text, compiler: Any, **options: Any) -> str:
    column, key = (compiler.process(part, **options) for part in element.clauses)
    return f"json_extract(readable_json({column}), '$.' || {key})"


@compiles(json_text, POSTGRESQL)
def _json_text_postgresql(element: json_text, compiler: Any, **options: Any) -> str:
    column, key = (compiler.process(part, **options) for part in element.clauses)
    text = f"CAST({column} AS TEXT)"
    readable = f"CAST(regexp_replace({text}, '{UNREADABLE}', '\\\\ufffd', 'g') AS JSON)"
    json = f"CASE WHEN {text} ~ '{SUSPECT}' THEN {readable} ELSE {column} END"
    return f'({json} ->> {key}) COLLATE "C"'
