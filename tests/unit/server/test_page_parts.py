"""What pages are made of, without a browser: Markdown of models, forms of config classes, static
files, and answers to those who want no page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient
from pydantic import Field

from tests.worlds.gateway_world import opened_home
from tests.worlds.script_payloads import payloads
from thumbwheel.core.config import Config
from thumbwheel.core.errors import MissingExtra
from thumbwheel.server.pages.charts import KEPT, Drawings, charts
from thumbwheel.server.pages.forms import form_fields
from thumbwheel.server.pages.markdown import markdown
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.rendering import (
    HEADERS,
    POLICY,
    StaticFiles,
    excerpt,
    moment,
    part,
)
from thumbwheel.server.serve import assembled

ELEMENT = re.compile(r"<(/?[a-zA-Z]+)([^>]*)>")
HARMLESS = frozenset(
    [
        "p",
        "em",
        "strong",
        "code",
        "pre",
        "ol",
        "ul",
        "li",
        "a",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "blockquote",
        "hr",
        "br",
        "span",
    ]
)


class Inner(Config):
    """Within another."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Of all"""


class Outer(Config):
    """Of every kind of field."""

    name: str
    """What it is called"""
    count: int = Field(default=3, ge=1)
    method: Literal["sft", "dpo"] = "sft"
    limit: int | None = None
    eager: bool = False
    tags: tuple[str, ...] = ("a", "b")
    weights: dict[str, float] = Field(default_factory=dict)
    inner: Inner = Inner()


def test_markdown_makes_no_element_but_those_of_text() -> None:
    for text in payloads():
        for name, attributes in ELEMENT.findall(markdown(text)):
            assert name.strip("/") in HARMLESS, (text, name)
            assert " on" not in re.sub(r'"[^"]*"', "", attributes), (text, attributes)
            for address in re.findall(r'href="([^"]*)"', attributes):
                assert address.startswith(("http://", "https://", "mailto:")), (text, address)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**b** *i* `c`", "<p><strong>b</strong> <em>i</em> <code>c</code></p>\n"),
        ("# Title", "<p><strong>Title</strong></p>\n"),
        ("a\u202eb", "<p>a\\u202eb</p>\n"),
        (
            "![a cat](https://x.example/cat.png)",
            '<p><span class="image">[image: a cat <code>https://x.example/cat.png</code>]</span>'
            "</p>\n",
        ),
    ],
)
def test_markdown(text: str, html: str) -> None:
    assert markdown(text) == html


def test_a_link_leaves_without_a_trace_of_ours() -> None:
    html = markdown("[site](https://x.example/?a=1&b=2)")
    assert 'href="https://x.example/?a=1&amp;b=2"' in html
    assert 'rel="noopener noreferrer nofollow"' in html


def test_a_form_has_a_field_for_each_of_a_class() -> None:
    fields = {field.name: field for field in form_fields(Outer, {"limit": 7, "method": "dpo"})}
    kinds = {name: field.kind for name, field in fields.items()}
    assert kinds == {
        "name": "text",
        "count": "number",
        "method": "select",
        "limit": "number",
        "eager": "checkbox",
        "tags": "list",
        "weights": "json",
        "inner": "group",
    }
    assert fields["name"].required and fields["name"].help == "What it is called"
    assert (fields["count"].least, fields["count"].whole) == (1, True)
    assert fields["method"].value == "dpo" and list(fields["method"].choices) == ["sft", "dpo"]
    assert (fields["limit"].value, fields["tags"].value) == ("7", "a\nb")
    (share,) = fields["inner"].fields
    assert (share.name, share.value, share.least, share.most) == ("inner.share", "0.5", 0, 1)


def test_times_and_parts_of_paths() -> None:
    assert moment("2026-01-05T10:00:00+02:00") == "2026-01-05 08:00"
    assert moment(None) == "–"
    assert part("a/b?c=ü") == "a%2Fb%3Fc%3D%C3%BC"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("parts")
    with (
        opened_home(folder / "home") as ws,
        assembled(ws, "127.0.0.1", drain_every=3600) as application,
    ):
        yield TestClient(application, base_url="http://127.0.0.1", follow_redirects=False)


