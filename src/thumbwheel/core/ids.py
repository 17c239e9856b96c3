"""Identifiers: time-ordered ones for what happens here, derived ones for what comes from elsewhere,
and slugs for names.

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
from collections.abc import Sequence
from itertools import product
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.core.normal_form import normal_form

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_TRIPLES = ["".join(digits) for digits in product(_DIGITS, repeat=3)]
"""A table, because base64.b32hexencode takes several times as long, and imports and builds make
many ids."""

ABBREVIATED = re.compile(r"[a-z]+_[0-9a-v]{4,}")
"""An abbreviated id: its prefix and at least four of the characters after it."""

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,62}")


def new(prefix: str) -> str:
    """Return a new id that sorts by time: `prefix_` + 9 characters of milliseconds + 13 random
    ones.

    >>> new("run") < (time.sleep(0.002) or new("run"))
    True
    """
    stamp = int(time.time() * 1000).to_bytes(6, "big")
    return f"{prefix}_{_base32hex(stamp + os.urandom(8))}"


def derived(prefix: str, *parts: str) -> str:
    """Return the id derived from `prefix` and `parts`, always the same for the same values.

    >>> derived("trc", "support", "jsonl", "7") == derived("trc", "support", "jsonl", "7")
    True
    """
    # the text of json.dumps, in a third of the time
    named = f"[{', '.join(map(encode_basestring_ascii, parts))}]"
    return f"{prefix}_{_base32hex(hashlib.sha256(named.encode()).digest()[:15])}"


def stands_for(typed: str, row_id: str) -> bool:
    """Return whether `typed` is this id or an abbreviation of it, as in git.

    >>> stands_for("run_0f3k2", "run_0f3k2m8v1"), stands_for("run_", "run_0f3k2m8v1")
    (True, False)
    """
    return typed == row_id or (
        ABBREVIATED.fullmatch(typed) is not None and row_id.startswith(typed)
    )


def require_single(typed: str, matches: Sequence[str]) -> None:
    """Raise InputError if an abbreviated id matches several ids."""
    if len(matches) > 1:
        several = ", ".join(matches[:5])
        raise InputError(
            f"id {typed!r}",
            f"several ids begin with it: {several}",
            "Give more characters",
        )


def fingerprint(value: Any) -> str:
    """Return the sha256 (hex) of a JSON value in canonical form.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def file_hash(path: Path) -> str:
    """Return the sha256 (hex) of a file's content. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a value: keys sorted, no spaces. Raises ValueError for NaN
    and infinity.

    >>> canonical({"b": 1, "a": "é"})
    '{"a":"é","b":1}'
    """
    return _CANONICAL.encode(value)


def slug(value: str, what: str = "agent") -> str:
    """Return `value` if it is a valid name of a `what`. Raises InputError otherwise.

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
    """Return the slug that is derived from a name. Raises InputError for a path, and for a name
    without any character that a slug may have.

    >>> [slug_of(name) for name in ("Support Bot", "support-bot", "Grüße 2.0!", "__A  b__")]
    ['support-bot', 'support-bot', 'grusse-2.0', 'a-b__']
    """
    is_path = name.startswith(".") or any(
        character in "/\\" or not character.isprintable() for character in name
    )
    if is_path or SLUG.fullmatch(name):
        return slug(name, what)
    plain = normal_form("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    dashed = re.sub(r"[^a-z0-9._-]+", "-", plain)
    short = re.sub(r"\.{2,}", ".", dashed).lstrip("._-")[:63].rstrip("-")
    return slug(short, what) if short else slug(name, what)


def _base32hex(raw: bytes) -> str:
    """Return the base32hex text of 14 or 15 bytes."""
    number = int.from_bytes(raw, "big") << 8 * (15 - len(raw))
    high, low, three = number >> 60, number & (1 << 60) - 1, _TRIPLES
    # unrolled, because this is called for every row of an import
    text = (
        f"{three[high >> 45]}{three[high >> 30 & 32767]}"
        f"{three[high >> 15 & 32767]}{three[high & 32767]}"
        f"{three[low >> 45]}{three[low >> 30 & 32767]}"
        f"{three[low >> 15 & 32767]}{three[low & 32767]}"
    )
    return text[: -(-len(raw) * 8 // 5)]
