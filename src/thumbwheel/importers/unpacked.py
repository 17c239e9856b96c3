"""How much a packed file or request may unpack to.

A few bytes of gzip, or of a dictionary of Parquet, can stand for a text that fills a disk. What is
read from a file or request is stored, so it is bounded by its packed size.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

from thumbwheel.importers.regular_file import file_error

TIMES, AT_LEAST = 100, 256 * 2**20
"""A file may unpack to so many times its size, and to so many bytes in any case. Texts of people
are packed to a fifth; a system prompt in each row to a fiftieth."""
AT_LEAST_OF_REQUEST = 64 * 2**10
"""Bytes to which any request may unpack: a sender can send many of them."""


def most_of_request(size: int) -> int:
    """Return to how many bytes a request of this packed size may unpack."""
    return max(AT_LEAST_OF_REQUEST, TIMES * size)


class UnpackedBytes:
    """Counts what comes out of one file."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._most = max(AT_LEAST, TIMES * size)
        self._count = 0

    def add(self, number: int) -> None:
        """Count `number` bytes. Raises InputError if there are more than the file may have."""
        self._count += number
        if self._count > self._most:
            raise file_error(
                self._path,
                f"it unpacks to more than the {self._most:,} bytes that a file of its size may",
                "What was read before is kept; if it is honest, give it as plain JSON lines",
            )


class BoundedGzip(io.RawIOBase):
    """The unpacked bytes of a gzip archive, which end with InputError at the bound."""

    def __init__(self, raw: Any, unpacked: UnpackedBytes) -> None:
        self._archive = gzip.GzipFile(fileobj=raw)
        self._unpacked = unpacked

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer and return the number of bytes."""
        content = self._archive.read1(len(buffer))
        self._unpacked.add(len(content))
        buffer[: len(content)] = content
        return len(content)
