"""The sdk's inbox: what an app spooled while no command ran becomes rows; a line leaves the inbox
only when it is stored or set aside.

The spool is renamed away under the lock that its writers take, read by whoever holds the renamed
file's lock, and deleted after the commit. A crash in between leaves the renamed file; the next
drain reads it again and meets its own rows as duplicates.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from thumbwheel.capture import store
from thumbwheel.capture.ingest import LINES, SIZE, link, scope_of
from thumbwheel.capture.source import Item, Line, Refused, row_of, text_of
from thumbwheel.capture.sources.jsonl import SOURCE
from thumbwheel.capture.types import Unreadable
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.disk import sync

SPOOL, REJECTED = "spool.jsonl", "rejected.jsonl"
Spooled = tuple[str, Item]
"""Agent (empty where the line does not say) and item."""


def drain_inbox(ws: Workspace) -> list[str]:
    """Store what the sdk spooled and return what to tell the user, nothing where the inbox was
    empty."""
    inbox = ws.home.inbox
    _take(inbox)
    told: list[str] = []
    for path in sorted(inbox.glob("draining-*.jsonl")):
        with _held(path) as file:
            if file is not None:
                told += _drain(ws, file)
                path.unlink()
                sync(inbox)
    return told


def _take(inbox: Path) -> None:
    """Rename the spool away; writers hold its lock while they append and look again after waiting
    for it."""
    spool = inbox / SPOOL
    try:
        file = spool.open("rb")
    except FileNotFoundError:
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if _names(spool, file):
            spool.rename(inbox / f"draining-{ids.new('spl')}.jsonl")
            sync(inbox)


@contextmanager
def _held(path: Path) -> Iterator[BinaryIO | None]:
    """The file, locked; None where another process is draining it or just did."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file if _names(path, file) else None


def _names(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _drain(ws: Workspace, file: BinaryIO) -> list[str]:
    counts: Counter[str] = Counter()
    refused: list[Refused] = []
    agents: set[str] = set()
    for batch in _batches(file):
        refused += [item for _, item in batch if isinstance(item, Refused)]
        for agent in dict.fromkeys(agent for agent, item in batch if isinstance(item, Line)):
            lines = [item for of, item in batch if of == agent and isinstance(item, Line)]
            refused += _keep(ws, agent, lines, counts)
            agents.add(agent)
    for agent in sorted(agents):
        link(ws, scope_of(ws, agent, "sdk"))
    return _tell(ws.home.inbox / REJECTED, counts, refused)


def _keep(ws: Workspace, agent: str, lines: list[Line], counts: Counter[str]) -> list[Refused]:
    scope = scope_of(ws, agent, "sdk")
    kept = ws.db.write(lambda connection: store.keep(connection, scope, lines))
    counts["stored"] += sum(bool(one.new) for one in kept)
    counts["known"] += sum(not (one.new or one.reason or one.erased) for one in kept)
    counts["erased"] += sum(one.erased for one in kept)
    return [Refused(one.line.number, one.reason, one.line.text) for one in kept if one.reason]


def _batches(file: BinaryIO) -> Iterator[list[Spooled]]:
    batch: list[Spooled] = []
    size = 0
    for number, raw in enumerate(file, start=1):
        if raw.strip():
            batch.append(_spooled(number, raw))
            size += len(raw)
        if len(batch) >= LINES or size >= SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _spooled(number: int, raw: bytes) -> Spooled:
    text = text_of(raw.rstrip(b"\n"))
    try:
        row = row_of(raw)
        agent = row.pop("agent", None)
        if not isinstance(agent, str):
            raise Unreadable(f"agent {agent!r} is no name")
        slug = ids.slug_of(agent)
    except (Unreadable, InputError) as error:
        return "", Refused(number, str(error), text)
    return slug, SOURCE.item(number, row, text)


def _tell(rejected: Path, counts: Counter[str], refused: list[Refused]) -> list[str]:
    told = []
    if counts:
        known = f", {counts['known']} were there already" if counts["known"] else ""
        erased = (
            f", {counts['erased']} belong to what was erased and were dropped"
            if counts["erased"]
            else ""
        )
        told.append(f"inbox: {counts['stored']} lines stored{known}{erased}")
    if refused:
        lines = (
            json.dumps(
                {"number": one.number, "reason": one.reason, "text": one.text}, ensure_ascii=False
            )
            for one in refused
        )
        with rejected.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        told.append(
            f"inbox: {len(refused)} lines cannot be stored and are kept in {rejected}; the first: "
            f"{refused[0].reason}"
        )
    return told
