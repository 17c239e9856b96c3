"""Thumbwheel: turns the feedback that people give an LLM app or agent into a better model, on their
own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.sdk import TraceCollector, feedback, flush, hook_into_agent, trace
from thumbwheel.sdk.version import __version__

if TYPE_CHECKING:
    from thumbwheel.app.python_api import OpenHome
    from thumbwheel.app.remote_home import RemoteHome

__all__ = [
    "TraceCollector",
    "__version__",
    "connect",
    "feedback",
    "flush",
    "hook_into_agent",
    "open",
    "trace",
]


def connect(url: str, *, key: str | None = None) -> RemoteHome:
    """Connect with the home of a server (`thumbwheel serve`), for a notebook or script of another
    machine. The methods are those of `open`.

    Args:
        url: The address of the server, such as https://models.example.com.
        key: A key of the server (`thumbwheel keys add`); THUMBWHEEL_KEY where it is None, and for a
            server of this machine the token of its home.

    Raises:
        InputError: `url` is not the address of a server.
    """
    import os

    from thumbwheel.app.remote_home import RemoteHome

    return RemoteHome(url, key or os.environ.get("THUMBWHEEL_KEY"))


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
