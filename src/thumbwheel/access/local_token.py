"""The token of a home: whoever can read its file is its owner, and may do everything."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.access.credentials import KEY_PREFIX
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.sdk.disk import sync

PREFIX = f"{KEY_PREFIX}local_"
TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True)
class LocalToken:
    """The token of one home."""

    value: str

    @classmethod
    def of_file(cls, path: Path) -> LocalToken:
        """The token in `path`, which is made where there is none, readable by its owner only.

        Raises StorageError where the file holds something else or cannot be written.
        """
        try:
            _create(path)
            value = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise unwritable(f"token {str(path)!r}", error) from error
        if not TOKEN.fullmatch(value):
            raise StorageError(
                f"token {str(path)!r}",
                "it holds no token",
                "Delete it; the next thumbwheel serve makes another",
            )
        return cls(value)

    def equals(self, value: str) -> bool:
        """Whether `value` is the token, in a time that does not say how much of it is right."""
        return hmac.compare_digest(self.value.encode(), value.encode("utf-8", "surrogateescape"))


def _create(path: Path) -> None:
    """Write a new token, whole or not at all, where there is none."""
    if path.exists():
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{PREFIX}{secrets.token_urlsafe(32)}\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(temporary, path)  # fails where another process was first, whose token then counts
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    sync(path.parent)
