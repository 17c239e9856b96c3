"""Unicode's normal forms in a time that grows as the text does."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

_PIECE = re.compile(r"[\x00-\x7f]*+[^\x00-\x7f]{0,256}")
"""Plain characters and what follows them. Nothing composes with a plain character behind it."""


def normal_form(form: Literal["NFKC", "NFKD"], text: str) -> str:
    """Return `text` in a normal form, where no more than 256 characters depend on one another.

    Python sorts the marks of one letter in a time that grows as the square of their number: a
    letter with 30,000 of them takes a minute, in which no other thread runs.

    >>> normal_form("NFKC", "e" + chr(0x301) + "①")
    'é1'
    """
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, piece) for piece in _PIECE.findall(text))
