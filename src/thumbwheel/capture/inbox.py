"""The sdk's inbox: what an app spooled while no command ran becomes rows; a line leaves the inbox
only when it is stored or set aside.

The spool is renamed away under the lock that its writers take, read by whoever holds the renamed
file's lock, and deleted after the commit. A crash in between leaves the renamed file; the next
drain reads it again and finds its own rows to be duplicates.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from thumbwheel.sdk.disk import is_file_at, sync

SPOOL, REJECTED = "spool.jsonl", "rejected.jsonl"


@dataclass(frozen=True)
class Spooled:
    """An item of the spool; `agent` is empty where the line does not say whose it is."""

    agent: str
    item: Item


def drain_inbox(ws: Workspace) -> list[str]:
    """Store what the sdk spooled and return messages for the user, none where the inbox was
    empty."""
    inbox = ws.home.inbox
    _rename_spool(inbox)
    messages: list[str] = []
    for path in sorted(inbox.glob("draining-*.jsonl")):
        with _locked(path) as file:
            if file is not None:
                messages += _drain(ws, file)
                path.unlink()
                sync(inbox)
    return messages


def _rename_spool(inbox: Path) -> None:
    """Rename the spool away; writers hold its lock while they append and look again after waiting
    for it."""
    spool = inbox / SPOOL
    try:
        file = spool.open("rb")
    except FileNotFoundError:
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_file_at(spool, file.fileno()):
            spool.rename(inbox / f"draining-{ids.new('spl')}.jsonl")
            sync(inbox)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO | None]:
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
        yield file if is_file_at(path, file.fileno()) else None


def _drain(ws: Workspace, file: BinaryIO) -> list[str]:
    counts: Counter[str] = Counter()
    refused: list[Refused] = []
    agents: set[str] = set()
    for batch in _batches(file):
        lines: dict[str, list[Line]] = {}
        for spooled in batch:
            if isinstance(spooled.item, Refused):
                refused.append(spooled.item)
            elif isinstance(spooled.item, Line):
                lines.setdefault(spooled.agent, []).append(spooled.item)
        for agent, agent_lines in lines.items():
            refused += _save(ws, agent, agent_lines, counts)
            agents.add(agent)
    for agent in sorted(agents):
        link(ws, scope_of(ws, agent, "sdk"))
    return _report(ws.home.inbox / REJECTED, counts, refused)


def _save(ws: Workspace, agent: str, lines: list[Line], counts: Counter[str]) -> list[Refused]:
    """Store the lines of an agent and count what became of them; returns those that were
    refused."""
    scope = scope_of(ws, agent, "sdk")
    refused = []
    for result in ws.db.write(lambda connection: store.save_lines(connection, scope, lines)):
        counts["stored"] += bool(result.new)
        counts["duplicates"] += not (result.new or result.reason or result.erased)
        counts["erased"] += result.erased
        if result.reason:
            refused.append(Refused(result.line.number, result.reason, result.line.text))
    return refused


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
        return Spooled("", Refused(number, str(error), text))
    return Spooled(slug, SOURCE.item(number, row, text))


def _report(rejected: Path, counts: Counter[str], refused: list[Refused]) -> list[str]:
    """Messages about what was stored, and about what could not be, which goes to `rejected`."""
    messages = []
    if counts:
        message = f"inbox: {counts['stored']} lines stored"
        if counts["duplicates"]:
            message += f", {counts['duplicates']} were there already"
        if counts["erased"]:
            message += f", {counts['erased']} belong to what was erased and were dropped"
        messages.append(message)
    if refused:
        with rejected.open("a", encoding="utf-8") as file:
            file.write("".join(refusal.as_json() + "\n" for refusal in refused))
            file.flush()
            os.fsync(file.fileno())
        messages.append(
            f"inbox: {len(refused)} lines cannot be stored and are kept in {rejected}; the first: "
            f"{refused[0].reason}"
        )
    return messages
