"""JSON as columns of tables and of files hold it. Needs no database."""

from __future__ import annotations

import json
from typing import Any

import pydantic_core


def parsed(stored: Any) -> Any:
    """Return the value of a JSON column. SQLite stores a lone number as a number, all else as
    text."""
    return read_json(stored) if isinstance(stored, str) else stored


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, read by pydantic's parser; json takes several times as
    long."""
    try:
        return pydantic_core.from_json(text)
    except ValueError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        return json.loads(text)
