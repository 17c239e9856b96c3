"""Identifiers: time-ordered for what happens here, derived for what comes from elsewhere, slugs for
names.

A derived id is a hash of (source, external id), so importing the same thing twice meets the same
row. No user string ever becomes part of a path; a slug is the only name that may be typed and is
checked here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import unicodedata
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_TRIPLES = [one + two + three for one in _DIGITS for two in _DIGITS for three in _DIGITS]
"""base64.b32hexencode takes several times as long, and imports and builds do it a lot."""

ABBREVIATED = re.compile(r"[a-z]+_[0-9a-v]{4,}")
"""What may stand for a longer id: its kind and at least four of the characters after it."""

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,62}")


def new(prefix: str) -> str:
    """A fresh id that sorts by time: `prefix_` + 9 characters of milliseconds + 13 random ones.

    >>> new("run") < (time.sleep(0.002) or new("run"))
    True
    """
    stamp = int(time.time() * 1000).to_bytes(6, "big")
    return f"{prefix}_{_base32hex(stamp + os.urandom(8))}"


def derived(prefix: str, *parts: str) -> str:
    """The id that (prefix, parts) always has.

    >>> derived("trc", "support", "jsonl", "7") == derived("trc", "support", "jsonl", "7")
    True
    """
    # as json.dumps has it, in a third of the time
    named = f"[{', '.join(map(encode_basestring_ascii, parts))}]"
    return f"{prefix}_{_base32hex(hashlib.sha256(named.encode()).digest()[:15])}"


def stands_for(typed: str, row_id: str) -> bool:
    """Whether `typed` is this id or, as in git, a beginning of it.

    >>> stands_for("run_0f3k2", "run_0f3k2m8v1"), stands_for("run_", "run_0f3k2m8v1")
    (True, False)
    """
    return typed == row_id or (
        ABBREVIATED.fullmatch(typed) is not None and row_id.startswith(typed)
    )


def require_single(typed: str, matches: Sequence[str]) -> None:
    """Raise InputError where an abbreviated id stands for several."""
    if len(matches) > 1:
        several = ", ".join(matches[:5])
        raise InputError(
            f"id {typed!r}",
            f"it is the beginning of several: {several}",
            "Give more of its characters",
        )


def fingerprint(value: Any) -> str:
    """sha256 (hex) of a JSON value in canonical form.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def file_hash(path: Path) -> str:
    """sha256 (hex) of what a file holds; raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces; raises ValueError for NaN and infinity.

    >>> canonical({"b": 1, "a": "é"})
    '{"a":"é","b":1}'
    """
    return _CANONICAL.encode(value)


def slug(value: str, what: str = "agent") -> str:
    """`value` when it may name an `what`; raises InputError otherwise.

    >>> slug("support-bot")
    'support-bot'
    """
    if not SLUG.fullmatch(value):
        raise InputError(
            f"{what} name {value!r}",
            "a name has 1 to 63 of a-z, 0-9, '-', '_' and single dots, and starts with a letter "
            "or digit",
            "Choose another name, for example 'support-bot'",
        )
    return value


def slug_of(name: str, what: str = "agent") -> str:
    """The slug that a name leads to; raises InputError for what looks like a path, and where
    nothing of it can stand in a slug.

    >>> [slug_of(name) for name in ("Support Bot", "support-bot", "Grüße 2.0!", "__A  b__")]
    ['support-bot', 'support-bot', 'grusse-2.0', 'a-b__']
    """
    is_path = name.startswith(".") or any(
        character in "/\\" or not character.isprintable() for character in name
    )
    if is_path or SLUG.fullmatch(name):
        return slug(name, what)
    plain = unicodedata.normalize("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    dashed = re.sub(r"[^a-z0-9._-]+", "-", plain)
    short = re.sub(r"\.{2,}", ".", dashed).lstrip("._-")[:63].rstrip("-")
    return slug(short, what) if short else slug(name, what)


def _base32hex(raw: bytes) -> str:
    """Of 14 or 15 bytes."""
    all_ = int.from_bytes(raw, "big") << 8 * (15 - len(raw))
    high, low, three = all_ >> 60, all_ & (1 << 60) - 1, _TRIPLES
    text = (
        f"{three[high >> 45]}{three[high >> 30 & 32767]}{three[high >> 15 & 32767]}{three[high & 32767]}"
        f"{three[low >> 45]}{three[low >> 30 & 32767]}{three[low >> 15 & 32767]}{three[low & 32767]}"
    )
    return text[: -(-len(raw) * 8 // 5)]
