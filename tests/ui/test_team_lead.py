"""A team lead's whole story without a terminal: import a table of ratings, rate answers, make gold,
see a model train, decide on it, and be told by a signed webhook. Server, worker and receiver are
processes of their own or real servers; the model is small, and learns for real."""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from tests.models.tiny_models import tiny_base
from tests.servers.notice_receivers import HttpReceiver, http_receiver
from tests.servers.thumbwheel_server import ThumbwheelServer
from tests.servers.thumbwheel_server import running as served
from tests.ui.test_operations import confirm
from tests.waiting import until
from tests.worlds.browser_world import WIDE, Visitor, visitor
from tests.worlds.gateway_world import opened_home
from thumbwheel.access import users
from thumbwheel.deploy import processes

PLACES = {"fox": "den", "dog": "yard"}
AGENT = "animals"
PAGES = f"/agents/{AGENT}"
PASSWORD = "correct horse battery staple"
SECRET = "a secret of the receiver"
RATED = 60
"""Questions in the table that people rated already."""
UNRATED = 6
"""Questions that are rated on the bench."""
GOLD = 60
PATIENCE = 600_000
"""Milliseconds that a training or a deployment may take on a busy machine."""


def question(number: int) -> tuple[str, str]:
    """Return a question and its right answer."""
    word = ("fox", "dog")[number % 2]
    return f"{word} {number}", PLACES[word]


def write_table(path: Path, headings: list[str], rows: list[list[str]]) -> Path:
    """Write a table as a spreadsheet of a German office exports it."""
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([headings, *rows])
    return path


def ratings(path: Path) -> Path:
    """Write answers of which people rated all but the last few. Every tenth answer is wrong."""
    rows = []
    for number in range(RATED + UNRATED):
        prompt, answer = question(number)
        is_wrong = number % 10 == 9
        verdict = "" if number >= RATED else "schlecht" if is_wrong else "gut"
        rows.append([prompt, "roof" if is_wrong else answer, verdict, "Ada"])
    return write_table(path, ["Frage", "Antwort", "Urteil", "von"], rows)


def reviewed(path: Path) -> Path:
    """Write questions with their right answers, which the team lead has looked through."""
    rows = [[*question(1000 + number)] for number in range(GOLD)]
    return write_table(path, ["question", "expected"], rows)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture
def server(tmp_path: Path, receiver: HttpReceiver) -> Iterator[ThumbwheelServer]:
    """Start what an administrator set up: a user, a channel of notices, and a base model."""
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    tiny_base(tmp_path / "small", initializer_range=0.1, **sizes)
    with opened_home(tmp_path / "home") as ws:
        users.add(ws, "lea", password=PASSWORD, role="owner")
        ws.home.bases.mkdir()
        (ws.home.bases / "small").symlink_to(tmp_path / "small")
    channel = {"kind": "webhook", "url": receiver.url, "secret": "LEADS"}
    address = receiver.url.removeprefix("http://")
    settings = {"notify": {"channels": {"leads": channel}, "private": [address]}}
    config = tmp_path / "thumbwheel.yaml"
    config.write_text(yaml.safe_dump(settings))
    with served(tmp_path / "home", config=config) as server:
        yield server
    for record in (tmp_path / "home").rglob(processes.RECORD):
        processes.stop(record.parent)  # models outlive their server


@pytest.mark.slow
def test_a_team_lead_decides_without_a_terminal(
    browser: Browser, server: ThumbwheelServer, receiver: HttpReceiver, tmp_path: Path
) -> None:
    with visitor(browser, server.url, size=WIDE) as person:
        page = log_in(person)
        try_the_channel(page, receiver)
        start_a_worker(page)
        import_ratings(page, ratings(tmp_path / "urteile.csv"))
        rate_the_rest(page)
        make_gold(page, reviewed(tmp_path / "geprüft.csv"))
        prepare_the_loop(page)
        see_it_train(page)
        try_as_canary(page, receiver)
        go_live(page, receiver)
        ask_it(page)
        person.check()


def log_in(person: Visitor) -> Page:
    person.context.set_default_timeout(PATIENCE)
    person.context.request.get("/login")
    page = person.open("/")
    page.get_by_label("Name").fill("lea")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Your first rated answer")
    return page


