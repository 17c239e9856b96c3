"""`POST /mcp`: the tools by the Model Context Protocol (streamable HTTP), for agents.

No request has a session: each says all that it needs, and any server of the home answers it. A call
becomes a request of the API with the same credentials, so the same gate lets it through, and the
same audit log has it. The library of the protocol takes a second to load, so it is imported when
the first agent asks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal
from thumbwheel.app.service_settings import McpConfig
from thumbwheel.core.errors import InputError, NotFound, ThumbwheelError
from thumbwheel.core.plugins import nearest
from thumbwheel.sdk.version import __version__
from thumbwheel.server.mcp_tools import CommandTool, tools

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult, ListToolsResult

PATH = "/mcp"
INSTRUCTIONS = (
    "Thumbwheel turns the feedback on an LLM app into a better model. Almost every tool is about "
    "one agent, named by its slug. A long one answers with a job: look at it with jobs_show, or "
    "give `wait` in seconds."
)
OF_THE_BODY = frozenset(
    [
        b"accept",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"transfer-encoding",
    ]
)
"""Headers that are about the call of the tool, and not about who asks."""


@dataclass(frozen=True)
class ToolServer:
    """Lists and calls tools for whoever a request is of."""

    api: FastAPI
    config: McpConfig

    @cached_property
    def protocol(self) -> Server[Any]:
        """The server of the library."""
        from mcp.server.lowlevel import Server

        # It would log what is sent, and the log holds no texts of clients.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        return Server(
            "thumbwheel",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )

    def offered(self, principal: Principal) -> dict[str, CommandTool]:
        """Return name -> tool for the tools that the principal may use."""
        by_name = {}
        for name, tool in tools().items():
            verb = tool.operation.route.need
            if verb in self.config.verbs and principal.may_somewhere(verb):
                by_name[name] = tool
        return by_name

    async def list_tools(self, context: Any, params: Any) -> ListToolsResult:
        """Answer a request for the list of tools."""
        from mcp_types import ListToolsResult, ToolAnnotations
        from mcp_types import Tool as ToolOfProtocol

        offered = await run_in_threadpool(self.offered, context.request.state.principal)
        listed = []
        for name, tool in offered.items():
            method = tool.operation.route.method
            annotations = ToolAnnotations(
                read_only_hint=tool.only_reads,
                destructive_hint=method == "DELETE",
                idempotent_hint=method != "POST",
                open_world_hint=False,
            )
            listed.append(
                ToolOfProtocol(
                    name=name,
                    description=tool.description,
                    input_schema=tool.schema(),
                    annotations=annotations,
                )
            )
        return ListToolsResult(tools=listed)

    async def call_tool(self, context: Any, params: Any) -> CallToolResult:
        """Answer a tool call. An error of the command is returned as an error result, which the
        agent can read and correct."""
        from mcp_types import CallToolResult, TextContent

        try:
            tool = self._tool(context.request.state.principal, params.name)
            path, body = tool.request(params.arguments or {})
            method = tool.operation.route.method
            status, content = await _ask(self.api, context.request, method, path, body)
            is_error = status >= 400
            text = json.loads(content)["detail"] if is_error else content.decode()
        except ThumbwheelError as error:
            is_error, text = True, str(error)
        return CallToolResult(content=[TextContent(text=text)], is_error=is_error)

    def _tool(self, principal: Principal, name: str) -> CommandTool:
        offered = self.offered(principal)
        if name in offered:
            return offered[name]
        if name in tools():
            verb = tools()[name].operation.route.need
            raise InputError(
                f"tool {name!r}",
                f"it needs the verb {verb!r}, which the key or the server's settings do not permit",
                "An owner allows it: mcp.verbs in thumbwheel.yaml, and the verbs of the key",
            )
        fix = f"List the tools.{nearest(name, offered)}"
        raise NotFound(f"tool {name[:100]!r}", "there is none of that name", fix)


class ProtocolResponse(Response):
    """What the library of the protocol answers to the request that it is called with."""

    def __init__(self, server: ToolServer) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request (ASGI)."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        # One for each request, because nothing goes on from one to the next.
        manager = StreamableHTTPSessionManager(
            self._server.protocol, json_response=True, stateless=True
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


async def _ask(
    api: FastAPI, outer: Request, method: str, target: str, body: bytes | None
) -> tuple[int, bytes]:
    """Send a request to the API with the headers of `outer`; return (status, content) of the
    answer."""
    path, _, query = target.partition("?")
    headers = [pair for pair in outer.headers.raw if pair[0] not in OF_THE_BODY]
    headers += [(b"accept", b"application/json"), (b"content-type", b"application/json")]
    scope = {
        **{name: outer.scope[name] for name in ("type", "asgi", "http_version", "scheme")},
        **{name: outer.scope.get(name) for name in ("client", "server")},
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
    }
    status = 500
    pieces: list[bytes] = []
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()  # the client stays until it has its answer
        is_sent = True
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    try:
        await api(scope, receive, send)
    except Exception:
        if not pieces:  # an answer that says that the server failed is an answer
            raise
    return status, b"".join(pieces)


def router(config: McpConfig) -> APIRouter:
    """Return the router of the MCP endpoint."""
    routes = APIRouter()

    @cache
    def server_of(api: FastAPI) -> ToolServer:
        return ToolServer(api, config)

    @routes.post(PATH, include_in_schema=False, dependencies=[needs(None)])
    async def answer(request: Request) -> Response:
        server = server_of(request.app)
        await run_in_threadpool(getattr, server, "protocol")  # importing it takes a second
        return ProtocolResponse(server)

    return routes
