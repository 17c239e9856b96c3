"""The home page: what waits comes first, a decision is one card with its answers side by side, and
whoever may not decide reads who may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import PagesWorld
from thumbwheel.access import users
from thumbwheel.loop.inbox import decisions
from thumbwheel.models.types import Agent

AGENT = Agent.named("support")
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page."""
    with running_operations(tmp_path_factory.mktemp("operations")) as world:
        for name, role in (("lea", "approver"), ("vic", "viewer")):
            users.add(world.ws, name, password=PASSWORD, role=role, agent="support")
        yield world


def logged_in(person: Visitor, name: str) -> Page:
    page = person.open("/")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("main h1")).to_have_text("support")
    return page


def test_the_only_agent_is_the_home_page_and_what_waits_is_counted(person: Visitor) -> None:
    page = person.open("/")
    expect(page).to_have_title("(3) support – Thumbwheel")
    expect(page.locator("main h2").first).to_have_text("Needs attention")
    menu = page.get_by_role("navigation", name="Pages")
    expect(menu.get_by_role("link", name="Loop")).to_contain_text("2")
    expect(menu.get_by_role("link", name="Rate")).to_contain_text("1")
    expect(page.get_by_text("60 thumbs of visitor-7 are held back")).to_be_visible()
    chart = page.get_by_role("img", name="Share of good answers by week and version")
    expect(chart).to_have_attribute("aria-label", re.compile("of 160|v1: .* rated answers good"))
    expect(page.locator(".tiles")).to_contain_text("answers")
    expect(page.locator(".live")).to_contain_text("live v0")


def test_a_decision_is_one_card_in_a_readers_words(person: Visitor) -> None:
    card = person.open("/agents/support").locator(".decision")
    expect(card.get_by_role("heading")).to_have_text("Make v3 live?")
    summary = "v3 answers 63 of 100 more test questions right; 7 checks had no data."
    expect(card.locator(".lead")).to_have_text(summary)
    expect(card.locator(".changed")).to_have_count(5)
    expect(card.locator(".changed del").first).to_have_text("old")
    expect(card.locator(".changed ins").first).to_have_text("new")
    card.get_by_text("7 checks that nothing got worse, all of them without data").click()
    expect(card.locator(".checks .badge")).to_have_text(["no data"] * 7)
    expect(card.locator(".checks .badge.good")).to_have_count(0)


def test_figures_are_for_people(person: Visitor, pages: PagesWorld) -> None:
    """What was not measured is one line, counts have the right number, nothing is said twice."""
    page = person.open("/agents/support/evaluations/v3")
    expect(page.locator("main p").first).to_contain_text("evaluated on these rows once")
    expect(page.locator("main p").first).not_to_contain_text("points points")
    verdict = page.locator(".verdict")
    expect(verdict.get_by_role("listitem")).to_have_count(2)
    expect(verdict).to_contain_text("7 guard metrics were not measured: too little data")
    graph = person.open("/agents/support/models/v3").locator("svg").first
    expect(graph).to_contain_text("of 1 user")
    page = person.open("/agents/support/cases")
    header = page.get_by_role("table", name="Cases, newest first").get_by_role("columnheader")
    expect(header.first).to_have_text("Input")
    page = person.open(f"/agents/support/datasets/{pages.parts['dataset']}")
    health = page.get_by_role("table", name="Health")
    expect(health.get_by_role("rowheader", name="control tokens")).to_be_visible()
    expect(health.get_by_role("rowheader", name="personal data")).to_be_visible()
    page = person.open("/settings?section=access")
    expect(page.get_by_role("row", name="provider")).to_contain_text("not set")


def test_a_viewer_reads_who_may_decide(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url) as person:
        page = logged_in(person, "vic")
        expect(page).to_have_title("support – Thumbwheel")
        card = page.locator(".decision")
        expect(card).to_contain_text("Approvers and owners of support may decide")
        expect(card.get_by_role("button")).to_have_count(0)
        expect(page.get_by_text("Editors and owners can release it.")).to_be_visible()
        person.check()


def test_an_approver_answers_with_a_note_and_for_live_or_canary(
    browser: Browser, pages: PagesWorld
) -> None:
    sent: list[tuple[str, Any]] = []

    def answer(route: Route) -> None:
        sent.append((route.request.url.rpartition("/")[2], route.request.post_data_json))
        route.fulfill(json={})

    with visitor(browser, pages.url) as person:
        page = logged_in(person, "lea")
        expect(page).to_have_title("(2) support – Thumbwheel")
        page.route("**/approval?wait=30", answer)
        for word, alias in (("Go live", "live"), ("Canary", "canary")):
            page.get_by_label("Note").fill(f"for {alias}")
            page.get_by_role("button", name=word, exact=True).click()
            with page.expect_navigation():
                page.get_by_role("dialog").get_by_role("button", name=word, exact=True).click()
        assert [body for _, body in sent] == [
            {"by": "lea", "reason": f"for {alias}", "alias": alias} for alias in ("live", "canary")
        ]
        page.get_by_label("Note").fill("the tone is off")
        page.get_by_role("button", name="Decline").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_have_text("Decline v3?")
        with page.expect_navigation():
            dialog.get_by_role("button", name="Decline").click()
        expect(page.locator(".decision")).to_have_count(0)
        expect(page).to_have_title("(1) support – Thumbwheel")
        person.check()
    (declined,) = decisions(pages.ws, AGENT, every=True)
    assert (declined.answered_by, declined.reason) == ("lea", "the tone is off")
