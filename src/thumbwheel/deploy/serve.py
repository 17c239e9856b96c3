"""The front door of an agent: clients name the agent as the model, and each request goes to the
deployment that its alias points at.

So a switch of the alias applies to every client and every target at once; a request that runs
already ends where it began. Traffic is not recorded, and there are no accounts.
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
from thumbwheel.deploy.switch import health, require_endpoint, resolve
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.models import versions

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Host names that are always allowed; others are refused, so that no web page can reach the door
under a name of its own."""

STATUS = {NotFound: 404, InputError: 400, ModelError: 502}


def application(ws: Workspace, agent: str, host: str = HOSTS[0]) -> FastAPI:
    """The app that answers for `agent` and its aliases. It accepts requests to the name `host`; to
    any name where it listens on all addresses."""
    app = FastAPI(openapi_url=None)
    upstream = httpx.Client(timeout=httpx.Timeout(600.0, connect=5.0), trust_env=False)
    everywhere = host in ("0.0.0.0", "::")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*"] if everywhere else [*HOSTS, host])

    @app.exception_handler(ThumbwheelError)
    def refuse(request: Request, error: ThumbwheelError) -> JSONResponse:
        status = next(
            (code for error_type, code in STATUS.items() if isinstance(error, error_type)), 503
        )
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
    model = str(body.get("model") or agent)
    if model.partition(":")[0] != agent:
        raise NotFound(
            f"model {model!r}",
            f"this door is that of {agent!r}",
            f"Ask for {agent!r}, or {agent}:ALIAS",
        )
    deployment = resolve(ws, model)
    endpoint = require_endpoint(deployment)
    secret = TARGETS.get(deployment.target).secret(endpoint)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    url = f"{endpoint.url}/{path}"
    upstream_body = body | {"model": endpoint.model, **endpoint.body}
    stack = ExitStack()
    try:
        reply = stack.enter_context(
            upstream.stream("POST", url, json=upstream_body, headers=headers)
        )
    except httpx.HTTPError as error:
        why = health(deployment).why or f"{type(error).__name__}: {error}"
        fix = f"Roll back, or start it again: thumbwheel deployments --agent {agent} --restart"
        raise ModelError(
            f"{deployment.name} on {deployment.target}", f"it does not answer: {why}", fix
        ) from None
    shown = {"x-thumbwheel-version": deployment.version, "x-thumbwheel-deployment": deployment.id}
    kind = reply.headers.get("content-type", "application/json")
    return StreamingResponse(_through(reply, stack), reply.status_code, shown, kind)


def _through(reply: httpx.Response, stack: ExitStack) -> Iterator[bytes]:
    """The endpoint's bytes as they come. A client that leaves ends the request to the endpoint."""
    with stack:
        yield from reply.iter_bytes()


async def _raw(request: Request) -> bytes:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # browsers let any page send other types without asking
        raise InputError(
            "the request",
            f"its content type is {content_type or 'missing'}",
            "Send it as application/json",
        )
    return await request.body()


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InputError(
            "the request", "its body is no JSON object", "Send what OpenAI's API takes"
        )
    return body


def serve(ws: Workspace, agent: str, host: str, port: int) -> None:
    """Serve until stopped; raises NotFound for an agent that does not exist."""
    import uvicorn

    versions.require_agent(ws, agent)
    uvicorn.run(application(ws, agent, host), host=host, port=port, log_level="warning")
