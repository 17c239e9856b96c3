"""The audit log: who did what, as a chain in which a row that was changed, moved or left out shows.

Each row's `mac` is a keyed hash of the row and of the `mac` before it, so that nobody without the
home's key writes or changes one. That the end is missing shows by the head: the newest row, signed,
in a file of the home. A kill between the commit and the head leaves rows beyond it, which are sound
all the same.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.access import store
from thumbwheel.access.types import AuditEntry
from thumbwheel.core import key_files, log
from thumbwheel.core.errors import StorageError
from thumbwheel.core.ids import canonical
from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ACCESS

T = TypeVar("T")
START = ""
"""In place of the `mac` before the first row."""
COMMAND_LINE = "local"
"""The actor of commands: whoever may write the home."""


@dataclass(frozen=True)
class Act:
    """What somebody does, for the log."""

    actor: str
    action: str
    agent: str | None = None
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AuditHead:
    """The newest row, as the file of the home has it."""

    number: int
    mac: str


@dataclass(frozen=True)
class AuditVerdict:
    """What `verify` saw."""

    rows: int
    problem: str | None
    """What is wrong, by the number of the row; None where the log is whole."""
    beyond_head: int
    """Rows that are newer than the signed head."""


def record(ws: Workspace, act: Act) -> None:
    """Write a row; return once it is on disk."""
    write(ws, lambda connection: (None, act))


def write(ws: Workspace, work: Callable[[sa.Connection], tuple[T, Act]]) -> T:
    """Run `work` and write the row about it in one transaction; return the result of `work`."""
    seal = make_seal(ws.home.access_key)

    def run(connection: sa.Connection) -> tuple[T, AuditEntry]:
        result, act = work(connection)
        return result, append(connection, seal, act)

    result, entry = ws.db.write(run, ACCESS)
    sign_head(ws, seal, entry)
    return result


def append(connection: sa.Connection, seal: Seal, act: Act) -> AuditEntry:
    """Add a row to the chain, within a write transaction."""
    last = store.last_audit(connection)
    number = 1 if last is None else last.number + 1
    mac = START if last is None else last.mac
    content = dict(act.content or {})
    now = datetime.now(UTC)
    unsigned = AuditEntry(number, now, act.actor, act.action, act.agent, content, mac)
    entry = AuditEntry(**vars(unsigned) | {"mac": _mac(seal, mac, unsigned)})
    store.insert_audit(connection, entry)
    return entry


def sign_head(ws: Workspace, seal: Seal, entry: AuditEntry) -> None:
    """Write the entry as the newest one, signed, unless a newer one is already noted. A failed
    write is only logged."""
    path = ws.home.audit_head
    signature = seal.of("audit head", f"{entry.number}\0{entry.mac}")
    content = {"number": entry.number, "mac": entry.mac, "signature": signature}

    def newer(stored: bytes | None) -> bytes | None:
        head = _parsed_head(path, stored, seal)
        is_newer = head is None or head.number < entry.number
        return json.dumps(content).encode("ascii") if is_newer else None

    try:
        key_files.update(path, newer)
    except (OSError, StorageError) as error:
        # what it records is done and on disk; `verify` says what is wrong with the head
        log.logger.error("the head of the audit log is not written: %s", error)


def read_head(path: Path, seal: Seal) -> AuditHead | None:
    """Return the head; None if there is none. Raises StorageError if it is forged or unreadable."""
    return _parsed_head(path, key_files.read(path), seal)


def _parsed_head(path: Path, stored: bytes | None, seal: Seal) -> AuditHead | None:
    if stored is None:
        return None
    try:
        content = json.loads(stored)
        head = AuditHead(int(content["number"]), str(content["mac"]))
        signature = str(content["signature"])
    except (ValueError, KeyError, TypeError):
        raise _bad_head(path, "it cannot be read") from None
    if not hmac.compare_digest(signature, seal.of("audit head", f"{head.number}\0{head.mac}")):
        raise _bad_head(path, "its signature does not fit")
    return head


def verify(ws: Workspace) -> AuditVerdict:
    """Verify the chain from its beginning to the signed head; return the number of rows that were
    read and the first problem."""
    seal = make_seal(ws.home.access_key)
    try:
        head = read_head(ws.home.audit_head, seal)
    except StorageError as error:
        return AuditVerdict(0, str(error), 0)
    rows, mac, head_mac = 0, START, None
    with ws.db.read() as connection:
        for entry in store.audit_entries(connection):
            rows += 1
            if entry.number != rows:
                return AuditVerdict(rows, f"row {rows} is missing", 0)
            if not hmac.compare_digest(entry.mac, _mac(seal, mac, entry)):
                return AuditVerdict(rows, f"row {rows} is not as it was written", 0)
            mac = entry.mac
            if head is not None and rows == head.number:
                head_mac = mac
    if head is None:
        problem = f"{ws.home.audit_head.name} is missing" if rows else None
        return AuditVerdict(rows, problem, rows)
    if head_mac is None:
        return AuditVerdict(rows, f"rows {rows + 1} to {head.number} are missing at the end", 0)
    if not hmac.compare_digest(head_mac, head.mac):
        return AuditVerdict(rows, f"row {head.number} is not the one that was signed", 0)
    return AuditVerdict(rows, None, rows - head.number)


def entries(ws: Workspace, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
    """Return up to `limit` rows of the log, newest first; with `before`, only those with smaller
    numbers."""
    with ws.db.read() as connection:
        return store.newest_audit(connection, limit, before)


def _mac(seal: Seal, before: str, entry: AuditEntry) -> str:
    recorded_at = entry.recorded_at.astimezone(UTC).isoformat(timespec="microseconds")
    fields = [before, entry.number, recorded_at, entry.actor, entry.action, entry.agent]
    return seal.of("audit", canonical([*fields, entry.content]))


def _bad_head(path: Path, why: str) -> StorageError:
    return StorageError(
        f"the head of the audit log {str(path)!r}",
        why,
        "Take it from a backup of the home, and verify that against the rows",
    )
