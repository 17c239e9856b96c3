"""Thumbwheel: turns the feedback that people give an LLM app or agent into a better model, on their
own machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.sdk import feedback, flush, trace
from thumbwheel.sdk.version import __version__

if TYPE_CHECKING:
    from thumbwheel.app.python_api import OpenHome
    from thumbwheel.app.remote_home import RemoteHome

__all__ = [
    "__version__",
    "connect",
    "feedback",
    "flush",
    "open",
    "trace",
]


def _add_compat() -> None:
    """Find `thumbwheel.compat`, which is a distribution of its own. pip installs it into the folder
    of this package; an editable installation keeps it in another folder of the same name."""
    for folder in sys.path:
        portion = Path(folder, "thumbwheel")
        if (portion / "compat" / "__init__.py").exists():
            if str(portion) not in __path__:
                __path__.append(str(portion))
            return


_add_compat()


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
