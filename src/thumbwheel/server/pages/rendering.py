"""Makes HTML of pages: templates, static files, the headers of every page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import jinja2
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from thumbwheel.core import figures
from thumbwheel.core.errors import ThumbwheelError, Unauthenticated
from thumbwheel.core.present import without_commands
from thumbwheel.loop.decision_card import question_in_words
from thumbwheel.report import formatting
from thumbwheel.sdk.version import __version__
from thumbwheel.server.pages.forms import form_fields
from thumbwheel.server.pages.markdown import markdown
from thumbwheel.server.pages.navigation import Navigation
from thumbwheel.server.pages.page import Page, PageRequest
from thumbwheel.server.pages.page_table import PAGES

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
PRIVATE = {"cache-control": "no-store"}
"""Pages show what people said: no copy of them stays on a disk."""
MEDIA = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "jsonl": "application/x-ndjson",
}


@dataclass(frozen=True)
class StaticFiles:
    """The files below `static/`, which are read once. Their address has a hash of all of them: a
    module imports another one by its plain name, and no browser mixes two releases."""

    digest: str
    contents: Mapping[str, bytes]

    @classmethod
    @cache
    def read(cls) -> StaticFiles:
        """Read the static files of the package."""
        contents = {}
        for file in sorted(files(__package__).joinpath("static").iterdir(), key=lambda f: f.name):
            contents[file.name] = file.read_bytes()
        digest = hashlib.sha256()
        for name, content in contents.items():
            digest.update(name.encode() + b"\0" + content)
        return cls(digest.hexdigest()[:16], contents)

    def url(self, name: str) -> str:
        """Return the address of a file. Raises KeyError for an unknown name."""
        if name not in self.contents:
            raise KeyError(name)
        return f"/static/{self.digest}/{name}"

    def media_type(self, name: str) -> str:
        """Return the content type of a file, by its extension."""
        return MEDIA[name.rpartition(".")[2]]


@cache
def environment() -> jinja2.Environment:
    """Return the template environment. An undefined variable is an error, and everything is
    escaped."""
    loader = jinja2.PackageLoader("thumbwheel.server.pages", "templates")
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "static": StaticFiles.read().url,
        "page_url": page_url,
        "release": __version__,
        "form_fields": form_fields,
    }
    templates.filters |= {
        "markdown": markdown,
        "legible": formatting.legible,
        "breakable": breakable,
        "in_words": without_commands,
        "excerpt": excerpt,
        "percent": figures.percent,
        "points": figures.points,
        "gain": figures.gain,
        "size": figures.size,
        "number": formatting.number,
        "compact": formatting.compact,
        "moment": moment,
        "part": part,
        "indented": formatting.indented,
        "duration": figures.duration,
        "figure": figure,
        "question": question_in_words,
    }
    templates.tests["unmeasured_guard"] = is_unmeasured_guard
    return templates


def is_unmeasured_guard(reason: str) -> bool:
    """Return whether a reason of the gate says no more than that a guard had too little data.

    >>> is_unmeasured_guard("guard eos_rate: not measured (0 of at least 20 groups)")
    True
    >>> is_unmeasured_guard("guard eos_rate: not measured, and seen beyond the margin")
    False
    """
    return reason.startswith("guard ") and ": not measured (" in reason


def breakable(text: str) -> Markup:
    """Return a legible path, address or name of a model that a line may break after its slashes.

    >>> breakable("team/model-7b at http://host/v1")
    Markup('team/<wbr>model-7b at http://<wbr>host/<wbr>v1')
    """
    parts = re.split(r"(?<=/)(?!/)", text)
    return Markup("<wbr>").join(formatting.legible(part) for part in parts)


def figure(value: float | None, form: str) -> str:
    """Return a tile's figure as text: a number, a share, a duration or a cost.

    >>> figure(1234, "number"), figure(0.5, "percent"), figure(0.126, "cost"), figure(None, "cost")
    ('1,234', '50.0 %', '0.13', '–')
    """
    if value is None:
        return "–"
    if form == "cost":
        return f"{value:,.2f}"
    forms = {
        "number": formatting.number,
        "percent": figures.percent,
        "duration": figures.duration,
    }
    return forms[form](value)


def part(text: str) -> str:
    """Return a text quoted as one part of a path."""
    return quote(text, safe="")


def excerpt(text: str, width: int, needle: str | None = None) -> Markup:
    """Return about `width` characters of a text: its beginning, or the part around `needle`,
    marked.

    >>> excerpt("<b> and the parcel is lost", 14, "Parcel")
    Markup('…the <mark>parcel</mark> is…')
    """
    begin = end = 0
    if needle and (position := _position_of(needle, text)) >= 0:
        begin, end = position, position + len(needle)
    first = 0
    if end > width:
        first = max(0, begin - max(0, width - (end - begin)) // 2)
    last = max(first + width, end)
    before, marked, after = text[first:begin], text[begin:end], text[end:last]
    html = Markup("{}{}").format("…" if first else "", formatting.legible(before.lstrip()))
    if marked:
        html += Markup("<mark>{}</mark>").format(formatting.legible(marked))
    html += formatting.legible(after.rstrip() if last < len(text) else after)
    return html + ("…" if last < len(text) else "")


def _position_of(needle: str, text: str) -> int:
    """Return the position of the needle, -1 without one. Case is ignored unless lower-casing
    changes positions."""
    small_text, small_needle = text.lower(), needle.lower()
    if (len(small_text), len(small_needle)) != (len(text), len(needle)):
        return text.find(needle)
    return small_text.find(small_needle)


def moment(when: datetime | str | None) -> str:
    """Return a time in UTC, to the minute; scripts convert it to the reader's time zone."""
    if when is None:
        return "–"
    time = datetime.fromisoformat(when) if isinstance(when, str) else when
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return utc.strftime("%Y-%m-%d %H:%M")


def page_url(name: str, **parts: str) -> str:
    """Return the address of the page with this name; empty if there is no such page."""
    for page in PAGES:
        if page.name == name:
            return page.url(**parts)
    return ""


def page_response(request: Request, page: Page) -> Response:
    """Return the page, as the principal may see it."""
    asked = PageRequest.of(request)
    context = page.load(asked)
    return _html(request, page.template, asked, {"title": page.title, **context}, page=page)


def login_response(request: Request, status: int = 200) -> Response:
    """Return the page on which a browser logs in."""
    provider = request.app.state.gate.config.provider
    context = {"title": "Log in", "provider": provider.issuer if provider else None}
    return _html(request, "login.html", None, context, status)


def error_response(request: Request, error: ThumbwheelError) -> Response:
    """Return the error as a page; the login page for Unauthenticated."""
    if isinstance(error, Unauthenticated):
        return login_response(request, error.http_status)
    asked = None
    if hasattr(request.state, "principal"):
        state = request.app.state
        asked = PageRequest(state.workspace, state.gate, request.state.principal, {}, {})
    context = {"title": "This did not work", "error": error}
    return _html(request, "error.html", asked, context, error.http_status)


def _html(
    request: Request,
    template: str,
    asked: PageRequest | None,
    context: Mapping[str, Any],
    status: int = 200,
    page: Page | None = None,
) -> Response:
    navigation = None if asked is None else Navigation.of(asked, page)
    down = {} if asked is None else asked.down
    content = (
        environment()
        .get_template(template)
        .render(navigation=navigation, asked=asked, path=request.url.path, down=down, **context)
    )
    text = content.encode("utf-8", "replace")
    return HTMLResponse(text, status, {**HEADERS, **PRIVATE})