def go_to(page: Page, name: str) -> None:
    """Go to a page by the menu."""
    menu = page.get_by_role("navigation", name="Pages")
    menu.get_by_role("link", name=name, exact=True).click()


def try_the_channel(page: Page, receiver: HttpReceiver) -> None:
    """Store what notices are signed with, and send a test."""
    page.goto("/settings?section=notify")
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("status")).to_contain_text("LEADS")
    assert receiver.received == []
    go_to(page, "Provider keys")
    page.get_by_label("Name").fill("LEADS")
    page.get_by_label("Key", exact=True).fill(SECRET)
    with page.expect_navigation():
        page.get_by_role("button", name="Store the key").click()
    page.goto("/settings?section=notify")
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("status")).to_contain_text("leads took a test notice")
    assert [notice["title"] for notice in notices(receiver)] == ["Thumbwheel: a test"]


def notices(receiver: HttpReceiver) -> list[dict[str, Any]]:
    """Return the notices that the receiver took, each with a right and fresh signature."""
    verified = []
    for headers, body in receiver.received:
        timestamp = headers["x-thumbwheel-timestamp"]
        signed = timestamp.encode() + b"." + body
        expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(headers["x-thumbwheel-signature"], f"v1={expected}")
        assert abs(time.time() - int(timestamp)) < 3600
        verified.append(json.loads(body))
    return verified


