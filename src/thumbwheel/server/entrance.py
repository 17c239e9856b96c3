"""Where a browser is logged in."""

from __future__ import annotations

from thumbwheel.access.gate import AccessGate

ENTRANCE = "/login"
"""Where a browser logs in; with `?code=`, it is logged in, once."""


def login_url(gate: AccessGate, server_url: str) -> str:
    """Return the URL that logs in one browser on this machine, valid for ten minutes; on a server
    that others can reach, the URL of the login page."""
    query = "" if gate.token is None else f"?code={gate.codes.make()}"
    return f"{server_url}{ENTRANCE}{query}"
