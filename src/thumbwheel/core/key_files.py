"""The keys and secrets of a home: small files, named by their paths.

Where the home belongs to a cluster, the values are in its database, sealed, and the same names lead
there: whoever opens the home says so (`kept_in`). Nobody else has to know, and no host of a cluster
can write a key of its own by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from thumbwheel.core import files
from thumbwheel.core.locks import wait_for

Change = Callable[[bytes | None], bytes | None]
"""The current value (None if there is none) -> the new one (None: leave it as it is)."""


class KeyStore(Protocol):
    """Where the keys of a cluster are."""

    def read(self, name: str) -> bytes | None:
        """Return a value, or None if there is none of that name."""

    def update(self, name: str, change: Change) -> bytes | None:
        """Change a value, as the only one to do so; return the value that is stored then."""

    def remove(self, name: str) -> bool:
        """Remove a value; return whether there was one."""

    def names(self) -> list[str]:
        """Return all names."""

    def version(self, folder: str) -> object:
        """Return a value that is another one after any value below `folder` was changed. It may be
        a second old, and never waits long for the database."""


_stores: dict[Path, list[KeyStore]] = {}
"""Homes that are open in this process and belong to a cluster -> the stores of those who opened
them."""


@contextmanager
def kept_in(home: Path, store: KeyStore) -> Iterator[None]:
    """Use `store` for the keys of the home until the end of the block."""
    _stores.setdefault(home, []).append(store)
    try:
        yield
    finally:
        _stores[home].remove(store)
        if not _stores[home]:
            del _stores[home]


def read(path: Path) -> bytes | None:
    """Return the value, or None if there is none. Raises OSError for a file that cannot be read."""
    located = _located(path)
    if located is not None:
        store, name = located
        return store.read(name)
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def create(path: Path, value: bytes) -> bytes:
    """Store the value unless there is one already; return the stored one. Raises OSError."""
    located = _located(path)
    if located is not None:
        store, name = located
        return store.update(name, lambda current: value if current is None else None) or value
    files.create(path, value)
    return path.read_bytes()


def update(path: Path, change: Change) -> None:
    """Change the value, as the only one to do so. Raises OSError."""
    located = _located(path)
    if located is not None:
        store, name = located
        store.update(name, change)
        return
    with wait_for(path.with_suffix(".lock")):
        value = change(read(path))
        if value is not None:
            files.replace(path, value.decode("utf-8"), mode=0o600)


def write(path: Path, value: str) -> None:
    """Store the value in place of an earlier one. Raises OSError."""
    located = _located(path)
    if located is not None:
        store, name = located
        store.update(name, lambda current: value.encode("utf-8"))
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace(path, value, mode=0o600)


def remove(path: Path) -> bool:
    """Remove the value; return whether there was one."""
    located = _located(path)
    if located is not None:
        store, name = located
        return store.remove(name)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def names(folder: Path) -> list[str]:
    """Return the names of the values in a folder, sorted."""
    located = _located(folder)
    if located is not None:
        store, name = located
        prefix = f"{name}/"
        return sorted(key.removeprefix(prefix) for key in store.names() if key.startswith(prefix))
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir())


def version(path: Path) -> object:
    """Return a value that is another one after the file, or a file of the folder, was changed; None
    if there is no such file."""
    located = _located(path)
    if located is not None:
        store, name = located
        return store.version(name)
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _located(path: Path) -> tuple[KeyStore, str] | None:
    """Return the store that has the value, and the value's name there; None for a file."""
    for home in (path.parent, path.parent.parent):
        if home in _stores:
            return _stores[home][-1], path.relative_to(home).as_posix()
    return None
