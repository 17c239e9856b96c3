"""Gold cases by clicks alone: one, edited, many at once, and from an answer in a queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.worlds.browser_world import Visitor
from tests.worlds.pages_world import PagesWorld, add_queue, running_pages
from thumbwheel.capture.cases import find_case, list_cases
from thumbwheel.models.types import Agent

AGENT = Agent.named("support")
PAGES = "/agents/support/cases"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """The small home, with a queue."""
    with running_pages(tmp_path_factory.mktemp("cases")) as world:
        add_queue(world.ws)
        yield world


def counts(world: PagesWorld) -> dict[str, int]:
    return list_cases(world.ws, AGENT.slug)[0]


def test_a_case_is_added_and_edited(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(PAGES)
    page.get_by_label("Input of the app").fill("How long does a parcel take?")
    page.get_by_label("A right answer").fill("Two days.")
    page.get_by_label("Compared by").select_option("exact_answer")
    page.get_by_role("button", name="I reviewed it").click()
    page.wait_for_url("**/cases?basis=gold")
    page.get_by_role("link", name="How long does a parcel take?").click()
    answer = page.get_by_label("A right answer")
    expect(answer).to_have_value("Two days.")
    assert person.axe() == []
    answer.fill("Three days.")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("A right answer")).to_have_value("Three days.")
    case_id = page.url.rpartition("/")[2]
    case = find_case(pages.ws, AGENT, case_id)
    assert (case.reference, case.checker, case.basis) == ("Three days.", "exact_answer", "gold")
    page.get_by_role("button", name="Not gold any more").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Take it out").click()
    assert find_case(pages.ws, AGENT, case_id).basis == "feedback"
    expect(page.get_by_role("button", name="I reviewed it: it is gold")).to_be_visible()


def test_many_are_reviewed_at_once(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"/import?agent={AGENT.slug}")
    page.get_by_text("Paste rows instead of a file").click()
    rows = "\n".join(f"What is {number} + 1?,{number + 1}" for number in range(5))
    page.get_by_label("Rows", exact=True).fill(f"question,expected\n{rows}")
    page.get_by_role("button", name="Show what is in it").click()
    page.get_by_role("button", name="Import 5 rows").click()
    page.wait_for_url("**/cases")
    before = counts(pages).get("gold", 0)
    page.goto(f"{PAGES}?basis=feedback")
    expect(page.locator("#chosen")).to_be_hidden()
    page.get_by_label("Choose What is 3 + 1?").check()
    page.get_by_label("Choose What is 4 + 1?").check()
    assert person.axe() == []
    with page.expect_navigation():
        page.get_by_role("button", name="I reviewed 2: they are gold").click()
    assert counts(pages)["gold"] == before + 2
    page.get_by_label("All cases of this page").check()
    with page.expect_navigation():
        page.get_by_role("button", name="they are gold").click()
    assert counts(pages).get("feedback", 0) == 0


def test_a_case_needs_what_judges_it(person: Visitor) -> None:
    page = person.open(PAGES)
    page.get_by_label("Input of the app").fill("Is it open?")
    page.get_by_role("button", name="I reviewed it").click()
    expect(page.get_by_role("status")).to_contain_text("a case needs a reference or a checker")


def test_an_answer_in_a_queue_becomes_gold(person: Visitor, pages: PagesWorld) -> None:
    before = counts(pages).get("gold", 0)
    page = person.open("/agents/support/rate/july")
    page.get_by_role("button", name="Gold").click()
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    page.wait_for_load_state("networkidle")
    assert counts(pages)["gold"] == before + 1
