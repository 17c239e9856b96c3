"""A replay under a person's hands: chosen in the list of traces, answered by a version that is not
deployed, voted on side by side, and taken away as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.servers.scripted_upstream import Received, ScriptedUpstream, chat_reply, reply
from tests.waiting import until
from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.gateway_world import AGENT
from tests.worlds.pages_world import PagesWorld, running_pages
from thumbwheel.access import users
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress
from thumbwheel.review.queues import require_queue

TRACES = f"/agents/{AGENT}/traces"
PHONE = (375, 740)
PASSWORD = "correct horse battery"


def answer(request: Received) -> Iterable[Any]:
    """Answer every question by its own words."""
    if not request.body:
        return [reply({"object": "list", "data": [{"id": "candidate"}]})]
    return [reply(chat_reply(f"anew: {json.loads(request.body)['messages'][-1]['content']}"))]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over an agent with a version that is deployed nowhere."""
    with (
        ScriptedUpstream(answer) as upstream,
        running_pages(tmp_path_factory.mktemp("replay")) as world,
    ):
        versions.add_endpoint(world.ws, AGENT, EndpointAddress(upstream.url, "candidate"))
        yield world


def replay_selected(page: Page, *texts: str) -> None:
    """Select traces by their question, and let the version answer them."""
    for text in texts:
        # the answers of earlier replays are newer
        page.get_by_role("checkbox", name=f"Select {text}").last.check()
    page.locator("#bulk").get_by_role("button", name="Answer again").click()
    page.wait_for_url("**/replays/**")


def preferences(world: PagesWorld) -> list[dict[str, Any]]:
    return list_feedback(world.ws, AGENT, kind="preference", limit=50)


def test_selected_traces_are_answered_again_and_voted_on_blind(
    person: Visitor, pages: PagesWorld
) -> None:
    page = person.open(TRACES)
    replay_selected(page, "Can I pay", "My coupon")
    expect(page.get_by_role("main")).to_contain_text("2 recorded questions, answered again by v0")
    pairs = page.locator(".pair")
    expect(pairs).to_have_count(2)
    sides = pairs.first.locator("[data-side]")
    for side, name in zip(sides.all(), ("Left", "Right"), strict=True):
        expect(side.locator("p.small")).to_have_text(name)
    assert pairs.first.locator("ins, del").count() == 0
    assert person.axe() == []

    # the first by a key, for the new answer; the second by a click, as a tie
    texts = [side.locator(".said").inner_text() for side in sides.all()]
    (new,) = (number for number, text in enumerate(texts) if text.startswith("anew:"))
    page.keyboard.press(str(new + 1))
    outcome = pairs.first.locator(".outcome")
    expect(outcome).to_contain_text("Saved: v0 is better than recorded, shop-7b.")
    expect(sides.nth(new).locator("p.small")).to_have_text("v0")
    expect(page.locator("#votes-replayed")).to_have_text("1")
    expect(pairs.nth(1).get_by_role("button", name="The left one is better")).to_be_focused()
    pairs.nth(1).get_by_role("button", name="A tie").click()
    expect(page.locator("#votes-tie")).to_have_text("1")
    until(lambda: len(preferences(pages)) == 2)
    tie, vote = preferences(pages)
    assert vote["value"]["ranking"] == [[new], [1 - new]]
    assert tie["value"]["ranking"] == [[0, 1]]
    shown = [show_trace(pages.ws, AGENT, target["target_id"]) for target in vote["targets"]]
    assert [trace["output"] for trace in shown] == texts
    assert shown[0]["input"] == shown[1]["input"]

    page.reload()
    expect(page.locator("#votes-replayed")).to_have_text("1")
    expect(page.get_by_role("button", name="A tie")).to_have_count(0)
    assert pairs.first.locator("ins").count() > 0
    page.get_by_label("Show", exact=True).select_option("open")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".empty")).to_contain_text("No answer is like that.")


