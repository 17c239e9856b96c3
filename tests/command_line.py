"""What the fixture `command_line` gives: arguments in; exit code, standard output and standard
error out."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
