"""Where a browser is logged in."""

from __future__ import annotations

from thumbwheel.access.gate import AccessGate

ENTRANCE = "/login"
"""Where a browser logs in; with `?code=`, it is logged in, once."""


def login_url(gate: AccessGate, server_url: str) -> str:
    """Return where one browser on this machine is logged in, within ten minutes; where it can log
    in, on a server that others reach."""
    query = "" if gate.token is None else f"?code={gate.codes.make()}"
    return f"{server_url}{ENTRANCE}{query}"
