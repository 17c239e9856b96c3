"""Thumbwheel: turns the feedback that people give an LLM app or agent into a better model, on their
own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.sdk import TraceCollector, feedback, flush, hook_into_agent, trace
from thumbwheel.sdk.version import __version__

if TYPE_CHECKING:
    from thumbwheel.app.python_api import OpenHome

__all__ = [
    "TraceCollector",
    "__version__",
    "feedback",
    "flush",
    "hook_into_agent",
    "open",
    "trace",
]


def open(home: str | Path | None = None, *, config: str | Path | None = None) -> OpenHome:
    """Open a home for a notebook or script.

    Args:
        home: The folder; THUMBWHEEL_HOME, or the one of this user, where it is None. It is created
            where it is missing.
        config: A file of settings in place of the home's thumbwheel.yaml.

    Raises:
        ConfigError: A setting is wrong or unknown.
    """
    from thumbwheel.app.python_api import OpenHome

    return OpenHome(home, config)
