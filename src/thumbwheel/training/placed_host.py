"""A host on which ranks of a run are placed: what is done there, whoever asks for it.

The run has a folder in the cache of the home that this host has. Its child is that of a run of this
host, and computes; nothing of it is written to the database or to a bucket from here. The caller
reads the folder (run_mirror.py).
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError, NotFound, StorageError
from thumbwheel.core.hardware import device
from thumbwheel.core.locks import try_lock
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.ranks import LISTENER, LOST
from thumbwheel.models.blob_location import bucket_of
from thumbwheel.sdk.version import __version__
from thumbwheel.training import store
from thumbwheel.training.children import Children, start_rank
from thumbwheel.training.fence_watch import FenceWatch
from thumbwheel.training.placement import THREADS, HostShare, free_listener, variables_of
from thumbwheel.training.run_mirror import FileState, LocalFolder
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.spec_of_host import fetch_rows, spec_of_this_host
from thumbwheel.training.types import Run, RunSpec

FOLDER = "placed"
"""The folder below the cache of a home that has those of placed runs."""


@dataclass(frozen=True)
class Order:
    """What a host is asked to compute."""

    spec: Mapping[str, Any]
    """The spec of the run, with the paths of the worker's host."""
    fence: int
    lease_seconds: float


def versions() -> dict[str, str]:
    """Return the versions that have to be equal on all hosts of a run."""
    names = {"Python": ".".join(platform.python_version_tuple()[:2]), "Thumbwheel": __version__}
    for package in ("ray", "torch"):
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            names[package] = "none"
    return names


