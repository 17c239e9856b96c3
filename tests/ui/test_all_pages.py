"""Every page of the table: it opens, breaks no policy, is accessible in light and dark, narrow and
wide, and keeps from others what they may not see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.doc_pages import PAGES as DOC_PAGES
from tests.doc_pages import ROOT
from tests.pictures import check_picture, shrink, without_folder
from tests.ui.page_urls import URLS
from tests.worlds.browser_world import NARROW, WIDE, Scheme, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import PagesWorld
from thumbwheel.server.pages.page_table import PAGES

NAMES = [page.name for page in PAGES]
SUFFIXES: dict[Scheme, str] = {"light": "", "dark": "-dark"}
"""Colours -> the end of the name of a picture."""
MOST_BYTES = 150_000
"""Of a picture in the documentation."""
DRAWN = 1500
"""Milliseconds in which scripts draw curves and fetch what is to be rated."""


def ask(page: Page) -> None:
    """Ask two versions one question, so that the picture shows their answers."""
    page.get_by_label("Message").fill("Can I get my money back for a late parcel?")
    page.get_by_label("Message").press("Enter")
    for number in range(2):
        expect(page.locator(".reply .text").nth(number)).to_contain_text("form 5")


PREPARED: dict[str, Callable[[Page], None]] = {"playground": ask}
"""Name of a page -> what is done on it before its picture is taken."""
PICTURED: dict[Scheme, list[str]] = {"light": NAMES, "dark": ["trace", "traces"]}
"""Colours -> the pages whose picture is taken in them."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page."""
    with running_operations(tmp_path_factory.mktemp("operations")) as world:
        yield world


def test_every_page_has_a_url_for_its_tests() -> None:
    assert sorted(URLS) == sorted(NAMES)


def test_the_documentation_shows_a_picture_of_every_page() -> None:
    texts = "".join(page.read_text() for page in DOC_PAGES)
    missing = []
    for scheme, names in PICTURED.items():
        for name in names:
            file = f"ui/{name}{SUFFIXES[scheme]}.png"
            if not (ROOT / "docs" / file).is_file() or f"({file})" not in texts:
                missing.append(file)
    assert missing == []


REPEAT = (pytest.mark.slow, pytest.mark.repeat)
"""Colours decide about contrast and sizes about layout, so two of the four see everything."""


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", NARROW),
        ("dark", WIDE),
        pytest.param("light", WIDE, marks=REPEAT),
        pytest.param("dark", NARROW, marks=REPEAT),
    ],
)
def test_every_page_is_accessible(
    browser: Browser, pages: PagesWorld, scheme: Scheme, size: tuple[int, int]
) -> None:
    objections: dict[str, object] = {}
    with visitor(browser, pages.url, scheme, size, pages.code) as person:
        for name, url in URLS.items():
            page = person.open(url.format(**pages.parts))
            expect(page.locator("main h1")).to_be_visible()
            if complaints := person.axe():
                objections[name] = complaints
            if person.is_too_wide():
                objections[f"{name} scrolls sideways"] = size
            person.check()
    assert objections == {}


def test_the_login_page_is_accessible_and_logs_in(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, size=NARROW) as stranger:
        page = stranger.open("/agents/support/traces")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        assert stranger.axe() == []
        page.get_by_label("Name").fill("nobody")
        page.get_by_label("Password").fill("some wrong password")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("status")).to_contain_text("password")
        stranger.check()


def test_pictures_of_every_page(browser: Browser, pages: PagesWorld, pictures: Path | None) -> None:
    """Written on demand, and looked at by people."""
    if pictures is None:
        return
    for scheme, names in PICTURED.items():
        with visitor(browser, pages.url, scheme, WIDE, pages.code) as person:
            for name in names:
                picture = pictures / f"{name}{SUFFIXES[scheme]}.png"
                page = person.open(URLS[name].format(**pages.parts))
                if name in PREPARED:
                    PREPARED[name](page)
                page.wait_for_timeout(DRAWN)
                without_folder(page, pages.ws.home.path.parent)
                page.screenshot(path=picture)
                shrink(picture)
                check_picture(picture, *WIDE)
                assert picture.stat().st_size < MOST_BYTES
