"""`backup` and `restore`: a home as it was at one moment, in one folder or one tar file, taken
while others write.

    inbox     lines of the sdk that are no rows yet: first, so that none falls between both
    unsent    lines of the sdk for other servers
    rows      a snapshot of the database as an SQLite file, whichever database the home uses
    blobs     the files that these rows name: datasets, adapters, documents
    the rest  reports, and the keys with which tombstones, decisions and the audit log are made and
              API keys are known

A restored home is a home of its own and may use another database. It does nothing before its owner
has looked: a stranger may have asked for the work in a backup, and the home that it was taken of
may do it, too. So jobs are cancelled, schedules paused and loops disabled. For the same reason
nobody who could enter the other home may enter this one: its users, keys and open sessions are left
out, unless its owner says that they are theirs; so are the paths at which exports and reports were
written, which an erasure changes and a server reads. Ids and other names in rows become parts of
paths, so rows with a name that leads elsewhere are refused (`row_names.py`). Not in a backup: what
can be made again (cache, exports, checkpoints of runs) and the keys of other people's servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

from thumbwheel.access.users import remove_everybody
from thumbwheel.core import ids, key_files, log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.core.files import unwritable
from thumbwheel.db.dialects import Backend, Sqlite
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.migrate import upgrade
from thumbwheel.db.ownership import (
    Ownership,
    note_ownership,
    noted_ownership,
    set_blobs_location,
    set_home_id,
)
from thumbwheel.db.schema import run_checkpoints, stored_bases
from thumbwheel.db.transfer import copy_database, require_empty, save
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.routing import end_all
from thumbwheel.erasure import file_records
from thumbwheel.export.package import forget_paths
from thumbwheel.homes.row_names import misleading_name
from thumbwheel.importers.regular_file import open_regular
from thumbwheel.jobs.queue import cancel_all
from thumbwheel.jobs.schedules import pause_all
from thumbwheel.loop.loops import disable_all
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.blob_store import UnsoundBlob
from thumbwheel.models.blob_stores.folder import FolderStore
from thumbwheel.models.stored_bases import KIND as BASE_KIND
from thumbwheel.sdk.disk import sync

FORMAT = 1
MANIFEST, ROWS = "backup.json", "thumbwheel.db"
KEYS = ("erased.key", "signing.key", "access.key")
AUDIT_HEAD, REPORTS = "audit.head", "reports.jsonl"
FOLDERS = ("inbox", "unsent", "reports")
NAME = re.compile(
    rf"{re.escape(ROWS)}|{'|'.join(map(re.escape, (AUDIT_HEAD, REPORTS, *KEYS)))}"
    rf"|blobs/[0-9a-f]{{64}}|({'|'.join(FOLDERS)})/[^/\x00]+(/[^/\x00]+)*"
)
"""What a backup may hold; nothing else is written into a home."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class BackupFile:
    """One file of a backup."""

    sha256: str
    size: int


@dataclass
class Backup:
    """What was written, or restored."""

    path: str
    taken_at: str
    files: dict[str, BackupFile] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Hashes of blobs that rows name and the home does not have."""
    held_back: dict[str, int] = field(default_factory=dict)
    """What a restored home would have gone on to do: kind -> how many."""
    shut_out: dict[str, int] = field(default_factory=dict)
    """Who could enter the other home and may not enter the restored one: kind -> how many."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def counts(self) -> dict[str, int]:
        """Return kind -> number of files."""
        counts = {"blobs": 0, **dict.fromkeys(FOLDERS, 0)}
        for name in self.files:
            kind, _, rest = name.partition("/")
            if rest:
                counts[kind] += 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return the backup as a JSON value, without the single files."""
        return {
            "path": self.path,
            "taken_at": self.taken_at,
            "bytes": self.size,
            "files": self.counts(),
            "missing": self.missing,
            "held_back": self.held_back,
            "shut_out": self.shut_out,
        }


class _Target(Protocol):
    """Where a backup is written."""

    def add(self, name: str, source: Path) -> None:
        """Add a file."""


class _Folder:
    """A backup as a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(mode=0o700)

    def add(self, name: str, source: Path) -> None:
        target = self._path / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        sync(target)


