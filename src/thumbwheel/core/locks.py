"""Locks between processes: a file that one process holds until it closes its handle or ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thumbwheel.core.errors import Conflict


def try_lock(path: Path, create: bool = True) -> int | None:
    """A handle that holds the lock until all copies of it are closed; None while another process
    holds it. Raises OSError, as FileNotFoundError without `create`."""
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def lock(path: Path, what: str, why: str) -> int:
    """A handle that holds the lock until all copies of it are closed; raises Conflict, with `what`
    is held and `why`, while another process holds it."""
    handle = try_lock(path)
    if handle is None:
        raise Conflict(what, why, "Wait for it, or stop it with Ctrl-C there")
    return handle


@contextmanager
def wait_for(path: Path) -> Iterator[None]:
    """Hold the lock inside, and wait until no other process does; raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
