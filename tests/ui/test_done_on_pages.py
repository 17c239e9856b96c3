"""What a page names is done on a page: no page answers with a command, unknown addresses are pages,
provider keys and workers are set where they are missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.servers.thumbwheel_server import running as served
from tests.ui.page_urls import URLS
from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import PagesWorld
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.core.config import Home
from thumbwheel.core.secret_store import SecretStore

COMMAND = re.compile(
    r"\b(?:thumbwheel [a-z]+|pip install|curl |export [A-Z_]+=)|(?<!\S)--[a-z]{2,}"
)
"""What is typed into a terminal."""
OUTSIDE_SNIPPETS = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const snippet of main.querySelectorAll(".snippet")) {
    if (snippet.nextElementSibling?.textContent === "Copy") snippet.remove();
  }
  return main.textContent;
}"""
"""The texts of a page, hidden ones too, without the snippets that have a button to copy them."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page."""
    with running_operations(tmp_path_factory.mktemp("operations")) as world:
        yield world


def test_no_page_answers_with_a_command(person: Visitor, pages: PagesWorld) -> None:
    commands = {}
    for name, url in URLS.items():
        page = person.open(url.format(**pages.parts))
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        if matches := COMMAND.findall(page.evaluate(OUTSIDE_SNIPPETS)):
            commands[name] = matches
    assert commands == {}


def test_the_snippet_of_an_app_has_a_button_to_copy_it(person: Visitor, pages: PagesWorld) -> None:
    page = person.open("/start")
    page.evaluate("document.getElementById('record-next').hidden = false")
    person.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=pages.url)
    page.locator("#record-next .copy").first.click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("export OPENAI_BASE_URL=")


def test_an_unknown_address_is_a_page(browser: Browser, person: Visitor, pages: PagesWorld) -> None:
    for path, name in (
        ("/nowhere", "nowhere"),
        ("/agents/support/nothing", "nothing"),
        ("/agents/nobody/traces", "nobody"),
    ):
        answer = person.page.goto(path)
        assert answer is not None and answer.status == 404
        expect(person.page.get_by_role("navigation", name="Pages")).to_be_visible()
        expect(person.page.locator("main")).to_contain_text(name)
        assert person.axe() == []
    data = person.page.request.get(f"{pages.url}/api/nowhere")
    assert data.status == 404 and data.json()["title"] == "Not Found"
    with visitor(browser, pages.url) as stranger:
        stranger.open("/nowhere")
        expect(stranger.page.get_by_role("button", name="Log in")).to_be_visible()


def test_the_button_of_a_message_is_one_line(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, size=(320, 640), code=pages.code) as person:
        page = person.open("/keys")
        script = page.locator("script[src*='app.js']").get_attribute("src") or ""
        module = script.replace("app.js", "messages.js")
        page.evaluate(
            "(module) => import(module).then(({ say }) => say('a'.repeat(400), 'bad'))", module
        )
        close = page.get_by_role("button", name="Close", exact=True)
        expect(close).to_be_visible()
        box = close.bounding_box()
        assert box is not None and box["height"] < 45
        assert not person.is_too_wide()


def test_a_provider_key_is_stored_and_never_shown(person: Visitor, pages: PagesWorld) -> None:
    secrets = SecretStore(pages.ws.home.secrets)
    page = person.open("/secrets")
    page.get_by_label("Name").fill("PROVIDER_KEY")
    page.get_by_label("Key", exact=True).fill("schlüssel")
    page.get_by_role("button", name="Store the key").click()
    expect(page.locator("#f-value-objection")).to_contain_text(
        "it is empty, or contains characters"
    )
    page.get_by_label("Key", exact=True).fill("sk-very-secret")
    with page.expect_navigation():
        page.get_by_role("button", name="Store the key").click()
    row = page.get_by_role("row", name="PROVIDER_KEY")
    expect(row).to_contain_text("stored")
    assert "sk-very-secret" not in page.content()
    assert secrets.get("PROVIDER_KEY") == "sk-very-secret"
    row.get_by_role("button", name="Remove").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Remove PROVIDER_KEY").click()
    assert secrets.get("PROVIDER_KEY") is None


@pytest.mark.slow
def test_workers_are_started_and_stopped(browser: Browser, tmp_path: Path) -> None:
    """The server and its workers are processes of their own."""
    with served(tmp_path / "home") as server:
        code = LoginCodes(Home(tmp_path / "home").login_codes).make()
        with visitor(browser, server.url, code=code) as person:
            page = person.open("/jobs")
            expect(page.get_by_text("no worker is alive")).to_be_visible()
            for count, words in (("2", "2 workers alive"), ("1", "1 worker alive")):
                page.get_by_label("Processes that do jobs").fill(count)
                with page.expect_navigation():
                    page.locator("form.inline button").click()
                for _ in range(120):
                    if page.get_by_text(words).count():
                        break
                    page.wait_for_timeout(500)
                    page.reload()
                expect(page.get_by_text(words)).to_be_visible()
                if not page.get_by_label("Processes that do jobs").is_visible():
                    page.get_by_text("Workers of this server").click()
            person.check()
