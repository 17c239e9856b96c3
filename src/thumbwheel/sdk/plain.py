"""Values of somebody's app as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 50
"""Objects and lists nested more deeply become text."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON values: unknown objects, NaN and values nested too deeply become text,
    lone surrogates and NUL are replaced."""
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else text_of(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth < DEEPEST and isinstance(value, Mapping):
        return {plain(str(key)): plain(part, depth + 1) for key, part in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [plain(part, depth + 1) for part in value]
    return plain(text_of(value))


def text_of(value: Any) -> str:
    """Return `value` as text; an object that cannot be shown becomes the name of its class."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object of the user's app that cannot be shown must not end its run
        return f"<{type(value).__name__}>"
