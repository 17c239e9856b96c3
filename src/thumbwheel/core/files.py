"""Writes files that are complete or absent, and explains why one could not be written."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

from thumbwheel.core.errors import InputError, StorageError
from thumbwheel.sdk.disk import sync

FREE_SPACE = "Free space, then try again"


def replace(path: Path, text: str, *, mode: int = 0o666, errors: str = "strict") -> None:
    """Write `text` to `path` in one step: readers, and a kill, find the old file or the new one.

    `mode` are the permissions before the umask, `errors` is what the UTF-8 encoder does with
    characters that it cannot encode. Raises OSError, and then leaves the old file.
    """
    # The name differs by process and thread, so that two writers do not share a temporary file.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8", errors=errors) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create(path: Path, content: bytes) -> bool:
    """Write `content` to a new file for its owner only, complete and synced. Return False if
    another process was first, whose file then stays. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync(path.parent)
    return True


def write_output(option: str, path: Path, content: str | bytes) -> None:
    """Write a command's output to the file that a person named by `option`; it may also be a device
    or a pipe. Raises InputError if it cannot be written."""
    if isinstance(content, str):
        content = content.encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        why = error.strerror or str(error)
        fix = "Name a file that can be written"
        raise InputError(f"{option} {str(path)!r}", why, fix) from None


def unwritable(what: str, error: BaseException, fix: str = FREE_SPACE) -> StorageError:
    """Return the error for `what`, which could not be written because of `error`: an OSError, or
    the exception that a library raises when the disk takes only a part of a file."""
    text = str(error).split("\n")[0]
    if isinstance(error, OSError):
        why = error.strerror or text
    else:
        why = f"the disk took only a part of it ({text})"
    return StorageError(what, f"it cannot be written: {why}", fix)
