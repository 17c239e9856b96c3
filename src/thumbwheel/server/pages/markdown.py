"""Text of models and people as HTML: Markdown without raw HTML and without images, so that reading
an answer runs nothing and fetches nothing.

A link shows where it leads, and its page gets neither our address nor a handle on ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from thumbwheel.report.formatting import legible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

SCHEMES = ("http://", "https://", "mailto:")
"""What a link may begin with; others stay text."""
MOST_MARKDOWN = 100_000
"""Characters up to which a text is read as Markdown; longer ones are shown as they are."""
MOST_OF_REQUEST = 4 * MOST_MARKDOWN
"""Characters that are read as Markdown for one request: about ten seconds of work."""
MOST_EMPTY_CELLS = 1_000
"""Cells that the tables of a text may leave out. A row is filled up to the width of its heading, so
that without a bound 1,600 characters would become 65,000 cells, and a second of work."""


def markdown(text: str) -> Markup:
    """Return the text as safe HTML. A very long text is shown unrendered."""
    shown = legible(text)
    if len(shown) > MOST_MARKDOWN:
        return _unrendered(shown)
    return Markup(_parser().render(shown))


def markdown_of_all(texts: Sequence[str]) -> list[Markup]:
    """Return the texts as safe HTML. Once those before have used up the characters that one request
    may have rendered, the rest is shown unrendered."""
    shown: list[Markup] = []
    room = MOST_OF_REQUEST
    for text in texts:
        shown.append(markdown(text) if len(text) <= room else _unrendered(legible(text)))
        room -= len(text)
    return shown


def _unrendered(text: str) -> Markup:
    return Markup(f"<pre>{escape(text)}</pre>")


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    vars(import_module("markdown_it.rules_block.table"))["MAX_AUTOCOMPLETED_CELLS"] = (
        MOST_EMPTY_CELLS
    )
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table")
    parser.validateLink = _is_allowed  # type: ignore[method-assign]
    parser.add_render_rule("image", _image)
    parser.add_render_rule("link_open", _link)
    parser.add_render_rule("table_open", _table)
    for name in ("heading_open", "heading_close"):
        parser.add_render_rule(name, _heading)
    return parser


def _is_allowed(url: str) -> bool:
    return url.strip().lower().startswith(SCHEMES)


def _image(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Return an image's description and address as HTML; the image is not fetched."""
    token = tokens[index]
    source = escape(str(token.attrGet("src") or ""))
    return f'<span class="image">[image: {escape(token.content)} <code>{source}</code>]</span>'


def _link(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    address = escape(str(tokens[index].attrGet("href") or ""))
    return f'<a href="{address}" title="{address}" rel="noopener noreferrer nofollow">'


def _table(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Return the start of a table, named for a screen reader: Markdown has no captions."""
    return '<table aria-label="Table in the text">\n'


def _heading(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Return a heading as a bold line, so that it does not become a heading of the page."""
    is_opening = tokens[index].type == "heading_open"
    return "<p><strong>" if is_opening else "</strong></p>\n"
