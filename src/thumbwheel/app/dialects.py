"""Dialects of the server: routes by the paths and in the spelling of another system, so that its
clients need nothing but a URL and a key.

A dialect is a function that adds its routes to a router. Each route names its need
(`access/needs.py`), as every other one; the verbs behind it are ours. They are off until the
settings or `thumbwheel serve --dialect` name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from thumbwheel.core.plugins import VariantTable

if TYPE_CHECKING:
    from fastapi import APIRouter

DIALECTS: VariantTable[Callable[[APIRouter], None]] = VariantTable(
    "dialect", "thumbwheel.dialects", {}
)


def add_dialects(routes: APIRouter, names: Iterable[str]) -> None:
    """Add the routes of the dialects with these names. Raises NotFound for an unknown one."""
    for name in names:
        add_routes = DIALECTS.get(name)
        add_routes(routes)