class _Tar:
    """A backup as one tar file. It is not compressed, as its large files are already."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self._file = file

    def add(self, name: str, source: Path) -> None:
        with source.open("rb") as stream:
            member = self._file.gettarinfo(arcname=name, fileobj=stream)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            self._file.addfile(member, stream)


def back_up(ws: Workspace, target: Path) -> Backup:
    """Write a backup of the home to `target`, a folder, or a tar file if the name ends with .tar.
    It appears once it is complete.

    Raises Conflict if `target` exists, StorageError if it cannot be written.
    """
    if target.exists():
        raise Conflict(f"backup {str(target)!r}", "it already exists", "Name a new file or folder")
    backup = Backup(str(target), datetime.now(UTC).isoformat())
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _opened_target(unfinished, target.suffix == ".tar") as opened:
            _write(ws, opened, backup)
        sync(unfinished)
        os.replace(unfinished, target)
        sync(target.parent)
    except OSError as error:
        raise unwritable(f"backup {str(target)!r}", error) from None
    finally:
        _remove(unfinished)
    return backup


@contextmanager
def _opened_target(path: Path, is_tar: bool) -> Iterator[_Target]:
    if is_tar:
        with tarfile.open(path, "w") as file:
            yield _Tar(file)
    else:
        yield _Folder(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write(ws: Workspace, target: _Target, backup: Backup) -> None:
    def add(name: str, source: Path) -> None:
        target.add(name, source)
        backup.files[name] = BackupFile(ids.file_hash(source), source.stat().st_size)

    def add_key(name: str) -> None:
        value = key_files.read(ws.home.path / name)
        if value is not None:
            (scratch / name).write_bytes(value)
            add(name, scratch / name)

    with TemporaryDirectory(prefix="thumbwheel-") as temporary:
        scratch = Path(temporary)
        # A line of the inbox that is no row by the time of the snapshot was in the inbox before.
        for name, path in _copied(ws.home.inbox, scratch / "inbox"):
            add(f"inbox/{name}", path)
        for name, path in _copied(ws.home.path / "unsent", scratch / "unsent"):
            add(f"unsent/{name}", path)
        # Before the rows: they may go beyond the head of the audit log, and never end before it.
        add_key(AUDIT_HEAD)
        save(ws.db, scratch / ROWS)
        add(ROWS, scratch / ROWS)

        wanted = _named_blobs(scratch / ROWS)
        backup.missing += _add_blobs(Artifacts.of(ws), wanted, add)
        for name, path in _copied(ws.home.reports, scratch / "reports"):
            add(f"reports/{name}", path)
        if (ws.home.path / REPORTS).is_file():
            add(REPORTS, ws.home.path / REPORTS)
        for name in KEYS:
            add_key(name)

        manifest = {
            "format": FORMAT,
            "taken_at": backup.taken_at,
            "files": {name: asdict(entry) for name, entry in backup.files.items()},
            "missing": backup.missing,
        }
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        target.add(MANIFEST, scratch / MANIFEST)


def _add_blobs(blobs: Artifacts, wanted: set[str], add: Callable[[str, Path], None]) -> list[str]:
    """Add the blobs; return the hashes of those that were erased since."""
    missing = []
    with log.progress("blobs", len(wanted), "files") as advance:
        for sha256 in sorted(wanted):
            try:
                add(f"blobs/{sha256}", blobs.path(sha256))
            except (UnsoundBlob, FileNotFoundError):
                missing.append(sha256)
            advance()
    return missing


def _copied(folder: Path, scratch: Path) -> list[tuple[str, Path]]:
    """Copy the files of a folder in which other processes rename files meanwhile; return (name,
    copy) of each. If a file disappears during the copy, start anew."""
    while True:
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            copies = []
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    name = path.relative_to(folder).as_posix()
                    copy = scratch / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
                    copies.append((name, copy))
            return copies
        except FileNotFoundError:
            continue  # renamed or stored since it was listed: look again


def _named_blobs(rows: Path) -> set[str]:
    """Return the hashes of all files that the rows of an SQLite file refer to."""
    database = Database(Sqlite(rows, rows.with_name("unused.lock")))
    try:
        with database.read() as connection:
            kinds = file_records.artifact_kinds(connection)
            # a base can be fetched again where it came from, and may be larger than all else
            recorded = {sha256 for sha256, kind in kinds.items() if kind != BASE_KIND}
            return file_records.files_in_use(connection) | recorded
    finally:
        database.close()


# restoring


def restore(home: Home, backend: Backend, source: Path, *, keep_access: bool = False) -> Backup:
    """Restore `home` from the backup `source`, with its rows in `backend`. Every file is compared
    with its hash before anything is written. `keep_access`: whether the users, keys and sessions of
    the backup may enter the home.

    Raises Conflict if the home has rows already, InputError if `source` is no backup or damaged.
    After a kill, the same call completes the restore.
    """
    _require_new(home, backend)
    with TemporaryDirectory(prefix="thumbwheel-") as temporary, _opened_source(source) as opened:
        backup = _verified(opened, source)
        rows = Path(temporary, ROWS)
        with opened.open(ROWS) as stream, rows.open("wb") as copy:
            shutil.copyfileobj(stream, copy, CHUNK)
        snapshot = Sqlite(rows, rows.with_name("lock"))
        if damage := snapshot.damage():
            raise _no_backup(source, f"its rows are damaged ({damage})")
        if programs := snapshot.programs():
            # they would run in the restored home, with every row that is written
            why = f"its rows come with what no home has: {', '.join(programs[:5])}"
            raise _no_backup(source, why)
        upgrade(snapshot)
        if name := _misleading_name(snapshot):
            raise _no_backup(source, f"its rows have a name that leads out of a home ({name})")

        home.prepare()
        blobs = Artifacts(FolderStore(home.blobs))
        names = [name for name in backup.files if name != ROWS]
        if not keep_access and REPORTS in names:
            names.remove(REPORTS)
        with log.progress("files", len(names), "files") as advance:
            for name in names:
                _put_back(opened, name, home, blobs, Path(temporary, "file"))
                advance()

        # The rows come last: a home with rows is a whole one.
        home_id = ids.new("hom")
        _put_blobs_into_folder(snapshot)
        backup.held_back = _hold_back(snapshot)
        if not keep_access:
            backup.shut_out = _shut_out(snapshot)
        if isinstance(backend, Sqlite):
            _set_home_id(snapshot, home_id)
            _store_rows(rows, home, backend)
        else:
            copy_database(snapshot, backend, home_id, on_arrival=lambda: None)
        note_ownership(home, Ownership(home_id, backend.address))
    return backup


def _require_new(home: Home, backend: Backend) -> None:
    """Raise Conflict if the home has rows, in this database or in another one."""
    require_empty(backend)
    noted = noted_ownership(home)
    if noted is not None and noted.database != backend.address:
        raise Conflict(
            f"home {str(home.path)!r}",
            f"it has rows already, in {noted.database!r}",
            "Name a new home with --home",
        )


class _Source(Protocol):
    """Where a backup is read."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raises KeyError or OSError if there is none."""


