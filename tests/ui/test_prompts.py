"""The page of system prompts: a recorded prompt is named, its next version is written, and traces
are narrowed to it."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.worlds.browser_world import visitor
from tests.worlds.pages_world import PagesWorld

PAGES = "/agents/support"


def test_a_prompt_is_named_edited_and_looked_for(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, size=(375, 740), code=pages.code) as person:
        page = person.open(f"{PAGES}/prompts")
        table = page.get_by_role("table", name="Prompt versions")
        expect(table).to_contain_text("You help customers of a shop.")
        page.get_by_role("link", name="Edit", exact=False).first.click()
        page.get_by_label("Name").fill("shop")
        with page.expect_navigation():
            page.get_by_label("Name").press("Enter")
        expect(table).to_contain_text("shop v1")
        assert person.axe() == [] and not person.is_too_wide()
        page.get_by_role("link", name="Edit shop v1").click()
        page.get_by_label("System prompt").fill("You help customers of a shop, briefly.")
        page.get_by_label("Note").fill("shorter")
        with page.expect_navigation():
            page.get_by_role("button", name="Store").click()
        expect(table).to_contain_text("shop v2")
        page.get_by_role("link", name="1 traces with shop v1").click()
        expect(page.locator("#traces tr")).to_have_count(1)
        page.locator("#traces .what a").click()
        expect(page.get_by_role("link", name="shop v1")).to_be_visible()
        person.check()
