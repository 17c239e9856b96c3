"""The playground under a person's hands: a chat, two versions side by side, votes that become
feedback, and what a server that fails says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.servers.scripted_upstream import (
    END,
    RESET,
    Received,
    ScriptedUpstream,
    chat_events,
    chunk,
    reply,
    stream_head,
)
from tests.waiting import until
from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.gateway_world import AGENT, serve_remote
from tests.worlds.pages_world import PagesWorld, running_pages
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.traces import show_trace
from thumbwheel.models.types import EndpointAddress

PLAYGROUND = f"/agents/{AGENT}/playground"
PHONE = (375, 740)


def answer(request: Received) -> Iterable[Any]:
    """Say which model was asked what, in pieces; `break`, `refuse` and `lose` fail."""
    if not request.body:  # which models it has, before it is deployed
        return [reply({"object": "list", "data": [{"id": "small"}, {"id": "large"}]})]
    body = json.loads(request.body)
    question = body["messages"][-1]["content"]
    if question == "refuse":
        error = {"error": {"message": "The model is out of memory."}}
        return [reply(error, status="500 Internal Server Error")]
    pieces = [chunk(event) for event in chat_events(body["model"], " heard ", question)]
    if question == "break":
        return [stream_head(), *pieces[:2], RESET]
    return [stream_head(), *pieces, END]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over an agent with two versions that answer, v0 live and v1 under no alias."""
    with (
        ScriptedUpstream(answer) as upstream,
        running_pages(tmp_path_factory.mktemp("playground")) as world,
    ):
        serve_remote(world.ws, EndpointAddress(upstream.url, "small"), alias="live")
        serve_remote(world.ws, EndpointAddress(upstream.url, "large"), alias=None)
        yield world


def say(page: Page, text: str) -> None:
    """Type a message, and send it by the keyboard."""
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def of_kind(world: PagesWorld, kind: str) -> list[dict[str, Any]]:
    return list_feedback(world.ws, AGENT, kind=kind, limit=50)


def test_a_chat_goes_on_and_is_rated(person: Visitor, pages: PagesWorld) -> None:
    before = len(of_kind(pages, "thumb"))
    page = person.open(PLAYGROUND)
    expect(page.get_by_label("Version", exact=True)).to_have_value("live")
    say(page, "first")
    replies = page.locator(".reply")
    expect(replies.first.locator(".text")).to_have_text("small heard first")
    expect(replies.first.locator("footer")).to_contain_text("v0")
    say(page, "second")
    expect(replies.nth(1).locator(".text")).to_have_text("small heard second")
    replies.nth(1).get_by_role("button", name="Bad answer").click()
    expect(page.get_by_role("status").filter(has_text="Saved: a bad answer.")).to_be_visible()
    assert person.axe() == []
    until(lambda: len(of_kind(pages, "thumb")) == before + 1)
    name = str(replies.nth(1).get_by_role("link", name="Trace").get_attribute("href"))
    trace = show_trace(pages.ws, AGENT, name.rpartition("/")[2])
    assert [message["content"] for message in trace["input"]] == [
        "first",
        "small heard first",
        "second",
    ]
    assert trace["metadata"]["playground"] == "chat"
    assert [(word["kind"], word["value"], word["rater"]) for word in trace["feedback"]] == [
        ("thumb", False, "owner")
    ]


