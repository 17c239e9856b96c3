"""Where a browser is logged in."""

from __future__ import annotations

from thumbwheel.access.gate import AccessGate

ENTRANCE = "/login"
"""Where a browser logs in; with `?token=`, it is logged in."""


def login_url(gate: AccessGate, server_url: str) -> str:
    """Where a browser on this machine is logged in; where it can log in, on a server that others
    reach."""
    query = "" if gate.token is None else f"?token={gate.token.value}"
    return f"{server_url}{ENTRANCE}{query}"
