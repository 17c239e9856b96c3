"""Cells of CSV files that people open in a spreadsheet."""

from __future__ import annotations

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet would compute instead of showing."""


def cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet takes for a formula.

    >>> cell("=1+1")
    "'=1+1"
    >>> cell(["late", "rude"])
    'late; rude'
    """
    if isinstance(value, list | tuple):
        value = "; ".join(str(part) for part in value)
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value
