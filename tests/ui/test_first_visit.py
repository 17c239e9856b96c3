"""An empty home leads to a rated answer: by recording an app, by a file, by the example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.servers.thumbwheel_server import running as served
from tests.waiting import until
from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.pages_world import PagesWorld, running_pages
from thumbwheel.capture.feedback import list_feedback


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """An empty home."""
    with running_pages(tmp_path_factory.mktemp("first"), lines=()) as world:
        yield world


@pytest.fixture
def stranger(browser: Browser, pages: PagesWorld) -> Iterator[Visitor]:
    with visitor(browser, pages.url, code=pages.code) as stranger:
        yield stranger
        stranger.check()


def rate_down(page: Page) -> None:
    page.get_by_role("button", name="Bad").click()
    expect(page.get_by_text("thumb down")).to_be_visible()


def test_an_empty_home_leads_to_a_recorded_and_rated_answer(
    stranger: Visitor, pages: PagesWorld
) -> None:
    with ScriptedUpstream() as upstream:
        page = stranger.open("/")
        expect(page.get_by_role("heading", level=1)).to_have_text("Your first rated answer")
        assert stranger.axe() == []
        form = page.locator("#record-form")
        form.get_by_label("Name of the app").fill("desk")
        form.get_by_label("Address of its model today").fill(upstream.url)
        form.get_by_label("Model", exact=True).fill("large")
        form.get_by_role("button", name="Connect").click()
        expect(page.locator("#record-next pre").first).to_have_text(
            f"export OPENAI_BASE_URL={pages.url}/a/desk/v1"
        )
        body = {"model": "desk", "messages": [{"role": "user", "content": "Is it open?"}]}
        answer = httpx2.post(f"{pages.url}/a/desk/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200
        page.wait_for_url("**/agents/desk/traces/trc_*")
        expect(page.get_by_role("heading", level=1)).to_have_text("Is it open?")
        rate_down(page)
    (judgement,) = list_feedback(pages.ws, "desk")
    assert (judgement["kind"], judgement["value"]) == ("thumb", False)


def test_a_file_is_imported_and_its_answer_rated(
    stranger: Visitor, pages: PagesWorld, tmp_path: Path
) -> None:
    file = tmp_path / "my ratings (1).csv"
    file.write_text("question,answer,rating\nWhere is it?,In room 3.,5\n")
    page = stranger.open("/start")
    page.get_by_role("link", name="Choose a file").click()
    page.get_by_label("Name of the app").fill("files")
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Import 1 row").click()
    page.wait_for_url("**/agents/files/traces")
    page.get_by_role("link", name="Where is it?").click()
    rate_down(page)
    assert {word["kind"] for word in list_feedback(pages.ws, "files")} == {"rating", "thumb"}


def test_the_example_is_loaded_by_one_click(stranger: Visitor, pages: PagesWorld) -> None:
    page = stranger.open("/start")
    page.get_by_role("button", name="Load the example").click()
    page.wait_for_url("**/agents/example/*")
    page = stranger.open("/agents/example/traces")
    assert page.locator("#traces tr").count() == 12
    page.get_by_role("link", name="Can I pay in instalments?").click()
    rate_down(page)
    page.get_by_role("button", name="Take back").click()
    page.get_by_role("button", name="Take it back").click()
    expect(page.get_by_text("This answer has no feedback yet.")).to_be_visible()


def test_open_shows_the_pages_logged_in(browser: Browser, tmp_path: Path) -> None:
    """The browser is a script that notes the address."""
    address, script = tmp_path / "address", tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {address}.new && mv {address}.new {address}\n')
    script.chmod(0o755)
    with served(tmp_path / "home", {"BROWSER": str(script)}, options=["--open"]) as server:
        until(address.exists, seconds=120)
        with visitor(browser, server.url) as person:
            page = person.open(address.read_text())
            expect(page.get_by_role("heading", level=1)).to_have_text("Your first rated answer")
            assert "token" not in page.url
            person.check()