def test_what_the_filters_match_is_answered_again_and_downloaded(person: Visitor) -> None:
    page = person.open(f"{TRACES}?text=Norway&judged=good&rated=yes&since=2026-01-01")
    page.locator("#replay summary").click()
    assert person.axe() == []
    page.get_by_label("Questions, at most").fill("3")
    page.locator("#replay").get_by_role("button", name="Answer again").click()
    page.wait_for_url("**/replays/**")
    expect(page.locator(".pair")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    (row,) = csv.DictReader(Path(download.value.path()).read_text(encoding="utf-8").splitlines())
    assert row["question"] == "Do you ship to Norway, and what does it cost?"
    assert row["replayed_answer"] == f"anew: {row['question']}"
    assert (row["version"], row["recorded_by"], row["equal"]) == ("v0", "shop-7b", "no")


def test_the_names_can_be_shown_before_the_vote(person: Visitor) -> None:
    page = person.open(TRACES)
    replay_selected(page, "Cancel my subscription")
    page.get_by_label("Names").select_option("shown")
    page.get_by_role("button", name="Show").click()
    sides = page.locator("[data-side]")
    expect(sides.first.locator("p.small")).to_have_text("recorded, shop-7b")
    expect(sides.nth(1).locator("p.small")).to_have_text("v0")
    assert page.locator("ins").count() > 0
    expect(page.get_by_role("button", name="A tie")).to_be_visible()

    # a key that is pressed in a dialog votes nothing behind it
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("The left answer is better")
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    expect(page.locator(".outcome")).to_contain_text("a tie between recorded, shop-7b and v0")
    expect(page.locator("#votes-recorded")).to_have_text("0")


def test_a_vote_that_is_refused_can_be_given_again(person: Visitor, pages: PagesWorld) -> None:
    before = len(preferences(pages))
    page = person.open(TRACES)
    replay_selected(page, "The zip of the jacket")
    page.route("**/api/feedback", lambda route: route.abort(), times=1)
    button = page.get_by_role("button", name="A tie")
    button.click()
    expect(page.get_by_text("The server cannot be reached")).to_be_visible()
    expect(button).to_be_enabled()
    button.click()
    expect(page.locator(".outcome")).to_contain_text("a tie between")
    until(lambda: len(preferences(pages)) == before + 1)


def test_a_new_queue_takes_answers_of_replays_if_a_person_asks_for_them(
    person: Visitor, pages: PagesWorld
) -> None:
    page = person.open(TRACES)
    replay_selected(page, "Can I pay")
    agent = Agent.named(AGENT)
    for name, takes_replays in (("recorded", False), ("everything", True)):
        page = person.open(f"/agents/{AGENT}/rate")
        page.get_by_text("New queue").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_text("Which answers").click()
        page.get_by_label("Also answers of replays").set_checked(takes_replays)
        page.get_by_role("button", name="Create the queue").click()
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    recorded, everything = (
        require_queue(pages.ws, agent, name).items for name in ("recorded", "everything")
    )
    traces = list_traces(pages.ws, AGENT, limit=200).traces
    replayed = sum(trace.source == "replay" for trace in traces)
    assert replayed > 0 and everything == recorded + replayed


def test_a_reader_sees_names_and_no_votes_and_starts_nothing(
    browser: Browser, pages: PagesWorld, person: Visitor
) -> None:
    page = person.open(TRACES)
    replay_selected(page, "Can I pay")
    address = page.url.removeprefix(pages.url)
    users.add(pages.ws, "vera", password=PASSWORD, role="viewer", agent=AGENT)
    with visitor(browser, pages.url) as reader:
        shown = reader.open(address)
        shown.get_by_label("Name").fill("vera")
        shown.get_by_label("Password").fill(PASSWORD)
        shown.get_by_role("button", name="Log in").click()
        expect(shown.locator(".pair")).to_have_count(1)
        expect(shown.locator("[data-vote]")).to_have_count(0)
        expect(shown.locator("#names")).to_have_count(0)
        listed = reader.open(TRACES)
        expect(listed.locator("#replay")).to_have_count(0)


def test_it_fits_a_phone(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, "dark", PHONE, pages.code) as person:
        page = person.open(TRACES)
        replay_selected(page, "Can I pay", "Do you ship")
        assert not person.is_too_wide()
        assert person.axe() == []
        person.check()
