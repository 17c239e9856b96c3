"""A home on many hosts: its rows, keys and secrets are in one PostgreSQL database, and each host
has a folder that is no more than spool and cache.

Keys and secrets are sealed with the key of the cluster (AES-256-GCM), which every host gets in
THUMBWHEEL_CLUSTER_KEY and which is nowhere in the database: who reads the database, or a backup of
it, learns no key. A value is sealed together with its name, so that none can be put in the place of
another. One value, the mark, says that there is a cluster, and proves the key of whoever opens it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError, Conflict, StorageError
from thumbwheel.core.files import create
from thumbwheel.core.key_files import Change
from thumbwheel.core.seal import make_seal
from thumbwheel.db.dialects import VARIABLE as DATABASE_VARIABLE
from thumbwheel.db.dialects import Backend, Sqlite, backend_of
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.host_software import (
    as_row,
    require_same_clock,
    require_same_software,
    software_of_host,
)
from thumbwheel.db.hosts import all_hosts, folder_id, register, set_software
from thumbwheel.db.migrate import HEAD, revision_of, upgrade
from thumbwheel.db.ownership import (
    Ownership,
    claim,
    home_id,
    note_ownership,
    noted_ownership,
    set_home_id,
)
from thumbwheel.db.refreshed import Refreshed
from thumbwheel.db.schema import cluster_keys
from thumbwheel.sdk.version import __version__

VARIABLE = "THUMBWHEEL_CLUSTER_KEY"
"""The variable with the key of the cluster, in base64."""
SIZE, NONCE_SIZE = 32, 12
"""Bytes of the key, and of the nonce before each sealed value."""
MARK = "cluster"
"""The name of the value that says what cluster this is."""
ERASURES, TOKENS = "erasures", "tokens"
"""Folders of sealed values that are no files of a home: what erasures left to other hosts
(erasure/pending_erasures.py), and the tokens of the model servers of each host
(deploy/remote_token.py)."""
MAKE_KEY = "openssl rand -base64 32"
"""The command that makes a key."""


@dataclass(frozen=True)
class Cluster:
    """What the mark says."""

    id: str
    version: str
    """The version of Thumbwheel that its hosts run."""
    recorded_at: str


@dataclass(frozen=True)
class Cipher:
    """Seals values with the key of a cluster."""

    key: bytes

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Cipher:
        """Return the cipher with the key in THUMBWHEEL_CLUSTER_KEY. Raises ConfigError if it is
        missing or no key; the message does not repeat it."""
        text = environment.get(VARIABLE, "").strip()
        if not text:
            raise ConfigError(
                f"variable {VARIABLE}",
                "it is not set, and the keys of this cluster are sealed with it",
                f"Set it to the key of the cluster; a new one is made with: {MAKE_KEY}",
            )
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _bad_key("it is not base64") from None
        if len(key) != SIZE:
            raise _bad_key(f"it has {len(key)} bytes, not {SIZE}")
        return cls(key)

    def sealed(self, name: str, value: bytes) -> str:
        """Return the value sealed together with its name."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_SIZE)
        content = nonce + AESGCM(self.key).encrypt(nonce, value, name.encode())
        return base64.b64encode(content).decode("ascii")

    def unsealed(self, name: str, sealed: str) -> bytes:
        """Return the value of this name. Raises StorageError if another key sealed it, or another
        name, or if it was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            content = base64.b64decode(sealed, validate=True)
            nonce, ciphertext = content[:NONCE_SIZE], content[NONCE_SIZE:]
            return AESGCM(self.key).decrypt(nonce, ciphertext, name.encode())
        except (binascii.Error, ValueError, InvalidTag):
            raise StorageError(
                f"key {name!r} of the cluster",
                f"it was not sealed with the key in {VARIABLE}, or was changed since",
                f"Set {VARIABLE} to the key of the cluster, or restore its database from a backup",
            ) from None


class ClusterKeys:
    """The sealed keys of a cluster. Start it by `with`."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database, self._cipher = database, cipher
        self._seals: dict[str, bytes] = {}
        """Keys that never change, once they have been read."""
        self._versions: dict[str, object] = {}
        self._refreshed: Refreshed | None = None

    def __enter__(self) -> ClusterKeys:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._refreshed is not None:
            self._refreshed.__exit__()
            self._refreshed = None

    def read(self, name: str) -> bytes | None:
        """Return a value, or None if there is none of that name."""
        if name in self._seals:
            return self._seals[name]
        with self._database.read() as connection:
            sealed = connection.execute(_sealed_value(name)).scalar()
        value = None if sealed is None else self._cipher.unsealed(name, sealed)
        if value is not None and name.endswith(".key"):
            self._seals[name] = value
        return value

    def update(self, name: str, change: Change) -> bytes | None:
        """Change a value, as the only one to do so; return the value that is stored then."""

        def work(connection: sa.Connection) -> bytes | None:
            # also excludes whoever inserts the same name
            connection.execute(sa.text("LOCK TABLE cluster_keys IN SHARE ROW EXCLUSIVE MODE"))
            sealed = connection.execute(_sealed_value(name)).scalar()
            current = None if sealed is None else self._cipher.unsealed(name, sealed)
            value = change(current)
            if value is None:
                return current
            _store(connection, self._cipher, name, value)
            return value

        return self._database.write(work)

    def remove(self, name: str) -> bool:
        """Remove a value; return whether there was one."""
        delete = cluster_keys.delete().where(cluster_keys.c.name == name)
        return bool(self._database.write(lambda connection: connection.execute(delete).rowcount))

    def names(self) -> list[str]:
        """Return the names of all keys and secrets."""
        query = sa.select(cluster_keys.c.name).where(cluster_keys.c.name != MARK)
        with self._database.read() as connection:
            return [*connection.execute(query.order_by(cluster_keys.c.name)).scalars()]

    def version(self, folder: str) -> object:
        """Return a value that is another one after any value of the folder was changed. A server
        asks at every call: the rows are looked at by a thread."""
        if self._refreshed is None:
            self._refreshed = Refreshed(self._look, "keys of the cluster").__enter__()
        self._refreshed.ask()
        versions = self._versions.items()
        below = f"{folder}/"
        return [entry for entry in versions if entry[0] == folder or entry[0].startswith(below)]

    def _look(self) -> None:
        query = sa.select(cluster_keys.c.name, cluster_keys.c.sealed)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(cluster_keys.c.name))
            self._versions = {row.name: row.sealed for row in rows}