def test_a_blind_vote_is_a_preference_in_the_order_that_was_shown(
    person: Visitor, pages: PagesWorld
) -> None:
    page = person.open(f"{PLAYGROUND}?second=v1")
    say(page, "who are you")
    replies = page.locator(".reply")
    expect(page.get_by_role("group", name="Your vote")).to_be_visible()
    left, right = (box.locator(".text").inner_text().split()[0] for box in replies.all())
    assert {left, right} == {"small", "large"}
    for box, side in zip(replies.all(), ("Left", "Right"), strict=True):
        expect(box.get_by_role("heading")).to_have_text(side)
        expect(box.locator("footer")).to_have_text("")
    assert person.axe() == []
    page.keyboard.press("2")
    number = {"small": "v0", "large": "v1"}
    outcome = page.locator(".outcome")
    better, worse = f"{number[right]} (right)", f"{number[left]} (left)"
    expect(outcome).to_have_text(f"Saved: {better} is better than {worse}.")
    expect(replies.nth(1)).to_have_class(re.compile("better"))
    expect(replies.nth(1).locator("footer")).to_contain_text(number[right])
    until(lambda: len(of_kind(pages, "preference")) == 1)
    (vote,) = of_kind(pages, "preference")
    assert vote["value"]["ranking"] == [[1], [0]]
    models = [show_trace(pages.ws, AGENT, target["target_id"]) for target in vote["targets"]]
    assert [trace["output"].split()[0] for trace in models] == [left, right]

    page.get_by_text("Add as a gold case").click()
    expect(page.get_by_label("A right answer")).to_have_value(f"{right} heard who are you")
    page.get_by_label("A right answer").fill("A shop's assistant.")
    page.get_by_role("button", name="I reviewed it").click()
    expect(page.get_by_role("status").filter(has_text="It is a gold case")).to_be_visible()
    _, cases = list_cases(pages.ws, AGENT, basis="gold")
    assert [case["reference"] for case in cases] == ["A shop's assistant."]


def test_an_open_tie_names_both(person: Visitor, pages: PagesWorld) -> None:
    before = len(of_kind(pages, "preference"))
    page = person.open(f"{PLAYGROUND}?first=v1&second=v0")
    page.get_by_label("Blind until you vote").uncheck()
    say(page, "same")
    replies = page.locator(".reply")
    expect(replies.first.get_by_role("heading")).to_have_text("v1 on remote")
    page.get_by_role("button", name="A tie").click()
    expect(page.locator(".outcome")).to_have_text("Saved: a tie between v1 (left) and v0 (right).")
    until(lambda: len(of_kind(pages, "preference")) == before + 1)
    assert of_kind(pages, "preference")[0]["value"]["ranking"] == [[0, 1]]


def test_what_fails_is_said_and_can_be_sent_again(person: Visitor) -> None:
    page = person.open(PLAYGROUND)
    for question, words in (("refuse", "out of memory"), ("break", "ended before")):
        say(page, question)
        objection = page.get_by_role("alert").last
        expect(objection).to_contain_text(words)
        expect(page.get_by_label("Message")).to_have_value(question)
    say(page, "now")
    expect(page.locator(".reply .text").last).to_have_text("small heard now")


def test_a_recorded_call_is_asked_again(person: Visitor) -> None:
    page = person.open(f"/agents/{AGENT}/traces/order-42")
    page.get_by_role("link", name="Ask again in the playground").click()
    expect(page.get_by_label("Message")).to_have_value("Where is my order 42?")
    expect(page.locator("#system")).to_have_value("You help customers of a shop.")
    expect(page.get_by_role("main")).to_contain_text("It has **shipped**.")
    page.get_by_label("Message").press("Enter")
    expect(page.locator(".reply .text")).to_have_text("small heard Where is my order 42?")


def test_an_agent_without_a_deployment_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with (
        running_pages(tmp_path) as world,
        visitor(browser, world.url, size=PHONE, code=world.code) as person,
    ):
        page = person.open(PLAYGROUND)
        expect(page.locator(".empty")).to_contain_text("No version can be asked yet.")
        assert person.axe() == []
        person.check()


def test_it_fits_a_phone(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, "dark", PHONE, pages.code) as person:
        page = person.open(f"{PLAYGROUND}?second=v1")
        say(page, "a question that is long enough for two lines of a telephone")
        expect(page.get_by_role("group", name="Your vote")).to_be_visible()
        assert not person.is_too_wide()
        assert person.axe() == []
        person.check()
