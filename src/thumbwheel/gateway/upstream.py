"""The connections to upstreams: made to checked addresses only, kept open between calls; no
redirect is followed, and no byte of a body is changed, but for our own key where a server repeats
it in a refusal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from thumbwheel.access.credentials import KEY_HEADERS
from thumbwheel.core.addresses import refusal
from thumbwheel.core.packed_body import BadPacking, TooLarge, unpacked
from thumbwheel.gateway.routing import Upstream
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.models.types import Family

if TYPE_CHECKING:
    from yarl import URL

KEEP_ALIVE: Mapping[str, float] = {"http": 4.0, "https": 30.0}
"""Seconds that an unused connection stays open: less than at the servers (uvicorn and llama-server
wait 5 seconds, what stands before servers on the internet a minute and more). A call on a
connection that the server is about to end would be lost, and it cannot be sent again: nobody knows
whether the model has it."""
NAMES_LAST = 60
"""Seconds that an address of a name is remembered."""
LONGEST_HEADER = 64 << 10
HeaderList = list[tuple[str, str]]
OURS = "x-thumbwheel-"
"""Headers between an app and the gateway."""
VIA = "via"
"""Header in which every gateway on the way of a call adds its name."""
HOP_BY_HOP = frozenset(
    [
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers of one connection, not of the message."""
DROPPED = frozenset(["host", "content-length", "content-encoding", "cookie"])
"""Headers that are made anew, or are none of the upstream's business."""
CREDENTIALS = frozenset(["authorization", *KEY_HEADERS])
OF_BROWSERS = frozenset(
    [
        "alt-svc",
        "clear-site-data",
        "content-location",
        "content-security-policy",
        "content-security-policy-report-only",
        "link",
        "location",
        "nel",
        "refresh",
        "report-to",
        "reporting-endpoints",
        "service-worker-allowed",
        "set-cookie",
        "set-cookie2",
        "set-login",
        "sourcemap",
        "strict-transport-security",
        "www-authenticate",
    ]
)
"""Headers of replies by which a server speaks to a browser about its own address, which here is
the gateway's: an upstream has no say over its cookies, its encryption or where a page goes next."""
OF_BROWSERS_BEGIN = ("access-control-", "cross-origin-", "permissions-policy", "sec-")
"""What further ones begin with."""
READABLE = frozenset(["gzip", "x-gzip", "deflate", "identity"])
"""Encodings that a recorded reply may have."""
SKIPPED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add."""


MOST_OF_ERROR = 4 << 20
"""Bytes of an answer that refuses a call."""


class UpstreamError(Exception):
    """No reply came: `status` is that of the answer to the client, the text why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class RefusedHost(OSError):
    """A host name that leads to an address which nothing may be sent to."""