def opened(database: Database, environment: Mapping[str, str]) -> ClusterKeys | None:
    """Return the keys of the cluster that the database belongs to, None if it has one host only.

    Raises ConfigError if the key of the cluster is missing or another one.
    """
    if isinstance(database.backend, Sqlite):
        return None
    sealed = _sealed_mark(database)
    if sealed is None:
        return None
    cipher = Cipher.of(environment)
    cluster = _cluster(cipher, sealed)
    if _numbers(__version__) > _numbers(cluster.version):
        upgraded = Cluster(cluster.id, __version__, cluster.recorded_at)
        database.write(lambda connection: _store(connection, cipher, MARK, _mark(upgraded)))
    return ClusterKeys(database, cipher)


def initialise(home: Home, environment: Mapping[str, str]) -> Cluster:
    """Make a cluster of the home: move its keys and secrets into the database, sealed.

    A process that has the home open cannot write any more, since it would go on with the files. A
    second call, after a kill, removes what the first one left. Raises ConfigError for a home with
    SQLite, a bad key, the database of another home, or a clock that is not the database's.
    """
    backend = _server(home, environment)
    cipher = Cipher.of(environment)
    home.prepare()
    upgrade(backend)
    database = Database(backend)
    try:
        claim(home, database)
        with database.read() as connection:
            require_same_clock(connection)
        sealed = _sealed_mark(database)
        current_id = home_id(database) or ""
    finally:
        database.close()
    if sealed is not None:
        cluster = _cluster(cipher, sealed)
        _remove_files(home)
        _register(home, backend)
        return cluster

    for path in (home.access_key, home.signing, home.feedback_key):
        make_seal(path)
    values = _values_of_files(home)
    cluster = Cluster(ids.new("clu"), __version__, datetime.now(UTC).isoformat())
    new_id = ids.new("hom")
    # Where a kill leaves it unknown whether the rows have the new id, the note says both.
    note_ownership(home, Ownership(current_id, backend.address, new_id))
    with writing(backend) as engine, engine.begin() as connection:
        if connection.execute(_sealed_value(MARK)).scalar() is not None:
            raise Conflict(
                backend.name, "another process made a cluster of it just now", "Run it again"
            )
        for name, value in values.items():
            _store(connection, cipher, name, value)
        _store(connection, cipher, MARK, _mark(cluster))
        set_home_id(connection, new_id)
    note_ownership(home, Ownership(new_id, backend.address))
    _remove_files(home)
    _register(home, backend)
    return cluster


def join(home: Home, environment: Mapping[str, str]) -> Cluster:
    """Make this folder one of the cluster that THUMBWHEEL_DATABASE names; a folder that is one
    already stays as it is.

    Raises ConfigError, and changes nothing, for SQLite, a bad key, a database without a cluster, a
    folder with a home of its own, software that other hosts do not run, or a clock that is not the
    database's.
    """
    backend = _server(home, environment)
    cipher = Cipher.of(environment)
    database = Database(backend)
    try:
        sealed = None if revision_of(backend) is None else _sealed_mark(database)
        if sealed is None:
            raise ConfigError(
                backend.name,
                "no cluster was made of it",
                "Run on the host that has the home: thumbwheel cluster init",
            )
        cluster = _cluster(cipher, sealed)
        if cluster.version != __version__:
            raise ConfigError(
                f"thumbwheel {__version__} of this host",
                f"the other hosts of the cluster run {cluster.version}",
                f"Install the same here: pip install thumbwheel=={cluster.version}; or upgrade "
                "the others first",
            )
        _require_same_schema(backend)
        stored_id = home_id(database) or ""
        own_folder = folder_id(home) if home.host_id.exists() else None
        with database.read() as connection:
            require_same_clock(connection)
            others = [host for host in all_hosts(connection) if host.folder != own_folder]
            require_same_software(others)
    finally:
        database.close()
    _require_free(home, stored_id)
    home.prepare()
    note_ownership(home, Ownership(stored_id, backend.address))
    _register(home, backend)
    return cluster


