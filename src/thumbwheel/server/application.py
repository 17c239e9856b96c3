"""The application that `thumbwheel serve` runs: calls to models go to the gateway, before anything
else looks at them; the rest is FastAPI's: health, metrics, and the routers that the stages'
`routes.py` make (growing_api.py).

Every request is counted, and said in the log where that is wanted. Once the server is to leave,
every answer ends its connection, so that a client's next request reaches its successor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Response

from thumbwheel.access.credentials import own_cookies
from thumbwheel.access.needs import public
from thumbwheel.access.protocol import DOCUMENT
from thumbwheel.core.addresses import LOOPBACK
from thumbwheel.gateway.application import EXCHANGE, Exchange, Gateway, Scope, Send
from thumbwheel.gateway.request import Message, Receive, split_path
from thumbwheel.server.api.links import add_links
from thumbwheel.server.api.problem import CLIENT_LEFT, add_handlers, documented
from thumbwheel.server.dialect_origins import DialectOrigins
from thumbwheel.server.health import ServerHealth
from thumbwheel.server.metrics import Metrics
from thumbwheel.server.request_log import log_request

EVERYWHERE = ("0.0.0.0", "::")

HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Of every answer that says nothing else: no browser guesses what it is, and nobody keeps it."""
METHODS = frozenset(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
OTHER = "other"
"""Name of a method or a route that is none of ours."""


@dataclass(frozen=True)
class Application:
    """All of it as one ASGI application."""

    gateway: Gateway
    pages: DialectOrigins
    health: ServerHealth
    metrics: Metrics
    hosts: frozenset[str] | None
    """Host names under which it may be asked; None for all."""
    logs_requests: bool = False
    proxies: tuple[str, ...] = ()
    """Addresses that may say for whom they ask."""

    @property
    def api(self) -> FastAPI:
        """What answers everything but calls to models, with all its routes."""
        return self.pages.app.whole()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or take part in the server's start and stop (ASGI)."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it."""
        began = time.perf_counter()
        leaving = self.health.leaving
        status = 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                headers += [header for header in HEADERS if header[0] not in present]
                if leaving.is_set():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        is_call = self.gateway.handles(scope["method"], scope["path"])
        # FastAPI parses the cookies of every request, whoever sends it
        scope["headers"] = [_without_foreign_cookies(header) for header in scope["headers"]]
        try:
            if not self._is_allowed(scope):
                await _send_forbidden(watched_send)
            elif is_call:
                await self.gateway(scope, receive, watched_send)
            else:
                await self.pages(scope, receive, watched_send)
        finally:
            seconds = time.perf_counter() - began
            self._count(scope, _route(scope, is_call), status or CLIENT_LEFT, seconds)

    def _count(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        exchange: Exchange | None = scope.get(EXCHANGE)
        self.metrics.request(method, route, status, seconds)
        if exchange is not None:
            self.metrics.call(exchange)
        if self.logs_requests:
            log_request(method, route, status, seconds, exchange)

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.gateway.upstreams.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _is_allowed(self, scope: Scope) -> bool:
        if self.hosts is None:
            return True
        names = [value for name, value in scope["headers"] if name == b"host"]
        # what stands behind this server may believe another one of two
        return len(names) == 1 and host_name(names[0].decode("latin-1")) in self.hosts


def _without_foreign_cookies(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    name, value = header
    if name != b"cookie":
        return header
    return name, own_cookies(value.decode("latin-1")).encode("latin-1")


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> host_name("127.0.0.1:8787"), host_name("[::1]:8787"), host_name("Example.com")
    ('127.0.0.1', '[::1]', 'example.com')
    """
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()


def allowed_hosts(host: str, further: Iterable[str]) -> frozenset[str] | None:
    """Return the allowed host names of a server that listens on `host`; None allows any name, if it
    listens on all addresses and `further` is empty. Other names are refused, so that no web page
    can reach the server under a name of its own.

    >>> allowed_hosts("0.0.0.0", []) is None
    True
    >>> "models.example" in allowed_hosts("0.0.0.0", ["models.example"])
    True
    """
    names = [*further]
    if host not in EVERYWHERE:
        names.append(host)
    elif not names:
        return None
    return frozenset(_in_header(name) for name in [*LOOPBACK, *names])


def _in_header(host: str) -> str:
    """Return the host as it appears in a Host header."""
    is_ipv6 = ":" in host and not host.startswith("[")
    return f"[{host}]" if is_ipv6 else host.lower()


def _route(scope: Scope, is_call: bool) -> str:
    """Return the path of a request with placeholders for the parts that clients choose, which may
    be anything."""
    if is_call:
        call = split_path(scope["path"]).call
        return "/v1/models/{name}" if call.startswith("/v1/models/") else call
    return str(getattr(scope.get("route"), "path", OTHER))


def api_application(routers: Iterable[APIRouter]) -> FastAPI:
    """Return the FastAPI application that answers everything except model calls."""
    api = FastAPI(
        title="thumbwheel",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=documented(),
    )
    add_handlers(api)

    @cache
    def document() -> bytes:
        content = api.openapi()
        add_links(content)
        return json.dumps(content, ensure_ascii=False).encode()

    @api.get(
        DOCUMENT,
        include_in_schema=False,
        dependencies=[public("clients read in it how to ask, and it holds no data")],
    )
    def read_document() -> Response:
        return Response(document(), media_type="application/json")

    for router in routers:
        api.include_router(router)
    return api


async def _send_forbidden(send: Callable[[Any], Awaitable[None]]) -> None:
    message = "this host name is not the server's (setting gateway.hosts)"
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
