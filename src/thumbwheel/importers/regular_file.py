"""Opening what is imported: regular files only, so that no FIFO and no device is ever waited for.

Lives here: opening, reading whole up to a bound, the files of a folder. Not here: what is in them
(`lines.py`, `tables.py`).
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from thumbwheel.core.errors import InputError
from thumbwheel.importers.location import Address

MOST_BYTES = 128 * 2**20
"""Of a file that is held in memory as a whole."""


def file_error(path: Path, why: str, fix: str) -> InputError:
    """Return the error for a file that cannot be read as a whole."""
    return InputError(f"file {str(path)!r}", why, fix)


def open_regular(path: Path) -> io.BufferedReader:
    """Return the file at `path`, opened for reading. Raises InputError if it is not a regular file,
    without ever waiting for it."""
    if isinstance(path, Address):
        raise InputError(
            f"address {str(path)!r}",
            "this source reads files",
            "The source decisions reads postgresql://...",
        )
    what = f"file {str(path)!r}"
    try:
        _demand_regular(what, path.stat().st_mode)  # opening a device may already do something
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(what, error.strerror or str(error), "Check the path") from None
    except ValueError as error:  # a NUL character in the path
        raise InputError(what, str(error), "Check the path") from None
    try:
        _demand_regular(what, os.fstat(handle).st_mode)
    except InputError:
        os.close(handle)
        raise
    return io.BufferedReader(io.FileIO(handle))


def _demand_regular(what: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise InputError(what, "it is a directory, not a regular file", "Name one file in it")
    kind = "a device"
    if stat.S_ISFIFO(mode):
        kind = "a FIFO"
    elif stat.S_ISSOCK(mode):
        kind = "a socket"
    raise InputError(
        what, f"it is {kind}, not a regular file", "Write its content into a file and name that"
    )


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return all bytes of the regular file at `path`. Raises InputError, also if it has more than
    `most` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise file_error(path, error.strerror or str(error), "Check the path") from None
    if len(content) > most:
        raise file_error(
            path,
            f"it has more than the {most:,} bytes that are taken",
            "Split it into several files",
        )
    return content


def files_below(folder: Path, *endings: str) -> Iterator[Path]:
    """Yield the regular files with one of these endings in `folder` and below it, sorted by path,
    without hidden ones."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in endings and not hidden and path.is_file():
            yield path
