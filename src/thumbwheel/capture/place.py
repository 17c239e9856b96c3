"""Where an import reads: a path, or the address of a database, which goes the way of a path but keeps its text and hides its password.

Lives here: telling the two apart. Not here: what is read there (`sources/`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PosixPath

SCHEME = re.compile(r"[a-z][a-z0-9+]*://")
PASSWORD = re.compile(r"(?<=:)[^/@:]+(?=@)|(?<=password=)[^&]*")


class Address(PosixPath):
    """A URL in the place of a path: no such file exists; `url` is the text as given, str() shows it without a password."""

    def __init__(self, url: str) -> None:
        if sys.version_info >= (3, 12):
            super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return PASSWORD.sub("***", self.url)


def place_of(text: str) -> Path:
    """The path or the address that `text` is.

    >>> str(place_of("postgresql://app:secret@localhost/desk"))
    'postgresql://app:***@localhost/desk'
    """
    return Address(text) if SCHEME.match(text) else Path(text)
