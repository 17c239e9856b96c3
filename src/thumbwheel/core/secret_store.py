"""Secrets that other people's servers want: stored by name in files that only the owner of the home
can read (or in the database of its cluster, see key_files.py).

A secret is the home's, which its owner alone may name, or an agent's, which owners of that agent
may name too. Rows, settings and records hold the name only. A value is never printed, and a name is
never looked up in the environment: it may have come from a request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core import ids, key_files
from thumbwheel.core.errors import InputError, NotFound, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.core.plugins import nearest

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
FOLDER = "secrets"
"""Of the home."""
OF_AGENT = "@"
"""Between the name and the agent in the name of a file; no name of either has it."""
LONGEST = 16_384
"""Characters of a value."""


@dataclass(frozen=True)
class SecretStore:
    """The secrets of a home, or those of one of its agents: one file for each in `folder`."""

    folder: Path
    agent: str | None = None
    """Whose they are; None for those of the home."""

    def get(self, name: str) -> str | None:
        """Return the value of a secret, or None if it is not stored. Raises InputError for an
        invalid name, StorageError for a value that cannot be used."""
        path = self._path(name)
        fix = f"Set it again: {self._command(name)}"
        try:
            content = key_files.read(path)
        except OSError as error:
            why = f"its file cannot be read: {error.strerror or error}"
            raise StorageError(f"secret {name!r}", why, fix) from error
        if content is None:
            return None
        value = content.decode("utf-8", "replace").strip()
        if value and not _is_header_value(value):
            # written by hand, or by another program
            raise StorageError(
                f"secret {name!r}", "it contains characters that an HTTP header cannot", fix
            )
        return value or None

    def require(self, name: str) -> str:
        """Return the value of a secret. Raises NotFound if it is not stored."""
        value = self.get(name)
        if value is None:
            whose = "the home" if self.agent is None else f"agent {self.agent!r}"
            raise NotFound(
                f"secret {name!r}",
                f"{whose} has no such secret",
                f"Set it: {self._command(name)}.{nearest(name, self.names())}",
            )
        return value

    def set(self, name: str, value: str) -> None:
        """Store a value in place of an earlier one. Raises InputError, StorageError."""
        path = self._path(name)
        value = value.strip()
        if not value or not _is_header_value(value):
            raise InputError(
                f"the value of secret {name!r}",
                "it is empty, or contains characters that an HTTP header cannot",
                "Give one line of printable ASCII",
            )
        try:
            key_files.write(path, value + "\n")
        except OSError as error:
            raise unwritable(f"secret {name!r}", error) from error

    def remove(self, name: str) -> None:
        """Delete a secret. Raises NotFound if it does not exist."""
        if not key_files.remove(self._path(name)):
            raise NotFound(
                f"secret {name!r}",
                "no such secret",
                f"Stored: {', '.join(self.names()) or 'none'}",
            )

    def names(self) -> list[str]:
        """Return the names of the stored secrets, sorted."""
        return sorted(
            secret.name for secret in stored_secrets(self.folder) if secret.agent == self.agent
        )

    def _path(self, name: str) -> Path:
        check_name(name)
        if self.agent is None:
            return self.folder / name
        return self.folder / f"{name}{OF_AGENT}{ids.slug(self.agent)}"

    def _command(self, name: str) -> str:
        """Return the command line that stores a secret of this name."""
        whose = "" if self.agent is None else f" --of-agent {self.agent}"
        return f"thumbwheel secrets set {name}{whose}"


@dataclass(frozen=True)
class StoredSecret:
    """A secret that is stored; `agent` is None for one of the home."""

    name: str
    agent: str | None


def stored_secrets(folder: Path) -> list[StoredSecret]:
    """Return all secrets of a home, sorted by file name."""
    secrets = []
    for file_name in key_files.names(folder):
        name, separator, agent = file_name.partition(OF_AGENT)
        if NAME.fullmatch(name) and bool(separator) == bool(agent):
            secrets.append(StoredSecret(name, agent or None))
    return secrets


def check_name(name: str) -> None:
    """Raise InputError for an invalid name of a secret. The text itself is not repeated, as it may
    be the secret."""
    if not NAME.fullmatch(name):
        raise InputError(
            "the name of a secret",
            f"{len(name)} characters; a name consists of letters, digits, - and _",
            "Choose a name such as OPENAI_API_KEY, and give the value on standard input",
        )


def _is_header_value(value: str) -> bool:
    return value.isprintable() and value.isascii() and len(value) <= LONGEST
