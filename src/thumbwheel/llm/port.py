"""Ports of this machine on which servers of ours listen: loopback only."""

from __future__ import annotations

import socket
from typing import Literal, overload

HOST = "127.0.0.1"


@overload
def free_port(port: Literal[0] = 0) -> int: ...
@overload
def free_port(port: int) -> int | None: ...
def free_port(port: int = 0) -> int | None:
    """Return `port` if nothing listens there, else None; for 0, any free port."""
    with socket.socket() as probe:
        if port:  # one that a server has just left is free, though its connections linger
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