def shown(page: Page, locator: Locator) -> None:
    """Load the page again until the element is there."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not locator.count():
        assert time.monotonic() < deadline, "it did not come in time"
        page.wait_for_timeout(500)
        page.reload()
    expect(locator.first).to_be_visible()


def start_a_worker(page: Page) -> None:
    go_to(page, "Jobs")
    with page.expect_navigation():
        page.get_by_role("button", name="Start", exact=True).click()
    shown(page, page.get_by_text("1 worker alive"))


def import_ratings(page: Page, table: Path) -> None:
    go_to(page, "Import")
    page.get_by_label("Name of the app").fill(AGENT)
    page.get_by_label("File", exact=True).set_input_files(table)
    expect(page.get_by_label("Frage")).to_have_value("prompt")
    expect(page.get_by_label("Antwort")).to_have_value("response")
    page.get_by_label("Urteil").select_option("thumb")
    page.get_by_label("von").select_option("rater")
    page.get_by_label("Good is").select_option("gut")
    expect(page.locator("[data-count=good] b")).to_have_text(str(RATED * 9 // 10))
    expect(page.locator("[data-count=bad] b")).to_have_text(str(RATED // 10))
    page.get_by_role("button", name=f"Import {RATED + UNRATED} rows").click()
    wait_for_job(page)
    page.get_by_role("link", name="Open the answers").click()
    page.wait_for_url(f"**{PAGES}/traces")


def wait_for_job(page: Page) -> None:
    """Wait on the page of a job until it has succeeded."""
    page.wait_for_url("**/jobs/job_*")
    expect(page.locator(".badge", has_text="succeeded")).to_be_visible(timeout=PATIENCE)


def rate_the_rest(page: Page) -> None:
    """Rate on the bench, by keys, what nobody has rated."""
    go_to(page, "Rate")
    page.get_by_text("New queue").click()
    page.get_by_label("Name").fill("rest")
    page.get_by_text("Which answers").click()
    page.get_by_label("Feedback", exact=True).select_option("not rated")
    with page.expect_navigation():
        page.get_by_role("button", name="Create the queue").click()
    page.get_by_role("link", name="Rate in rest").click()
    answer = page.locator("#item .answers .text")
    for rated in range(UNRATED):
        expect(page.locator("#count")).to_contain_text(f"{rated} by you" if rated else "of 6")
        is_wrong = answer.inner_text() == "roof"
        page.keyboard.press("n" if is_wrong else "y")
    expect(page.locator("#item .empty")).to_contain_text("That was all")
    expect(page.locator("#pending")).to_have_attribute("data-count", "0")


def make_gold(page: Page, table: Path) -> None:
    """Upload reviewed questions, and add one by hand."""
    go_to(page, "Cases")
    page.get_by_role("link", name="Upload a file").click()
    expect(page.get_by_label("I reviewed the test cases")).to_be_checked()
    page.get_by_label("File", exact=True).set_input_files(table)
    expect(page.locator("[data-count=cases] b")).to_have_text(str(GOLD))
    page.get_by_role("button", name=f"Import {GOLD} rows").click()
    wait_for_job(page)
    go_to(page, "Cases")
    page.get_by_label("Input of the app").fill("fox 2000")
    page.get_by_label("A right answer").fill(PLACES["fox"])
    page.get_by_role("button", name="I reviewed it").click()
    page.wait_for_url("**/cases?basis=gold")
    expect(page.locator(".figures")).to_contain_text(f"{GOLD + 1} gold")


def prepare_the_loop(page: Page) -> None:
    """Set how a random model trains and is judged, which has no general skill to lose, and enable
    the loop."""
    page.goto("/settings?section=train.sft")
    for label, value in (("Learning rate", "0.01"), ("Max steps", "60"), ("Probe prompts", "0")):
        page.get_by_label(label, exact=True).fill(value)
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    page.goto(f"{PAGES}/gate")
    page.get_by_text("All settings of the gate").click()
    page.get_by_label("Margin anchors").fill("9")
    page.get_by_label("Max growth").fill("99")
    with page.expect_navigation():
        page.get_by_role("button", name="Declare the gate").click()
    go_to(page, "Loop")
    page.get_by_label("Base").select_option("small")
    page.get_by_label("Deploy", exact=True).fill("embedded")
    page.get_by_text("All settings of the loop").click()
    page.get_by_label("Methods").fill("sft")
    with page.expect_navigation():
        page.get_by_role("button", name="Enable the loop").click()
    expect(page.get_by_text("The loop is enabled.")).to_be_visible()


def see_it_train(page: Page) -> None:
    go_to(page, "Runs")
    shown(page, page.get_by_role("row", name="sft small").filter(has_text="finished"))


def card_of_the_notice(page: Page, receiver: HttpReceiver, count: int) -> Locator:
    """Wait for the notice with this number, and open the card that it is about."""
    until(lambda: len(receiver.received) == count, seconds=PATIENCE / 1000)
    notice = notices(receiver)[-1]
    assert (notice["kind"], notice["agent"]) == ("decision", AGENT)
    assert notice["title"] == f"{AGENT}: Make v1 live?"
    page.goto(notice["path"])
    card = page.locator(".decision")
    expect(card.get_by_role("heading")).to_have_text("Make v1 live?")
    assert notice["text"] == card.locator(".lead").inner_text()
    return card


def answer(page: Page, card: Locator, word: str, note: str) -> None:
    """Answer a card with a note, and wait until its step was taken."""
    card.get_by_label("Note").fill(note)
    card.get_by_role("button", name=word, exact=True).click()
    with page.expect_navigation(timeout=PATIENCE):
        confirm(page, word)


def try_as_canary(page: Page, receiver: HttpReceiver) -> None:
    """Be told that a decision waits, read its card, and let the team try the version first."""
    card = card_of_the_notice(page, receiver, 2)
    expect(card.locator(".lead")).to_contain_text("more test questions right")
    expect(card.locator(".changed")).to_have_count(5)
    answer(page, card, "Canary", "the team tries it first")
    shown(page, page.locator(".live", has_text="canary v1"))


def go_live(page: Page, receiver: HttpReceiver) -> None:
    """Be told that it is asked once more, and go live."""
    card = card_of_the_notice(page, receiver, 3)
    expect(card).to_contain_text("v1 is already the canary.")
    answer(page, card, "Go live", "the answers name the right place now")
    shown(page, page.locator(".live", has_text="live v1"))
    expect(page.get_by_role("heading", name="Nothing needs attention")).to_be_visible()
    go_to(page, "Loop")
    for note in ("the team tries it first", "the answers name the right place now"):
        expect(page.get_by_role("listitem").filter(has_text=note)).to_contain_text("approved lea")


def ask_it(page: Page) -> None:
    go_to(page, "Playground")
    page.get_by_text("Settings of the request").click()
    page.get_by_label("Temperature").fill("0")  # a drawn answer of a model this small may be any
    page.get_by_label("Message").fill("fox 3000")
    page.get_by_label("Message").press("Enter")
    expect(page.locator(".reply .text")).to_have_text(PLACES["fox"])
