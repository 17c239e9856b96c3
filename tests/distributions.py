"""The distributions of this repository: where their source and their tests are, and the graph of
all their imports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import grimp

import thumbwheel

ROOT = Path(__file__).parents[1]
PACKAGE = thumbwheel.__name__
COMPAT = Path("packages/thumbwheel-compat")
"""The distribution of the plugins, whose modules are in the same package from another folder."""
SOURCES = ("src", f"{COMPAT}/src")
"""Folders with source, which are on the path of Python."""
TESTS = ("tests", f"{COMPAT}/tests")


@cache
def import_graph() -> grimp.ImportGraph:
    """Build the graph of the imports. grimp sees the folders of all distributions, because the
    package is imported."""
    return grimp.build_graph(PACKAGE)


def source_files() -> list[Path]:
    """Return all Python files of the source."""
    return sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))


def module_of(file: str) -> str | None:
    """Return the module of a Python file in one of the folders with source, else None.

    >>> module_of("src/thumbwheel/stats/__init__.py")
    'thumbwheel.stats'
    >>> module_of("tests/touched.py") is None
    True
    """
    for folder in SOURCES:
        if file.startswith(f"{folder}/{PACKAGE}/") and file.endswith(".py"):
            parts = Path(file).relative_to(folder).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None
