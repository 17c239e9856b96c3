"""The pages of traces: filters, paging, the parts of a trace, feedback in line, lineage."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.pages_world import AGENT, PagesWorld
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.traces import list_traces
from thumbwheel.models.versions import require_agent
from thumbwheel.review.queues import QueueSelection, create, require_queue
from thumbwheel.review.types import QueueConfig

LIST = f"/agents/{AGENT}/traces"


@pytest.mark.parametrize(
    ("query", "questions"),
    [
        ("text=ORDER+42", ["Where is my order 42?"]),
        ("session=chat-1", ["Do you ship to Norway", "My coupon WINTER"]),
        ("subject=customer-17", ["Where is my order 42?"]),
        ("model=shop-7b-q8", ["Where is my order 42?"]),
        ("rated=no", ["Rewrite in a friendly tone."]),
        ("judged=corrected", ["Where is my order 42?"]),
        ("status=error", []),
        ("until=2020-01-01", []),
    ],
)
def test_filters(person: Visitor, query: str, questions: list[str]) -> None:
    page = person.open(f"{LIST}?{query}")
    links = page.locator("#traces .what a").all_inner_texts()
    assert len(links) == len(questions), links
    for link, question in zip(sorted(links), sorted(questions), strict=True):
        assert link.startswith(question)


def test_filters_are_typed_and_taken_away(person: Visitor) -> None:
    page = person.open(LIST)
    page.get_by_label("Text").fill("norway")
    page.get_by_label("Text").press("Enter")
    expect(page.locator("#traces tr")).to_have_count(1)
    expect(page.locator("#traces mark").first).to_have_text(re.compile("norway", re.IGNORECASE))
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("#traces tr")).to_have_count(8)
    page.go_back()
    expect(page.get_by_label("Text")).to_have_value("norway")


def test_an_address_that_means_nothing_says_so(person: Visitor) -> None:
    for path, words in (
        (f"{LIST}?version=first", "version"),
        (f"{LIST}?colour=red", "colour"),
        (f"{LIST}?after=%21%21", "after"),
        (f"{LIST}/unknown", "has no such trace"),
        ("/agents/nobody/traces", "no such agent"),
        ("/agents/No%20Name/traces", "no-name"),
    ):
        page = person.open(path)
        expect(page.locator("main .verdict.bad")).to_contain_text(words)
        assert person.axe() == []


def test_a_trace_shows_its_steps_and_what_was_said(person: Visitor) -> None:
    page = person.open(f"{LIST}/order-42")
    step = page.locator(".timeline li").nth(1)
    step.locator("summary").click()
    expect(step.locator("pre").first).to_contain_text('"order": 42')
    expect(page.locator(".timeline .badge.bad")).to_have_text("error")
    expect(page.locator(".turn.answer strong")).to_have_text("shipped")
    link = page.get_by_role("link", name="the tracker")
    assert "noopener" in str(link.get_attribute("rel"))
    expect(page.locator("#feedback ~ .quote").first).to_have_text("It came on Monday.")
    page.get_by_role("link", name="Rewrite in a friendly tone.").click()
    page.get_by_role("link", name="the run that called this one").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Where is my order 42?")


def test_the_traces_of_a_list_are_gone_through_one_by_one(person: Visitor) -> None:
    page = person.open(f"{LIST}?session=chat-1")
    links = page.locator("#traces .what a")
    first, second = [f"{link.get_attribute('href')}" for link in links.all()]
    links.first.click()
    expect(page.get_by_role("link", name="Next")).to_have_attribute("href", second)
    expect(page.get_by_role("link", name="Previous")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("link", name="Previous")).to_have_attribute("href", first)
    expect(page.get_by_role("link", name="Next")).to_be_hidden()
    page.get_by_text("Write a comment").click()
    page.get_by_label("Comment", exact=True).press("ArrowLeft")
    assert page.url.endswith(second)
    page.get_by_role("heading", name="Feedback").click()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("link", name="Next")).to_have_attribute("href", second)
    page.get_by_role("main").get_by_role("link", name="Traces").click()
    expect(page.locator("#traces .what a")).to_have_count(2)
    page = person.open(f"{LIST}/order-42")
    expect(page.get_by_role("link", name="Next")).to_be_hidden()


def test_a_correction_and_a_comment_are_posted(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{LIST}/q3")
    page.get_by_text("Write a better answer").click()
    page.get_by_label("Corrected answer").fill("Send it back: we repair it, free of charge.")
    page.get_by_role("button", name="Save the correction").dblclick()
    expect(page.locator(".rail .said")).to_have_text("Send it back: we repair it, free of charge.")
    page.get_by_text("Write a comment").click()
    page.get_by_label("Comment", exact=True).fill("Too vague.")
    page.get_by_role("button", name="Save the comment").click()
    expect(page.locator(".rail .said")).to_have_count(2)
    posted = [word for word in list_feedback(pages.ws, AGENT) if word["source"] != "jsonl"]
    assert sorted(word["kind"] for word in posted) == ["comment", "correction"], "each once"
    assert {word["rater"] for word in posted} == {"owner"}, "as on the rating bench"


def test_what_the_filters_show_becomes_a_queue(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{LIST}?text=norway&until=2099-01-01")
    page.get_by_role("link", name="Send to a rating queue").click()
    expect(page.get_by_label("Text in question or answer")).to_have_value("norway")
    expect(page.get_by_label("Recorded before")).to_have_value("2099-01-02")
    page.get_by_label("Name").fill("norway")
    page.get_by_label("Question for each answer").select_option("Both")
    page.get_by_role("button", name="Create the queue").click()
    card = page.get_by_role("listitem").filter(has_text="norway")
    expect(card).to_contain_text("0 of 1 answers done")
    queue = require_queue(pages.ws, require_agent(pages.ws, AGENT), "norway")
    assert queue.config.ask == ("thumb", "rating")
    card.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close the queue").click()
    expect(card).to_have_count(0)
    page.get_by_role("link", name="Show closed queues").click()
    expect(card).to_contain_text("closed")


@pytest.mark.parametrize("page_name", ["traces", "rate"])
def test_filters_that_no_form_would_send_are_shown(person: Visitor, page_name: str) -> None:
    page = person.open(f"/agents/{AGENT}/{page_name}?status=timeout&until=9999-12-31")
    expect(page.get_by_label("Status")).to_have_value("timeout")


def test_a_trace_becomes_a_gold_case(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{LIST}/q0")
    page.get_by_text("Add as a gold case").click()
    page.get_by_label("A right answer").fill("Yes, by invoice, too.")
    page.get_by_label("Compared by").select_option("exact_answer")
    page.get_by_role("button", name="I reviewed it").click()
    expect(page.get_by_role("status")).to_contain_text("It is a gold case now.")
    page.get_by_role("link", name="Cases").click()
    page.get_by_role("navigation", name="Bases").get_by_role("link", name="Gold").click()
    row = page.get_by_role("row").filter(has_text="Yes, by invoice, too.")
    expect(row).to_contain_text("exact_answer")
    expect(row).to_contain_text("owner")


def test_the_lineage_says_what_would_be_erased(person: Visitor) -> None:
    page = person.open(f"{LIST}/order-42")
    page.get_by_role("link", name="Lineage of this answer").click()
    expect(page.locator("#erasure ~ dl")).to_contain_text("traces")
    page.get_by_role("button", name="Erase this person").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be restored")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()


def cells(page: Page, name: str) -> list[str]:
    """The texts of a column, from the top."""
    return page.locator(f"#traces .c-{name}").all_inner_texts()


def test_the_table_has_what_a_day_needs(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(LIST)
    expect(page.locator("#total")).to_have_text("8 traces")
    row = page.locator("#traces tr").filter(has_text="Where is my order 42?")
    expect(row.locator(".c-latency")).to_have_text("4.1 s")
    expect(row.locator(".c-tokens")).to_have_text("40 + 62")
    expect(row.locator(".c-model")).to_have_text("shop-7b-q8")
    expect(row.locator(".c-rating")).to_contain_text("thumb down")
    page.get_by_role("link", name="Latency").click()
    assert cells(page, "latency")[0] == "4.1 s"
    page.get_by_role("link", name="Rating", exact=True).click()
    assert "thumb up" in cells(page, "rating")[0]
    page.get_by_role("link", name="Rating", exact=True).click()
    assert "thumb down" in cells(page, "rating")[0]
    expect(page.get_by_role("columnheader", name="Rating")).to_have_attribute(
        "aria-sort", "ascending"
    )
    page.get_by_label("Text").fill("norway")
    page.get_by_label("Text").press("Enter")
    expect(page.locator("#total")).to_have_count(0)
    page = person.open(f"{LIST}?session=chat-1")
    expect(page.locator("#total")).to_have_text("2 traces")


def test_columns_and_views_are_kept(person: Visitor) -> None:
    page = person.open(f"{LIST}?rated=yes")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Model", exact=True).last.uncheck()
    expect(page.get_by_role("columnheader", name="Model")).to_be_hidden()
    page.keyboard.press("Escape")
    page.get_by_text("Views").click()
    page.get_by_label("Keep these filters").fill("judged ones")
    page.get_by_role("button", name="Keep").click()
    assert person.axe() == []
    page = person.open(LIST)
    expect(page.locator("#traces tr")).to_have_count(8)
    expect(page.get_by_role("columnheader", name="Model")).to_be_hidden()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Model", exact=True).last.check()
    page.keyboard.press("Escape")
    page.get_by_text("Views").click()
    page.get_by_role("link", name="judged ones").click()
    expect(page.locator("#traces tr")).to_have_count(7)
    expect(page.get_by_role("columnheader", name="Model")).to_be_hidden()
    page.get_by_text("Views").click()
    page.get_by_role("button", name="Remove the view judged ones").click()
    expect(page.get_by_role("link", name="judged ones")).to_have_count(0)


def test_several_at_once_are_tagged_and_asked_about(person: Visitor, pages: PagesWorld) -> None:
    agent = require_agent(pages.ws, AGENT)
    create(
        pages.ws,
        agent,
        "august",
        QueueConfig(),
        QueueSelection(traces=TraceFilter(session="chat-0")),
    )
    page = person.open(LIST)
    boxes = page.locator("#traces input")
    boxes.nth(1).check()
    boxes.nth(3).click(modifiers=["Shift"])
    expect(page.locator("#selected")).to_have_text("3 selected")
    assert person.axe() == []
    page.get_by_label("Queue", exact=True).fill("august")
    page.get_by_role("button", name="Add to the queue").click()
    expect(page.get_by_role("status").filter(has_text="added to august")).to_be_visible()
    expect(page.locator("#bulk")).to_be_hidden()
    names = [f"{box.get_attribute('value')}" for box in boxes.all()[1:3]]
    boxes.nth(1).check()
    boxes.nth(2).check()
    page.get_by_label("Tag", exact=True).fill("urgent")
    page.get_by_role("button", name="Tag", exact=True).click()
    expect(page.locator("#traces .c-tags .badge")).to_have_count(2)
    for name in names:
        assert "urgent" in list_tags(pages, name)
    page.get_by_label("Select all on this page").check()
    expect(page.locator("#selected")).to_have_text("8 selected")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#bulk")).to_be_hidden()


def test_traces_are_kept_out_of_datasets_and_taken_in_again(person: Visitor) -> None:
    page = person.open(LIST)
    row = page.locator("#traces tr").filter(has_text="Do you ship to Norway")
    row.locator("input").check()
    page.get_by_role("button", name="Exclude from datasets").click()
    expect(page.get_by_role("status").filter(has_text="Enter a reason first.")).to_be_visible()
    page.get_by_label("Reason", exact=True).fill("a test of ours")
    page.get_by_role("button", name="Exclude from datasets").click()
    expect(page.get_by_role("status").filter(has_text="left out of datasets")).to_be_visible()
    row.get_by_role("link").click()
    panel = page.get_by_role("region", name="Exclusion")
    expect(panel).to_contain_text("a test of ours")
    panel.get_by_role("button", name="Include again").click()
    expect(panel).to_have_count(0)


def test_a_trace_is_put_before_people_where_no_queue_exists(
    browser: Browser, pages: PagesWorld
) -> None:
    with visitor(browser, pages.url, size=(375, 740), code=pages.code) as person:
        page = person.open(f"{LIST}/q3")
        page.get_by_text(re.compile("new rating queue|another queue")).click()
        field = page.get_by_label("Name of the queue")
        expect(field).to_have_value("to-review")
        field.fill("zips")
        with page.expect_navigation():
            field.press("Enter")
        expect(page.get_by_role("link", name="zips", exact=True)).to_be_visible()
        queue = require_queue(pages.ws, require_agent(pages.ws, AGENT), "zips")
        assert queue.items == 1
        assert person.axe() == [] and not person.is_too_wide()
        person.check()


def test_selected_traces_become_gold_after_a_question(person: Visitor, pages: PagesWorld) -> None:
    _, before = list_cases(pages.ws, AGENT, basis="gold")
    page = person.open(f"{LIST}?session=chat-2")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="To gold").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("You confirm that each is right.")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="To gold").click()
    dialog.get_by_role("button", name="I reviewed them").click()
    expect(page.get_by_role("status").filter(has_text="2 gold cases stored.")).to_be_visible()
    _, gold = list_cases(pages.ws, AGENT, basis="gold")
    earlier = {case["id"] for case in before}
    assert [case["reviewer"] for case in gold if case["id"] not in earlier] == ["owner", "owner"]


def list_tags(pages: PagesWorld, name: str) -> list[str]:
    wanted = TraceFilter(trace_ids=(name,))
    (trace,) = list_traces(pages.ws, AGENT, wanted).traces
    return list(trace.tags)


def test_a_list_is_a_file(person: Visitor, tmp_path: Path) -> None:
    page = person.open(f"{LIST}?session=chat-1")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    path = tmp_path / "traces.csv"
    download.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["input"] for row in rows) == [
        "Do you ship to Norway, and what does it cost?",
        "My coupon WINTER does not work.",
    ]
    assert {row["feedback"].split(";")[0] for row in rows} == {"thumb down", "thumb up"}
    page.locator("#traces input").first.check()
    with page.expect_download() as download:
        page.locator("#bulk").get_by_role("button", name="JSONL").click()
    path = tmp_path / "traces.jsonl"
    download.value.save_as(path)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["session"] == "chat-1"


def test_the_table_fits_a_phone(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, "dark", (375, 740), pages.code) as person:
        page = person.open(LIST)
        page.locator("#traces input").first.check()
        assert not person.is_too_wide()
        assert person.axe() == []
        person.check()
