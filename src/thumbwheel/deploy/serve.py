"""The front door of an agent: clients name the agent as the model, and get what its alias points
at, request by request.

A switch of the alias is therefore one for every client and every target in the same instant; a
request that runs already ends where it began. Does not live here: recording what goes through,
accounts, pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, StreamingResponse

from thumbwheel.core.errors import InputError, ModelError, NotFound, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.switch import endpoint_of, health, resolve
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.models import versions

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names under which a page in a browser may not pretend to be us."""

STATUS = {NotFound: 404, InputError: 400, ModelError: 502}


def application(ws: Workspace, agent: str, host: str = HOSTS[0]) -> FastAPI:
    """The app that answers for `agent` and its aliases, to whom reaches it as `host`; to any name
    where it listens everywhere."""
    app, upstream = (
        FastAPI(openapi_url=None),
        httpx.Client(timeout=httpx.Timeout(600.0, connect=5.0), trust_env=False),
    )
    app.add_middleware(
        TrustedHostMiddleware, allowed_hosts=["*"] if host in ("0.0.0.0", "::") else [*HOSTS, host]
    )

    @app.exception_handler(ThumbwheelError)
    def refuse(request: Request, error: ThumbwheelError) -> JSONResponse:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
        return JSONResponse(
            {"error": {"message": str(error), "type": type(error).__name__}}, status
        )

    @app.get("/v1/models")
    def models() -> Any:
        names = [agent, *(f"{agent}:{alias}" for alias in versions.aliases_of(ws, agent))]
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "owned_by": "thumbwheel"} for name in names],
        }

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        return await run_in_threadpool(
            _forward, ws, agent, upstream, "chat/completions", await _raw(request)
        )

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        return await run_in_threadpool(
            _forward, ws, agent, upstream, "completions", await _raw(request)
        )

    return app


def _forward(ws: Workspace, agent: str, upstream: httpx.Client, path: str, raw: bytes) -> Any:
    body = _body(raw)
    asked = str(body.get("model") or agent)
    if asked.partition(":")[0] != agent:
        raise NotFound(
            f"model {asked!r}",
            f"this door is that of {agent!r}",
            f"Ask for {agent!r}, or {agent}:ALIAS",
        )
    found = resolve(ws, asked)
    endpoint = endpoint_of(found)
    secret = TARGETS.get(found.target).secret(endpoint)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    stack = ExitStack()
    try:
        url = f"{endpoint.url}/{path}"
        reply = stack.enter_context(
            upstream.stream(
                "POST", url, json=body | {"model": endpoint.model, **endpoint.body}, headers=headers
            )
        )
    except httpx.HTTPError as error:
        why = health(found).why or f"{type(error).__name__}: {error}"
        fix = f"Roll back, or start it again: thumbwheel deployments --agent {agent} --restart"
        raise ModelError(
            f"{found.name} on {found.target}", f"it does not answer: {why}", fix
        ) from None
    shown = {"x-thumbwheel-version": found.version, "x-thumbwheel-deployment": found.id}
    kind = reply.headers.get("content-type", "application/json")
    return StreamingResponse(_through(reply, stack), reply.status_code, shown, kind)


def _through(reply: httpx.Response, stack: ExitStack) -> Iterator[bytes]:
    """What the endpoint sends, as it comes; a client that leaves ends the endpoint's work."""
    with stack:
        yield from reply.iter_bytes()


async def _raw(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page in a browser may send other kinds to us without asking
        raise InputError(
            "the request", f"its content type is {kind or 'missing'}", "Send it as application/json"
        )
    return await request.body()


def _body(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(
            "the request", "its body is no JSON object", "Send what OpenAI's API takes"
        )
    return found


def serve(ws: Workspace, agent: str, host: str, port: int) -> None:
    """Answer until ended; raises NotFound for an agent that does not exist."""
    import uvicorn

    versions.require_agent(ws, agent)
    uvicorn.run(application(ws, agent, host), host=host, port=port, log_level="warning")
