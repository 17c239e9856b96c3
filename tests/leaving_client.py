"""A client that sends a request and leaves before it has an answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit


@contextmanager
def asked(url: str, body: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Iterator[None]:
    """Inside, the request is sent; at the end the client leaves. No time limit makes it leave, so
    that on a slow machine too it is the server's turn first."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    fields = {
        "host": address.netloc,
        "content-type": "application/json",
        "content-length": str(len(content)),
        **headers,
    }
    lines = [f"POST {address.path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        yield
