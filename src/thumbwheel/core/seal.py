"""The home's secret, and keyed hashes made with it, by which erased names are recognised in this
home only.

A plain hash of an order number or a mail address can be guessed; a keyed one cannot without the
key, which never leaves the home.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core.errors import StorageError
from thumbwheel.sdk.disk import sync

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
    """Return the seal in `path`, or None if the file does not exist. Raises StorageError for a
    damaged file."""
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(secret) != SIZE:
        raise StorageError(
            f"secret {str(path)!r}",
            f"it has {len(secret)} bytes, not {SIZE}",
            "Restore it from a backup",
        )
    return Seal(secret)


def make_seal(path: Path) -> Seal:
    """Return the seal in `path`; create the file if it is missing: complete, synced, readable by
    its owner only."""
    seal = read_seal(path)
    if seal is not None:
        return seal
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, os.urandom(SIZE))
        os.fsync(handle)
    finally:
        os.close(handle)
    try:
        os.link(temporary, path)  # fails where another process was first, whose secret then counts
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    sync(path.parent)
    return Seal(path.read_bytes())
