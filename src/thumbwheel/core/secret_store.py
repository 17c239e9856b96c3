"""Secrets that other people's servers want: stored by name in files that only the owner can read,
or read from an environment variable of that name.

Rows, settings and records hold the name only. A value is never printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thumbwheel.core.errors import InputError, NotFound, StorageError
from thumbwheel.core.files import replace, unwritable
from thumbwheel.core.plugins import nearest

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
FOLDER = "secrets"
"""Of the home."""
LONGEST = 16_384
"""Characters of a value."""


@dataclass(frozen=True)
class SecretStore:
    """The secrets of one home: one file for each in `folder`."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def get(self, name: str) -> str | None:
        """The value: of the file, else of the environment variable; None where neither exists.
        Raises InputError for what is no name, StorageError for a value that cannot be used."""
        check_name(name)
        fix = f"Set it again: thumbwheel secrets set {name}"
        try:
            value = (self.folder / name).read_text(encoding="utf-8", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            value = self.environment.get(name, "").strip()
        except OSError as error:
            why = f"its file cannot be read: {error.strerror or error}"
            raise StorageError(f"secret {name!r}", why, fix) from error
        if value and not _is_header_value(value):
            # written by hand, or by another program
            raise StorageError(f"secret {name!r}", "it holds what no HTTP header can", fix)
        return value or None

    def require(self, name: str) -> str:
        """The value; raises NotFound where there is none."""
        value = self.get(name)
        if value is None:
            names = self.names()
            raise NotFound(
                f"secret {name!r}",
                f"there is neither a file of that name nor a variable {name}",
                f"Set it: thumbwheel secrets set {name}.{nearest(name, names)}",
            )
        return value

    def set(self, name: str, value: str) -> None:
        """Store a value, in place of an earlier one; raises InputError, StorageError."""
        check_name(name)
        value = value.strip()
        if not value or not _is_header_value(value):
            raise InputError(
                f"the value of secret {name!r}",
                "it is empty, or holds what no HTTP header can",
                "Give one line of printable ASCII",
            )
        path = self.folder / name
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace(path, value + "\n", mode=0o600)
        except OSError as error:
            raise unwritable(f"secret {name!r}", error) from error

    def remove(self, name: str) -> None:
        """Delete the file of a secret; raises NotFound where there is none."""
        check_name(name)
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
            raise NotFound(
                f"secret {name!r}",
                "there is no file of that name",
                f"Stored: {', '.join(self.names()) or 'none'}",
            ) from None

    def names(self) -> list[str]:
        """The names of the stored secrets; those of the environment are not among them."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name))


def check_name(name: str) -> None:
    """Raise InputError for what is no name of a secret; the text itself is not repeated, for it may
    be the secret."""
    if not NAME.fullmatch(name):
        raise InputError(
            "the name of a secret",
            f"{len(name)} characters are no name of letters, digits, - and _",
            "Choose a name such as OPENAI_API_KEY, and give the value on standard input",
        )


def _is_header_value(value: str) -> bool:
    return value.isprintable() and value.isascii() and len(value) <= LONGEST
