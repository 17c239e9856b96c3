"""The URLs of the pages and of their static files, behind the gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import TemplateError
from pydantic import Field
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from thumbwheel.access.needs import needs, public
from thumbwheel.access.problem import shown_to
from thumbwheel.access.work_shares import in_file_turn
from thumbwheel.core import log
from thumbwheel.core.config import Config
from thumbwheel.core.errors import NotFound, ThumbwheelError
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.pages.markdown import markdown_of_all
from thumbwheel.server.pages.page import Page, PageRequest
from thumbwheel.server.pages.page_table import PAGES
from thumbwheel.server.pages.rendering import (
    HEADERS,
    StaticFiles,
    error_response,
    page_response,
)
from thumbwheel.server.pages.trace_export import FORMS, export_response, replay_response

FAILURE = ThumbwheelError(
    "the page", "the server failed at it; its log says how", "Report it, with the address"
)
MOST_SHOWN, LONGEST_SHOWN = 100, 2_000_000
"""Texts of one request for Markdown, and characters of each."""
FOREVER = "public, max-age=31536000, immutable"


class PageRoute(BoundedRoute):
    """A route that answers a browser's failed request with a page, and others with a problem."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return FastAPI's handler, which shows errors to browsers as pages."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Any:
            try:
                return await handle(request)
            except ThumbwheelError as error:
                if "text/html" not in request.headers.get("accept", ""):
                    raise
                shown = shown_to(request, error)
                return await run_in_threadpool(error_response, request, shown)
            except (ArithmeticError, LookupError, TemplateError, TypeError, ValueError) as error:
                if "text/html" not in request.headers.get("accept", ""):
                    raise
                log.logger.error("%s failed", request.url.path, exc_info=error)
                return await run_in_threadpool(error_response, request, FAILURE)

        return answer


@cache
def router() -> APIRouter:
    """Return the router of all pages, built once per process."""
    routes = APIRouter(route_class=PageRoute)
    _add_exports(routes)  # before the pages: `export.csv` is no trace
    _add_replay_export(routes)
    _add_markdown(routes)
    for page in sorted(PAGES, key=lambda page: page.path.count("{")):
        _add(routes, page)
    _add_static(routes)
    return routes


class UnknownPageRoute(PageRoute):
    """A route that takes what a browser opens and no other route takes. Whoever asks for data gets
    a problem, as for any path that does not exist."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a browser's GET alone."""
        accept = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        if "text/html" not in accept or scope["path"].startswith("/api/"):
            return Match.NONE, {}
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


@cache
def unknown_page_router() -> APIRouter:
    """Return the router of all addresses without a page; it comes last."""
    routes = APIRouter(route_class=UnknownPageRoute)

    @routes.get("/{path:path}", include_in_schema=False, dependencies=[needs(None)])
    def unknown(path: str) -> Response:
        raise NotFound(f"page {path!r}", "there is none at this address", "Choose another one")

    return routes


def _add(routes: APIRouter, page: Page) -> None:
    def show(request: Request) -> Response:
        return page_response(request, page)

    routes.add_api_route(
        page.path,
        show,
        methods=["GET"],
        name=f"page.{page.name}",
        dependencies=[needs(page.need, by_row=page.by_row)],
        include_in_schema=False,
        response_class=HTMLResponse,
    )


def _add_exports(routes: APIRouter) -> None:
    for form in FORMS:
        routes.add_api_route(
            f"/agents/{{agent}}/traces/export.{form}",
            _download(form),
            methods=["GET"],
            name=f"export.traces.{form}",
            dependencies=[needs("read")],
            include_in_schema=False,
        )


def _add_replay_export(routes: APIRouter) -> None:
    def download(request: Request) -> Response:
        return replay_response(PageRequest.of(request))

    routes.add_api_route(
        "/agents/{agent}/replays/{replay}/export.csv",
        download,
        methods=["GET"],
        name="export.replay.csv",
        dependencies=[needs("read")],
        include_in_schema=False,
    )


class TextsToShow(Config):
    """Texts that a script of a page shows."""

    texts: list[Annotated[str, Field(max_length=LONGEST_SHOWN)]] = Field(max_length=MOST_SHOWN)
    """Each is Markdown of a model or a person"""


class ShownTexts(Config):
    """The same texts as HTML of the page."""

    html: list[str]
    """In their order, without any HTML of the texts themselves"""


def _add_markdown(routes: APIRouter) -> None:
    @routes.post(
        "/api/markdown",
        operation_id="pages.markdown",
        dependencies=[needs("read", by_row=True)],
    )
    async def show_markdown(asked: TextsToShow) -> ShownTexts:
        """Return texts as the safe HTML in which the pages show Markdown. Beyond 400,000 characters
        texts are shown unrendered."""
        rendered = await in_file_turn(markdown_of_all, asked.texts)
        return ShownTexts(html=[str(html) for html in rendered])


def _download(form: str) -> Callable[[Request], Response]:
    def download(request: Request) -> Response:
        return export_response(PageRequest.of(request), form)

    return download


def _add_static(routes: APIRouter) -> None:
    static = StaticFiles.read()

    @routes.get(
        "/static/{digest}/{name}",
        include_in_schema=False,
        dependencies=[public("scripts and styles of the pages, which hold no data")],
    )
    def static_file(digest: str, name: str) -> Response:
        content = static.contents.get(name)
        if content is None:
            why = "the pages have none of that name"
            raise NotFound(f"file {name!r}", why, "Load the page anew")
        # a page of an older release gets today's files, and must not remember them as its own
        cache = FOREVER if digest == static.digest else "no-store"
        headers = {**HEADERS, "cache-control": cache}
        return Response(content, 200, headers, static.media_type(name))