def _require_same_schema(backend: Backend) -> None:
    """Raise ConfigError if the hosts of the cluster run code that writes another database."""
    revision = revision_of(backend)
    if revision != HEAD:
        raise ConfigError(
            f"thumbwheel {__version__} of this host",
            f"it writes databases of revision {HEAD}, and the other hosts write {revision}",
            "Install the same on all hosts: upgrade the others first, one after the other",
        )


def _register(home: Home, backend: Backend) -> None:
    """Record this host and what it runs."""
    database = Database(backend)
    try:
        register(database, home)
        set_software(database, home, as_row(software_of_host()))
    finally:
        database.close()


def leave(home: Home, backend: Backend, environment: Mapping[str, str]) -> bool:
    """Write the keys and secrets of the cluster in `backend` into the folder, as files, because its
    rows move to a database for this folder alone. Return whether there is a cluster."""
    database = Database(backend)
    try:
        keys = opened(database, environment)
        if keys is None:
            return False
        for name in keys.names():
            if name.startswith((f"{ERASURES}/", f"{TOKENS}/")):
                continue  # of the other hosts, whose folders are no part of the home any more
            path, value = home.path / name, keys.read(name)
            if value is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                create(path, value)
    finally:
        database.close()
    return True


def _server(home: Home, environment: Mapping[str, str]) -> Backend:
    """Return the PostgreSQL database of the home. Raises ConfigError for SQLite."""
    backend = backend_of(home, environment)
    if not isinstance(backend, Sqlite):
        return backend
    if home.database.exists():
        raise ConfigError(
            f"home {str(home.path)!r}",
            "its rows are in SQLite, which the processes of one machine can use",
            f"Move them: thumbwheel db copy sqlite URL, then set {DATABASE_VARIABLE} to that URL",
        )
    raise ConfigError(
        f"variable {DATABASE_VARIABLE}",
        "it names no PostgreSQL database, and the hosts of a cluster share one",
        "Set it to the URL of the database of the cluster",
    )


def _require_free(home: Home, stored_id: str) -> None:
    """Raise ConfigError if the folder has a home of its own."""
    noted = noted_ownership(home)
    if noted is not None and stored_id in (noted.id, noted.next_id):
        return
    own_files = [path.name for path in (home.database, *home.keys) if path.exists()]
    if noted is not None:
        why = f"it has a home of its own already, with its rows in {noted.database!r}"
    elif own_files:
        why = f"it has files of a home of its own: {', '.join(own_files)}"
    else:
        return
    raise ConfigError(f"home {str(home.path)!r}", why, "Name a new folder with --home")


def _values_of_files(home: Home) -> dict[str, bytes]:
    """Return the keys and secrets that are files of the folder, by their names in the cluster."""
    secrets = home.secrets.iterdir() if home.secrets.is_dir() else ()
    files = [path for path in (*home.keys, *secrets) if path.is_file()]
    return {path.relative_to(home.path).as_posix(): path.read_bytes() for path in files}


def _remove_files(home: Home) -> None:
    for name in _values_of_files(home):
        (home.path / name).unlink(missing_ok=True)


def _bad_key(why: str) -> ConfigError:
    return ConfigError(
        f"variable {VARIABLE}", why, f"Copy it whole; a new one is made with: {MAKE_KEY}"
    )


def _sealed_mark(database: Database) -> str | None:
    with database.read() as connection:
        if not sa.inspect(connection).has_table(cluster_keys.name):
            return None  # of an older version
        return connection.execute(_sealed_value(MARK)).scalar()


def _cluster(cipher: Cipher, sealed: str) -> Cluster:
    """Return the cluster of a sealed mark. Raises ConfigError if the key is another one."""
    try:
        content = cipher.unsealed(MARK, sealed)
    except StorageError:
        raise ConfigError(
            f"variable {VARIABLE}",
            "it is not the key of this cluster",
            "Set it to the key with which `thumbwheel cluster init` was run",
        ) from None
    return Cluster(**json.loads(content))


def _mark(cluster: Cluster) -> bytes:
    return json.dumps(asdict(cluster)).encode("ascii")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _sealed_value(name: str) -> sa.Select[Any]:
    return sa.select(cluster_keys.c.sealed).where(cluster_keys.c.name == name)


def _store(connection: sa.Connection, cipher: Cipher, name: str, value: bytes) -> None:
    connection.execute(cluster_keys.delete().where(cluster_keys.c.name == name))
    row = {"name": name, "sealed": cipher.sealed(name, value), "recorded_at": datetime.now(UTC)}
    connection.execute(cluster_keys.insert().values(**row))