def test_a_page_has_its_policy_also_where_it_refuses(client: TestClient) -> None:
    answer = client.get("/agents/support/traces", headers={"accept": "text/html"})
    assert answer.status_code == 401 and "Log in" in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    for unsafe in ("unsafe-inline", "unsafe-eval", "data:", "*"):
        assert unsafe not in POLICY
    assert "<script>" not in answer.text and "style=" not in answer.text


def test_a_program_gets_a_problem_and_no_page(client: TestClient) -> None:
    answer = client.get("/agents/support/traces")
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_excerpt_shows_where_the_word_stands_and_runs_nothing() -> None:
    hostile = "<script>x</script> " * 40 + "the parcel <b>" + " is lost" * 80
    shown = excerpt(hostile, 30, "PARCEL <B>")
    assert "<mark>parcel &lt;b&gt;</mark>" in shown
    assert len(shown.striptags()) < 60 and "<script" not in shown
    assert excerpt("a parcel", 30, "letter") == "a parcel"
    assert excerpt("abcdef", 3) == "abc…"


def test_static_files_are_remembered_by_the_hash_of_all(client: TestClient) -> None:
    static = StaticFiles.read()
    for name, content in static.contents.items():
        answer = client.get(static.url(name))
        assert (answer.status_code, answer.content) == (200, content)
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == HEADERS["x-content-type-options"]
    older = client.get("/static/0000000000000000/app.js")
    assert older.status_code == 200 and older.headers["cache-control"] == "no-store"
    for name in ("nothing.js", "..%2frendering.py", "%2e%2e"):
        assert client.get(f"/static/{static.digest}/{name}").status_code == 404


def test_a_drawing_is_drawn_once_for_what_it_shows() -> None:
    drawn: list[int] = []

    def draw(value: int) -> Mapping[str, str]:
        drawn.append(value)
        return {"curve": f"<svg>{value}</svg>"}

    drawings = Drawings()
    for value in (1, 1, 2, 1):
        shown = {"points": [[0.5, value]], "title": "Loss"}
        assert drawings.of(shown, partial(draw, value)) == {"curve": f"<svg>{value}</svg>"}
    assert drawn == [1, 2]
    # what was not shown for long is let go
    for value in range(3, 2 + KEPT):
        drawings.of(value, partial(draw, value))
    drawings.of({"points": [[0.5, 1]], "title": "Loss"}, partial(draw, 1))
    drawings.of({"points": [[0.5, 2]], "title": "Loss"}, partial(draw, 2))
    assert drawn.count(1) == 1 and drawn.count(2) == 2


def test_a_page_draws_a_chart_where_its_address_asks_for_it() -> None:
    nobody: Any = None
    drawn = []

    def draw() -> Mapping[str, str]:
        drawn.append("all")
        return {"measures": "<svg>m</svg>", "ladder a": "<svg>a</svg>", "ladder b": "<svg>b</svg>"}

    plain = PageRequest(nobody, nobody, nobody, {}, {})
    asking = PageRequest(nobody, nobody, nobody, {}, {"draw": "1"})
    later = charts(plain, "a page of this test", draw).of("measures")
    assert "data-later" in later and 'href="?draw=1"' in later and not drawn
    now = charts(asking, "a page of this test", draw)
    assert "<svg>m</svg>" in now.of("measures") and "data-later" not in now.of("measures")
    assert now.of("ladder").count("<figure") == 2 and "<figure" not in now.of("slices")
    assert charts(plain, "a page of this test", draw) == now and drawn == ["all"]


def test_without_matplotlib_a_page_says_so_in_place_of_a_chart() -> None:
    nobody: Any = None

    def fail() -> Mapping[str, str]:
        raise MissingExtra.of("the chart", "matplotlib", "train")

    asking = PageRequest(nobody, nobody, nobody, {}, {"draw": "1"})
    assert "matplotlib" in charts(asking, "another page of this test", fail).of("measures")


def test_a_drawing_that_fails_is_not_kept() -> None:
    def fail() -> Mapping[str, str]:
        raise MissingExtra.of("the chart", "matplotlib", "train")

    drawings = Drawings()
    for _ in range(2):
        with pytest.raises(MissingExtra):
            drawings.of(1, fail)
    assert drawings.of(1, lambda: {"curve": "<svg/>"}) == {"curve": "<svg/>"}
