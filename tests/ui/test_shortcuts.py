"""Keys of every page: what they are, the search, the palette, and no key while somebody types."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.pages_world import AGENT, PagesWorld, add_queue, running_pages
from thumbwheel.access import users
from thumbwheel.models.versions import ensure_agent

TRACES = f"/agents/{AGENT}/traces"
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over two agents, one with traces and a queue."""
    with running_pages(tmp_path_factory.mktemp("shortcuts")) as world:
        ensure_agent(world.ws, "sales")
        add_queue(world.ws)
        yield world


def test_the_question_mark_shows_the_keys(person: Visitor) -> None:
    page = person.open(f"{TRACES}/order-42")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("The next trace of the list")
    expect(dialog).to_contain_text("Traces")
    assert person.axe() == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(dialog).to_be_visible()


def test_the_bench_shows_its_own_keys(person: Visitor) -> None:
    page = person.open(f"/agents/{AGENT}/rate/july")
    expect(page.locator("#item .text").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Thumb up")
    expect(page.get_by_role("dialog")).to_have_count(1)


def test_a_slash_searches_and_letters_lead_to_pages(person: Visitor) -> None:
    page = person.open(TRACES)
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("g?/r")
    expect(page.get_by_label("Text")).to_have_value("g?/r")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Text").evaluate("field => field.blur()")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/rate")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog", name="Command palette")).to_be_visible()


def test_the_palette_leads_to_agents_pages_and_actions(person: Visitor) -> None:
    page = person.open(TRACES)
    palette = page.get_by_role("dialog", name="Command palette")
    options = palette.get_by_role("option")
    page.keyboard.press("Control+k")
    page.keyboard.type("sales")
    expect(options).to_have_count(1)
    assert person.axe() == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/agents/sales/traces")
    page.keyboard.press("Control+k")
    page.keyboard.type("data")
    expect(options).to_have_text([re.compile("Data plan"), re.compile("Datasets")])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/datasets")
    page.keyboard.press("Control+k")
    page.keyboard.type("train")
    page.keyboard.press("Enter")
    page.wait_for_url("**/train")
    page = person.open(f"/agents/{AGENT}/rate")
    page.keyboard.press("Control+k")
    page.keyboard.type("new queue")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Items", exact=True)).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("nothing of the kind")
    expect(palette).to_contain_text("No match.")
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()


def test_the_palette_offers_what_a_viewer_may_open(browser: Browser, pages: PagesWorld) -> None:
    users.add(pages.ws, "vera", password=PASSWORD, role="viewer", agent=AGENT)
    with visitor(browser, pages.url, size=(375, 740)) as viewer:
        page = viewer.open(TRACES)
        page.get_by_label("Name").fill("vera")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Traces")).to_be_visible()
        page.get_by_role("button", name="Go to").click()
        palette = page.get_by_role("dialog", name="Command palette")
        for word, count in (("train", 0), ("playground", 0), ("sales", 0), ("traces", 1)):
            palette.get_by_role("combobox").fill(word)
            expect(palette.get_by_role("option")).to_have_count(count)
        assert not viewer.is_too_wide()
        assert viewer.axe() == []
        viewer.check()
