"""A transport that asks only addresses which something may be sent to (core/addresses.py), and
reads no more of a reply than fits into memory."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import cache
from urllib.parse import urlsplit

import httpx2

from thumbwheel.core.addresses import allowed_addresses

MOST_BYTES = 64 << 20
"""Of a reply; the answers and lists of models that are asked for have thousandths of it."""


@cache
def trusted_certificates() -> ssl.SSLContext:
    """Return the context of every transport of this process: to read the certificates takes 30 ms
    of the processor, and a server asks its targets every few seconds."""
    return httpx2.create_ssl_context()


class CheckedTransport(httpx2.HTTPTransport):
    """Resolves the name in the URL once, and connects to an address that was checked, under that
    name. No proxy is used: it would resolve the name anew."""

    def __init__(self, *, private: bool) -> None:
        # the caller bounds how many requests run at once
        super().__init__(verify=trusted_certificates(), limits=httpx2.Limits(max_connections=None))
        self._private = private

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the reply of the first allowed address that accepts a connection. Raises
        RefusedAddress if all are refused, OSError if the name does not resolve, HTTPError."""
        url = request.url
        request.headers["accept-encoding"] = "identity"  # a packed reply could be any size
        addresses = allowed_addresses(str(url), self._private)
        host = urlsplit(str(url)).hostname
        request.extensions = {**request.extensions, "sni_hostname": host}
        try:
            for address in addresses:
                request.url = url.copy_with(host=address)
                try:
                    return _bounded(super().handle_request(request))
                except httpx2.ConnectError:
                    if address == addresses[-1]:
                        raise
        finally:
            request.url = url
        raise AssertionError  # there is at least one address


def _bounded(response: httpx2.Response) -> httpx2.Response:
    """Return the response, whose body ends with an error beyond MOST_BYTES. Raises HTTPError if it
    is packed, although the request did not ask for it."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        response.close()
        raise httpx2.RemoteProtocolError(f"the reply is packed ({encoding[:40]})")
    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)  # noqa: S101 - narrows the type
    response.stream = _BoundedStream(stream)
    return response


class _BoundedStream(httpx2.SyncByteStream):
    """The pieces of a body, up to MOST_BYTES."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > MOST_BYTES:
                raise httpx2.ReadError(f"the reply has more than {MOST_BYTES:,} bytes")
            yield piece

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