class CheckedResolver(AbstractResolver):
    """Resolves names to those of their addresses that are not refused. The connection is made to
    what this returns, so that a name which resolves to something else a moment later gains
    nothing."""

    def __init__(self, names: AbstractResolver, private: bool) -> None:
        self._names, self._private = names, private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the allowed addresses of `host`. Raises RefusedAddress if all of them are
        refused."""
        results = await self._names.resolve(host, port, family)
        allowed, reasons = [], []
        for result in results:
            reason = refusal(result["host"], self._private)
            if reason is None:
                allowed.append(result)
            else:
                reasons.append(reason)
        if not allowed:
            raise RefusedHost(f"{host} leads to {'; '.join(reasons) or 'no address'}")
        return allowed

    async def close(self) -> None:
        """Close the resolver of names."""
        await self._names.close()


class Upstreams:
    """Sends calls to upstreams. Opened and used on one event loop; close it there."""

    def __init__(self, config: GatewayConfig, names: AbstractResolver | None = None) -> None:
        self._config, self._names = config, names
        self._sessions: dict[tuple[str, bool], aiohttp.ClientSession] = {}
        self._checked: dict[tuple[str, bool], URL] = {}

    async def post(
        self, upstream: Upstream, path: str, headers: HeaderList, body: bytes
    ) -> aiohttp.ClientResponse:
        """Send `body` once, without retries, and return the reply as soon as its headers arrived.
        `path` is the client's, with its query. Raises UpstreamError."""
        url = self._url(upstream, path)
        session = self._session(url.scheme, upstream.private)
        try:
            reply = await session.post(
                url, data=body, headers=headers, allow_redirects=False, skip_auto_headers=SKIPPED
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _upstream_error(error) from None
        if 300 <= reply.status < 400:
            reply.close()
            raise UpstreamError(
                502, f"it redirects (HTTP {reply.status}), which is not followed: correct its URL"
            )
        if reply.status < 200:
            reply.close()
            raise UpstreamError(502, f"it changes the protocol (HTTP {reply.status})")
        return reply

    async def close(self) -> None:
        """Close the connections."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _url(self, upstream: Upstream, path: str) -> URL:
        """Return the URL for a call to the client's `path`. Raises UpstreamError if the URL holds
        an address that is refused."""
        base = upstream.url
        is_below_base = path.startswith("/v1/")
        target = base + path[3:] if is_below_base else base.removesuffix("/v1") + path
        url = self._checked.get((target, upstream.private))
        if url is None:
            from yarl import URL  # aiohttp's own type, in which a text would be quoted anew

            _check_literal(urlsplit(base).hostname or "", upstream.private)
            url = URL(target, encoded=True)
            if len(self._checked) < 1000 and "?" not in path:
                self._checked[target, upstream.private] = url
        return url

    def _session(self, scheme: str, private: bool) -> aiohttp.ClientSession:
        session = self._sessions.get((scheme, private))
        if session is None:
            names = self._names or aiohttp.ThreadedResolver()
            connector = aiohttp.TCPConnector(
                resolver=CheckedResolver(names, private),
                limit=0,
                keepalive_timeout=KEEP_ALIVE[scheme],
                ttl_dns_cache=NAMES_LAST,
            )
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=self._config.connect, sock_read=self._config.silence
            )
            session = self._sessions[scheme, private] = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=LONGEST_HEADER,
                max_field_size=LONGEST_HEADER,
            )
        return session


def _check_literal(host: str, private: bool) -> None:
    """Raise UpstreamError for a refused address in a URL: it is not resolved, so it is checked
    here."""
    try:
        reason = refusal(host, private)
    except ValueError:
        return  # a name
    if reason is not None:
        raise UpstreamError(502, f"its address is refused: {reason}")


def _upstream_error(error: BaseException) -> UpstreamError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RefusedHost):
            return UpstreamError(502, f"its address is refused: {cause}")
        cause = cause.__cause__
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return UpstreamError(504, "it did not answer in time")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return UpstreamError(502, "its host name does not resolve")
    if isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or type(error.os_error).__name__
        return UpstreamError(502, f"nothing answers there ({why})")
    return UpstreamError(502, f"its reply is no HTTP, or it hung up ({type(error).__name__})")


def request_headers(
    client: Iterable[tuple[bytes, bytes]],
    upstream: Upstream,
    family: Family,
    keeps_key: bool,
    name: str,
) -> HeaderList:
    """Return the client's headers for the upstream: without hop-by-hop headers and the gateway's
    own, and with the upstream's credentials if it has any. `family` is the called API's. Without
    `keeps_key` the client's credentials are not passed on; its cookies never are. `name` names this
    gateway."""
    replaces = upstream.secret is not None or not keeps_key
    pairs = [(raw_name.decode("latin-1"), value) for raw_name, value in client]
    of_connection: set[str] = set()
    for header_name, value_bytes in pairs:
        if header_name == "connection":
            of_connection |= {part.strip().lower() for part in _decoded(value_bytes).split(",")}
    headers: HeaderList = []
    for header_name, value_bytes in pairs:
        if header_name in HOP_BY_HOP or header_name in DROPPED or header_name in of_connection:
            continue
        if header_name.startswith(OURS) or (replaces and header_name in CREDENTIALS):
            continue
        value = _decoded(value_bytes)
        if header_name in CREDENTIALS:  # of several the last is the one that was looked at
            headers = [header for header in headers if header[0] != header_name]
        if header_name == "accept-encoding":
            value = readable_encodings(value)
        headers.append((header_name, value))
    headers.append((VIA, f"1.1 {name}"))
    if upstream.secret is not None:
        if family == "anthropic" and upstream.family == "anthropic":
            headers.append(("x-api-key", upstream.secret))
        else:
            headers.append(("authorization", f"Bearer {upstream.secret}"))
    return headers


def readable_encodings(accepted: str) -> str:
    """Return the accepted encodings in which a recorded reply can be read.

    >>> readable_encodings("gzip, deflate, br;q=0.9, zstd")
    'gzip, deflate'
    >>> readable_encodings("br")
    'identity'
    """
    readable = []
    for part in accepted.split(","):
        encoding = part.partition(";")[0].strip().lower()
        if encoding in READABLE:
            readable.append(part.strip())
    return ", ".join(readable) or "identity"


def reply_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the upstream's headers for the client: without hop-by-hop headers, the gateway's own,
    and headers that would speak for the gateway's own address."""
    headers = []
    for name, value in raw:
        lower = name.lower()
        text = lower.decode("latin-1")
        if text in HOP_BY_HOP or text in OF_BROWSERS:
            continue
        if not text.startswith((OURS, *OF_BROWSERS_BEGIN)):
            headers.append((lower, value))
    return headers


@dataclass(frozen=True)
class Reply:
    """A reply as its client gets it."""

    headers: list[tuple[bytes, bytes]]
    pieces: AsyncIterator[bytes]


async def shown_reply(reply: aiohttp.ClientResponse, secret: str | None) -> Reply:
    """Return the reply without the credentials that the gateway presented. Servers repeat them
    where they refuse them, and who may call a model, or read the record, may not know them. In
    other replies they become stars as the pieces come, unless the reply is packed. Raises
    UpstreamError for a refusal without an end."""
    headers = reply_headers(reply.raw_headers)
    if not secret:
        return Reply(headers, reply.content.iter_any())
    key = secret.encode()
    headers = [header for header in headers if key not in header[1]]
    if reply.status < 400:
        return Reply(headers, without_key(reply.content.iter_any(), key))
    pieces: list[bytes] = []
    size = 0
    async for piece in reply.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MOST_OF_ERROR:
            raise UpstreamError(502, f"it refuses in more than {MOST_OF_ERROR:,} bytes")
    body = b"".join(pieces)
    try:
        is_packed = reply.headers.get("content-encoding", "identity").lower() != "identity"
        text = unpacked(body, MOST_OF_ERROR) if is_packed and body else body
    except (BadPacking, TooLarge):
        text = body
    if key in text:
        body = text.replace(key, b"***")
        of_old = (b"content-length", b"content-encoding")
        headers = [header for header in headers if header[0] not in of_old]
        headers.append((b"content-length", str(len(body)).encode()))
    return Reply(headers, _one_piece(body))


async def without_key(pieces: AsyncIterator[bytes], key: bytes) -> AsyncIterator[bytes]:
    """Yield the pieces with a star for each byte of `key`. The end of a piece waits for the next
    one only where the key may have begun in it."""
    waiting = b""
    async for piece in pieces:
        text = (waiting + piece).replace(key, b"*" * len(key))
        begun = _begun(text, key)
        text, waiting = text[: len(text) - begun], text[len(text) - begun :]
        if text:
            yield text
    if waiting:
        yield waiting


def _begun(text: bytes, key: bytes) -> int:
    """Return how many bytes at the end of `text` are the longest beginning of `key`."""
    start = text.find(key[0], max(0, len(text) - len(key) + 1))
    while start >= 0:
        if key.startswith(text[start:]):
            return len(text) - start
        start = text.find(key[0], start + 1)
    return 0


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _decoded(value: bytes) -> str:
    """Decode a header's text so that aiohttp, which encodes it as UTF-8, sends the same bytes if
    they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
