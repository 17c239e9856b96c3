"""What an erasure leaves to the other hosts of the home: run folders, caches, spools and files of
datasets in their folders.

The host that erases stores what they have to look for, sealed among the keys of the cluster, since
it has names of the subject. The server of each host removes what it has within seconds, or when it
next starts, and strikes its folder off the list. The last one removes the list.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import key_files
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.core.home_paths import located
from thumbwheel.core.locks import try_lock
from thumbwheel.db import stored_rows
from thumbwheel.db.cluster import ERASURES
from thumbwheel.db.host_software import version_text
from thumbwheel.db.hosts import all_hosts, folder_id, remove
from thumbwheel.db.schema import tombstones
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.purge import check_idle, purge
from thumbwheel.erasure.types import SubjectRows
from thumbwheel.report.types import ClusterHost, Tainted

SEARCHED = ("subjects", "sessions", "traces", "feedback", "cases", "raters")
"""The ids by which files are searched."""
LOCK = "erasures.lock"
"""Of the home: held by the process that removes files."""
ROWS_GONE = ("rows", "done")
"""States of an erasure that has deleted its rows."""


@dataclass(frozen=True)
class PendingErasure:
    """What the hosts with these folders have to remove."""

    folders: list[str]
    doomed: SubjectRows
    tainted: Tainted
    exports: list[str]
    """Folders of exports, as rows name them."""

    @classmethod
    def read(cls, content: bytes) -> PendingErasure:
        """Return it from its stored form."""
        stored: dict[str, Any] = json.loads(content)
        ids = {kind: set(stored["ids"][kind]) for kind in SEARCHED}
        names = {kind: set(values) for kind, values in stored["names"].items()}
        tainted = {kind: set(values) for kind, values in stored["tainted"].items()}
        return cls(
            stored["folders"],
            SubjectRows(**ids, names=names),
            Tainted(**tainted),
            stored["exports"],
        )

    def stored(self) -> bytes:
        """Return its stored form."""
        content = {
            "folders": self.folders,
            "ids": {kind: sorted(getattr(self.doomed, kind)) for kind in SEARCHED},
            "names": {kind: sorted(values) for kind, values in self.doomed.names.items()},
            "tainted": self.tainted.to_json(),
            "exports": self.exports,
        }
        return json.dumps(content).encode()

    def without(self, folder: str) -> PendingErasure:
        """Return what is left once the host with this folder is done."""
        folders = [other for other in self.folders if other != folder]
        return PendingErasure(folders, self.doomed, self.tainted, self.exports)


def leave_to_others(
    ws: Workspace, erasure_id: str, doomed: SubjectRows, tainted: Tainted, exports: list[str]
) -> None:
    """Store what the other hosts have to remove, unless an earlier attempt at the erasure did."""
    folders = [folder for folder, _ in _others(ws)]
    if folders:
        pending = PendingErasure(folders, doomed, tainted, exports)
        key_files.create(_path(ws, erasure_id), pending.stored())


def other_hosts(ws: Workspace) -> list[str]:
    """Return the names of the hosts to which an erasure here leaves their files."""
    return [name for _, name in _others(ws)]


def waiting_hosts(ws: Workspace, erasure_id: str) -> list[str]:
    """Return the names of the hosts that have not removed their files yet."""
    content = key_files.read(_path(ws, erasure_id)) if ws.is_shared else None
    if content is None:
        return []
    name_of = dict(_others(ws))
    return [name_of.get(folder, folder) for folder in PendingErasure.read(content).folders]


def purge_here(ws: Workspace) -> list[str]:
    """Remove the files of this host that erasures on other hosts left to it; return a line about
    each erasure. Where a run trains here, they wait for its end."""
    handle = try_lock(ws.home.path / LOCK)
    if handle is None:
        return []  # another process of this host is at it
    try:
        return _purged(ws)
    finally:
        os.close(handle)


def _purged(ws: Workspace) -> list[str]:
    """Remove the files, and return a line about each erasure."""
    folder, lines = folder_id(ws.home), []
    for erasure_id in key_files.names(ws.home.path / ERASURES):
        content = key_files.read(_path(ws, erasure_id))
        pending = None if content is None else PendingErasure.read(content)
        if pending is None or folder not in pending.folders or not _are_rows_gone(ws, erasure_id):
            continue
        try:
            check_idle(ws)
        except Conflict:
            continue
        exports = [str(path) for path in located(pending.exports, ws.home.path)]
        removed = purge(ws, pending.doomed, pending.tainted, exports)
        _strike_off(ws, erasure_id, folder)
        counts = ", ".join(f"{number} {kind}" for kind, number in removed.items())
        lines.append(f"erasure {erasure_id}: removed here: {counts or 'nothing was left'}")
    return lines


def _are_rows_gone(ws: Workspace, erasure_id: str) -> bool:
    """Return whether an erasure has deleted its rows, so that no cache is made of them again."""
    with ws.db.read() as connection:
        row = stored_rows.row_by_id(connection, tombstones, erasure_id)
    return row is not None and row["report"]["state"] in ROWS_GONE


def _strike_off(ws: Workspace, erasure_id: str, folder: str) -> None:
    """Record that the host with this folder is done; remove the list after the last one."""
    path = _path(ws, erasure_id)

    def change(current: bytes | None) -> bytes | None:
        return None if current is None else PendingErasure.read(current).without(folder).stored()

    key_files.update(path, change)
    rest = key_files.read(path)
    if rest is not None and not PendingErasure.read(rest).folders:
        key_files.remove(path)


def cluster_hosts(ws: Workspace) -> list[ClusterHost]:
    """Return the hosts of the home, the oldest first; none for a home that is no cluster."""
    if not ws.is_shared:
        return []
    folder, waiting = folder_id(ws.home), _waiting_by_folder(ws)
    with ws.db.read() as connection:
        rows = all_hosts(connection)
    return [
        ClusterHost(
            row.folder,
            row.name,
            row.address,
            version_text(row.software),
            row.folder == folder,
            waiting.get(row.folder, []),
        )
        for row in rows
    ]


def _waiting_by_folder(ws: Workspace) -> dict[str, list[str]]:
    """Return folder -> the erasures that wait for its host."""
    waiting: dict[str, list[str]] = {}
    for erasure_id in key_files.names(ws.home.path / ERASURES):
        content = key_files.read(_path(ws, erasure_id))
        for folder in PendingErasure.read(content).folders if content else ():
            waiting.setdefault(folder, []).append(erasure_id)
    return waiting


def forget_host(ws: Workspace, folder: str) -> ClusterHost:
    """Remove a host that will never come back, also from what erasures wait for. Raises NotFound
    for an unknown folder, Conflict for the one of this host."""
    known_hosts = {host.folder: host for host in cluster_hosts(ws)}
    if folder not in known_hosts:
        folders = ", ".join(known_hosts) or "none"
        raise NotFound(
            f"host {folder!r}", "no host of this home has that folder", f"Known: {folders}"
        )
    host = known_hosts[folder]
    if host.is_this:
        raise Conflict(
            f"host {folder!r}", "it is this one", "Run it on a host that goes on, with the other"
        )
    for erasure_id in host.erasures:
        _strike_off(ws, erasure_id, folder)
    remove(ws.db, folder)
    return host


def _others(ws: Workspace) -> list[tuple[str, str]]:
    """Return (folder, name) of the other hosts."""
    if not ws.is_shared:
        return []
    folder = folder_id(ws.home)
    with ws.db.read() as connection:
        return [(host.folder, host.name) for host in all_hosts(connection) if host.folder != folder]


def _path(ws: Workspace, erasure_id: str) -> Path:
    return ws.home.path / ERASURES / erasure_id
