"""Packages whose names are imported when they are first used.

The package of a system holds what every process may load (import sources, reward functions) and
what few need (trainers, exporters). Importing the package must load neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, *modules: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package`: a name of its `__all__` comes from the first of
    `modules` that has it."""

    def find(name: str) -> Any:
        if name in sys.modules[package].__all__:
            for module in modules:
                loaded = import_module(module, package)
                if hasattr(loaded, name):
                    return getattr(loaded, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
