"""Paths of a home's files in rows.

The home has another path on each of its hosts, and on a machine to which it moved. So a row names
a file of the home from the home on, as `$THUMBWHEEL_HOME/exports/...`, and whoever reads the row
puts the path in. A path outside the home stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HOME = "$THUMBWHEEL_HOME"
"""Stands for the path of the home."""


def portable(value: Any, home: Path) -> Any:
    """Return a JSON value without the path of the home.

    >>> portable(["in /srv/home/runs/r1", "/srv/homely"], Path("/srv/home"))
    ['in $THUMBWHEEL_HOME/runs/r1', '/srv/homely']
    """
    path = re.compile(re.escape(str(home)) + r"(?![\w.-])")
    return _each_text(value, lambda text: path.sub(lambda _: HOME, text))


def located(value: Any, home: Path) -> Any:
    """Return a JSON value with the path of the home on this host.

    >>> located({"path": "$THUMBWHEEL_HOME/exports/v1"}, Path("/srv/home"))
    {'path': '/srv/home/exports/v1'}
    """
    return _each_text(value, lambda text: text.replace(HOME, str(home)))


def may_be(path: str, folder: str) -> bool:
    """Return whether the path of a row leads to this folder, here or on another host.

    >>> may_be("$THUMBWHEEL_HOME/exports/v1", "/srv/home/exports/v1")
    True
    >>> may_be("/srv/v1", "/srv/home/exports/v1")
    False
    """
    if path.startswith(f"{HOME}/"):
        return folder.endswith(path.removeprefix(HOME))
    return str(Path(path).resolve()) == folder


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {name: _each_text(part, change) for name, part in value.items()}
        case list() | tuple():
            return [_each_text(part, change) for part in value]
        case _:
            return value