class PlacedHost:
    """The ranks of a run on this host. Every method answers at once, and may be called again when
    its answer was lost."""

    def __init__(self) -> None:
        self._preparation: Future[None] | None = None
        self._folder: RunDir | None = None
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._children: Children | None = None
        self._first = 0
        self._code: int | None = None
        self._watch: FenceWatch | None = None

    def versions(self) -> dict[str, str]:
        """Return the versions of this host."""
        return versions()

    def prepare(self, order: Order) -> None:
        """Begin to fetch what the run needs, and to ask for its fence."""
        if self._preparation is None:
            executor = ThreadPoolExecutor(1, thread_name_prefix="prepare")
            self._preparation = executor.submit(self._prepare, order)

    def is_prepared(self) -> bool:
        """Return whether all is here. Raises the error of the preparation."""
        if self._preparation is None or not self._preparation.done():
            return False
        self._preparation.result()
        return True

    def _prepare(self, order: Order) -> None:
        home = Home.at()
        if not home.ownership.exists():
            raise ConfigError(
                f"host {socket.gethostname()}",
                f"it has no folder of this home at {str(home.path)!r}",
                "Run `thumbwheel cluster join` there, and start Ray with the same "
                "THUMBWHEEL_HOME, THUMBWHEEL_DATABASE and THUMBWHEEL_CLUSTER_KEY",
            )
        ws = Workspace.open(
            home
        )  # as long as this process lives: the fence is asked for through it
        spec = RunSpec(**order.spec)
        run = _run_of(ws, spec.run_id)

        def has_fence() -> bool:
            with ws.db.read() as connection:
                return store.fence_of(connection, spec.run_id) == order.fence

        self._watch = FenceWatch(has_fence, order.lease_seconds, self._end)
        self._watch.start()
        folder = RunDir(_cleared(home) / f"{spec.run_id}-{order.fence}")
        if run.folder != folder_id(home):
            config = {**run.config, "ranks": spec.config.get("ranks", 1)}
            spec = spec_of_this_host(ws, replace(run, config=config), spec)
            _require_bucket(ws, run)
            fetch_rows(ws, spec)
        folder.create(spec)
        self._lock = folder.lock()
        self._folder = folder

    def listing(self) -> dict[str, FileState]:
        """Return path -> state of every file of the run's folder."""
        return self._files().listing()

    def read(self, path: str, offset: int, size: int) -> bytes | None:
        """Return up to `size` bytes of a file of the run, or None if it is gone."""
        return self._files().read(path, offset, size)

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write into a file of the run."""
        self._files().write(path, offset, content)

    def address(self) -> str:
        """Return the address of this host in the cluster."""
        import ray

        return str(ray.util.get_node_ip_address())

    def listen(self, address: str) -> int:
        """Listen for the other ranks on a free port of this address; return the port."""
        if self._listener is None:
            self._listener = free_listener(address)
        return int(self._listener.getsockname()[1])

    def start(self, share: HostShare) -> None:
        """Start the ranks of this host. Called in the main thread, with which they die."""
        if self._children is not None:
            return
        folder, lock = self._prepared()
        where = device(folder.spec().config.get("device", "auto"))
        if self._listener is not None:
            share = replace(share, listener=self._listener.fileno())
        variables: list[dict[str, str]] = [{THREADS: str(share.threads)}]
        if share.world > 1:
            variables = variables_of(share, where, os.environ)
        members = []
        for number, of_rank in enumerate(variables):
            member = RunDir(folder.path, share.first + number)
            is_listening = number == 0 and share.listener is not None
            handles = (int(of_rank[LISTENER]),) if is_listening else ()
            members.append(start_rank(member, lock, of_rank, handles))
        self._first = share.first
        self._children = Children(members)
        if self._listener is not None:
            self._listener.close()

    def poll(self) -> tuple[int, int] | None:
        """Return (rank, exit code) by which the ranks of this host ended, None while one is
        there."""
        if self._children is None:
            return None
        if self._code is None:
            self._code = self._children.poll()
        if self._code is None:
            return None
        return self._first + self._children.last_rank, self._code

    def interrupt(self) -> None:
        """Ask the run to stop at a checkpoint."""
        if self._children is not None and self._code is None:
            self._children.interrupt()

    def kill(self) -> None:
        """Kill the ranks of this host."""
        if self._children is not None:
            self._children.kill()

    def close(self) -> None:
        """Kill what is left and remove the folder of the run."""
        if self._watch is not None:
            self._watch.end()
        if self._children is not None:
            self._children.end()
        if self._folder is not None:
            shutil.rmtree(self._folder.path, ignore_errors=True)

    def _end(self, reason: str) -> None:
        """Kill the ranks, and end this process: nobody waits for it any more."""
        if self._children is not None:
            self._children.kill()
        log.say(f"this host ends its part of the run: {reason}")
        os._exit(LOST)

    def _files(self) -> LocalFolder:
        return LocalFolder(self._prepared()[0].path)

    def _prepared(self) -> tuple[RunDir, int]:
        assert self._folder is not None and self._lock is not None  # noqa: S101 - is_prepared()
        return self._folder, self._lock


def _run_of(ws: Workspace, run_id: str) -> Run:
    with ws.db.read() as connection:
        matches = store.by_id(connection, run_id)
    if not matches:
        raise NotFound(
            f"run {run_id!r}",
            f"the home of host {socket.gethostname()} ({str(ws.home.path)!r}) does not know it",
            "Start Ray on every host with the THUMBWHEEL_HOME and THUMBWHEEL_DATABASE of this home",
        )
    return matches[0]


def _require_bucket(ws: Workspace, run: Run) -> None:
    if bucket_of(ws) is None:
        raise StorageError(
            f"run {run.id!r}",
            f"its rows and its base are files of another host than {socket.gethostname()}",
            "Keep blobs in a bucket (the setting `blobs`), so that every host has them",
        )


def _cleared(home: Home) -> Path:
    """Return the folder of placed runs, without those of processes that were killed."""
    parent = home.cache / FOLDER
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in parent.iterdir():
        try:
            handle = try_lock(path / "lock", create=False)
        except OSError:
            continue
        if handle is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
    return parent
