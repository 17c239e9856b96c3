"""The token of a home: whoever can read its file is its owner, and may do everything.

It is presented as a key, and stands in no URL and no log: browsers get a code (`login_codes`).
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.access.credentials import KEY_PREFIX
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import create, replace, unwritable

PREFIX = f"{KEY_PREFIX}local_"
TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True)
class LocalToken:
    """The token of one home, which may be replaced while a server runs."""

    path: Path

    @classmethod
    def of_file(cls, path: Path) -> LocalToken:
        """Return the token in `path`; create it if there is none, readable by its owner only.

        Raises StorageError if the file holds something else or cannot be written.
        """
        token = cls(path)
        try:
            if not path.exists():
                create(path, _new_line().encode("ascii"))
        except OSError as error:
            raise unwritable(f"token {str(path)!r}", error) from error
        token.read()
        return token

    def read(self) -> str:
        """Return the file's current token. Raises StorageError if it holds none."""
        path = self.path
        try:
            value = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise unwritable(f"token {str(path)!r}", error) from error
        if not TOKEN.fullmatch(value):
            raise StorageError(
                f"token {str(path)!r}",
                "it contains no token",
                "Delete it; the next thumbwheel serve makes another",
            )
        return value

    def equals(self, value: str) -> bool:
        """Return whether `value` is the token, in a time that does not depend on how much of it is
        right."""
        if not TOKEN.fullmatch(value):
            return False
        try:
            return hmac.compare_digest(self.read().encode(), value.encode())
        except StorageError:  # it was deleted: nothing is equal to it
            return False

    def replace(self) -> None:
        """Write another token; the previous one is no longer accepted."""
        try:
            replace(self.path, _new_line(), mode=0o600)
        except OSError as error:
            raise unwritable(f"token {str(self.path)!r}", error) from error


def _new_line() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(32)}\n"