class _FolderSource:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes]:
        path = self._path / name
        if not path.is_file():  # a FIFO would be waited for
            raise KeyError(name)
        return open_regular(path)


class _TarSource:
    """The plain files of a tar file. A link may lead anywhere, and a file with holes unpacks to any
    size."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self._file = file
        # once, because `extractfile` looks through all members for each name
        self._members = {
            member.name: member
            for member in file.getmembers()
            if member.isreg() and not member.issparse()
        }

    def open(self, name: str) -> IO[bytes]:
        stream = self._file.extractfile(self._members[name])
        if stream is None:
            raise KeyError(name)
        return stream


@contextmanager
def _opened_source(path: Path) -> Iterator[_Source]:
    if path.is_dir():
        yield _FolderSource(path)
        return
    try:
        content = open_regular(path)
    except InputError as error:
        raise _no_backup(path, f"it cannot be read ({error.why})") from None
    with content:
        try:
            file = tarfile.open(fileobj=content, mode="r:")  # noqa: SIM115 - closed with the file
            members = _TarSource(file)
        # headers may name each other without end, or any number as a size
        except (OSError, tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise _no_backup(path, f"it cannot be read ({error})") from None
        yield members


def _no_backup(path: Path, why: str) -> InputError:
    fix = "Name a folder or tar file that `thumbwheel backup` wrote"
    return InputError(f"backup {str(path)!r}", why, fix)


def _verified(source: _Source, path: Path) -> Backup:
    """Return the backup, after checking that each of its files exists and has its hash. Raises
    InputError."""
    try:
        with source.open(MANIFEST) as stream:
            manifest = json.load(stream)
        if manifest["format"] != FORMAT:
            raise _no_backup(path, f"its format {manifest['format']!r} is not known here")
        files = {name: _declared(entry) for name, entry in manifest["files"].items()}
        backup = Backup(str(path), str(manifest["taken_at"]), files, list(manifest["missing"]))
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        tarfile.TarError,
    ) as error:
        raise _no_backup(path, f"{MANIFEST} cannot be read ({error})") from None
    if ROWS not in files:
        raise _no_backup(path, f"{ROWS} is missing")
    with log.progress("checking", len(files), "files") as advance:
        for name, entry in files.items():
            if not NAME.fullmatch(name) or ".." in name.split("/"):
                raise _no_backup(path, f"it has a file {name!r}, which is none of a home")
            try:
                with source.open(name) as stream:
                    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
            except (OSError, KeyError, tarfile.TarError):
                raise _no_backup(path, f"its file {name!r} is missing or no file") from None
            if sha256 != entry.sha256 or (name.startswith("blobs/") and name[6:] != sha256):
                raise _no_backup(path, f"its file {name!r} is damaged")
            advance()
    return backup


def _declared(entry: Mapping[str, Any]) -> BackupFile:
    """Return an entry of the manifest. Raises TypeError or KeyError for any other value."""
    sha256, size = entry["sha256"], entry["size"]
    if not isinstance(sha256, str) or not isinstance(size, int):
        raise TypeError(f"sha256 {sha256!r:.80} and size {size!r:.80}")
    return BackupFile(sha256, size)


def _put_back(source: _Source, name: str, home: Home, blobs: Artifacts, scratch: Path) -> None:
    """Write a file of the backup into the home. Raises StorageError."""
    with source.open(name) as stream, scratch.open("wb") as copy:
        shutil.copyfileobj(stream, copy, CHUNK)
    if name.startswith("blobs/"):
        blobs.put(scratch)
        return
    target = home.path / name
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = target.with_name(f".{os.getpid()}.tmp")
        shutil.copyfile(scratch, unfinished)
        unfinished.chmod(0o600)
        os.replace(unfinished, target)
    except OSError as error:  # its name may be too long here, or that of a folder
        raise unwritable(f"file {name[:80]!r} of the backup", error) from None


def _store_rows(rows: Path, home: Home, backend: Sqlite) -> None:
    """Make the file `rows` the database of the home. Raises Conflict if the home has been used
    meanwhile."""
    unfinished = home.path / f".{ROWS}.{os.getpid()}.tmp"
    try:
        shutil.copyfile(rows, unfinished)
        unfinished.chmod(0o600)
        sync(unfinished)
        with backend.exclusive():
            require_empty(backend)
            for suffix in ("-wal", "-shm"):  # of a database without rows, for another file
                home.database.with_name(home.database.name + suffix).unlink(missing_ok=True)
            os.replace(unfinished, home.database)
        sync(home.path)
    finally:
        unfinished.unlink(missing_ok=True)


def _put_blobs_into_folder(backend: Sqlite) -> None:
    """Note in the restored rows that the blobs are in the folder of the home, and that no bucket
    has checkpoints or bases."""
    with writing(backend) as engine, engine.begin() as connection:
        set_blobs_location(connection, None)
        connection.execute(run_checkpoints.delete())
        connection.execute(stored_bases.delete())


def _hold_back(backend: Sqlite) -> dict[str, int]:
    """Cancel the jobs, pause the schedules and disable the loops in the restored rows; return kind
    -> how many, without zeros."""
    with writing(backend) as engine, engine.begin() as connection:
        held_back = {
            "jobs": cancel_all(connection),
            "schedules": pause_all(connection),
            "loops": disable_all(connection),
        }
    return {what: count for what, count in held_back.items() if count}


def _misleading_name(backend: Sqlite) -> str | None:
    """Return a name in the rows that would become a path out of the home, None if there is none."""
    database = Database(backend)
    try:
        with database.read() as connection:
            return misleading_name(connection)
    finally:
        database.close()


def _shut_out(backend: Sqlite) -> dict[str, int]:
    """Remove users, keys and sessions from the restored rows, end the deployments, because each
    says where calls are sent, and forget the paths of exports, which may be of any file; return
    kind -> how many, without zeros."""
    with writing(backend) as engine, engine.begin() as connection:
        counts = remove_everybody(connection) | {
            "deployments": end_all(connection),
            "paths of exports": forget_paths(connection),
        }
    return {what: count for what, count in counts.items() if count}


def _set_home_id(backend: Sqlite, home_id: str) -> None:
    with writing(backend) as engine, engine.begin() as connection:
        set_home_id(connection, home_id)
