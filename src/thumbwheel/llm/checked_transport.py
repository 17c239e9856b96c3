"""A transport that asks only addresses which something may be sent to (core/addresses.py)."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx2

from thumbwheel.core.addresses import allowed_addresses


class CheckedTransport(httpx2.HTTPTransport):
    """Resolves the name in the URL once, and connects to an address that was checked, under that
    name. No proxy is used: it would resolve the name anew."""

    def __init__(self, *, private: bool) -> None:
        # the caller bounds how many requests run at once
        super().__init__(limits=httpx2.Limits(max_connections=None))
        self._private = private

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The reply of the first allowed address that takes a connection; raises RefusedAddress
        where all are refused, OSError where the name does not resolve, HTTPError."""
        url = request.url
        addresses = allowed_addresses(str(url), self._private)
        host = urlsplit(str(url)).hostname
        request.extensions = {**request.extensions, "sni_hostname": host}
        try:
            for address in addresses:
                request.url = url.copy_with(host=address)
                try:
                    return super().handle_request(request)
                except httpx2.ConnectError:
                    if address == addresses[-1]:
                        raise
        finally:
            request.url = url
        raise AssertionError  # there is at least one address
