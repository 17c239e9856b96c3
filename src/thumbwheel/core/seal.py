"""The home's secret, and keyed hashes made with it, by which erased names are recognised in this
home only.

A plain hash of an order number or a mail address can be guessed; a keyed one cannot without the
key, which never leaves the home.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core import key_files
from thumbwheel.core.errors import StorageError

SIZE = 32
"""Bytes of the secret."""


@dataclass(frozen=True)
class Seal:
    """Keyed hashes of names."""

    secret: bytes

    def of(self, kind: str, name: str) -> str:
        """Return the HMAC-SHA-256 (hex) of a name and its kind."""
        message = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()


def read_seal(path: Path) -> Seal | None:
    """Return the seal in `path`, or None if there is none. Raises StorageError for a damaged
    one."""
    secret = key_files.read(path)
    return None if secret is None else _seal(path, secret)


def make_seal(path: Path) -> Seal:
    """Return the seal in `path`; create it if there is none: complete, synced, readable by its
    owner only."""
    seal = read_seal(path)
    if seal is not None:
        return seal
    # where another process was first, its secret counts
    return _seal(path, key_files.create(path, os.urandom(SIZE)))


def _seal(path: Path, secret: bytes) -> Seal:
    if len(secret) != SIZE:
        raise StorageError(
            f"secret {str(path)!r}",
            f"it has {len(secret)} bytes, not {SIZE}",
            "Restore it from a backup",
        )
    return Seal(secret)
