"""A file becomes answers with ratings by clicks alone: looked at, its columns named, counted, and
only then stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.servers.thumbwheel_server import running as served
from tests.worlds.browser_world import NARROW, Visitor, visitor
from tests.worlds.pages_world import PagesWorld, running_pages
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.core.config import Home
from thumbwheel.models.versions import agents

GERMAN = "frage;antwort;note;geprüft von\n" + "".join(
    f"Wo ist Paket {number}?;Im Lager {number}.;{1 + number % 6};prüfer-{number % 3}\n"
    for number in range(30)
)
"""Thirty rows with grades, of which 1 is the best and 6 the worst."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """An empty home."""
    with running_pages(tmp_path_factory.mktemp("import"), lines=()) as world:
        yield world


def opened(person: Visitor, agent: str, file: Path | None = None) -> Page:
    """The page of imports, with the name of the app, and the file looked at."""
    page = person.open("/import")
    page.get_by_label("Name of the app").fill(agent)
    if file is not None:
        page.get_by_label("File", exact=True).set_input_files(file)
    return page


def counted(page: Page, name: str) -> Locator:
    return page.locator(f"[data-count={name}] b")


def names(world: PagesWorld) -> list[str]:
    return [agent.slug for agent in agents(world.ws)]


def test_columns_are_named_and_counted_before_anything_is_stored(
    person: Visitor, pages: PagesWorld, tmp_path: Path
) -> None:
    file = tmp_path / "noten.csv"
    file.write_text(GERMAN + "eine Zeile zu viel;a;b;c;d\n")
    page = opened(person, "desk", file)

    # The marks are unknown: a proposal is filled in, and the error says what to do.
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("may be people's feedback on the answers. Choose above each")
    expect(page.get_by_label("frage")).to_have_value("prompt")
    expect(page.get_by_label("antwort")).to_have_value("response")
    expect(page.get_by_label("note")).to_have_value("rating")
    expect(page.get_by_role("button", name="Import", exact=False)).to_be_hidden()

    # Who rated is chosen, which takes the proposal too: the grades are outside 1 to 5.
    page.get_by_label("geprüft von").select_option("rater")
    expect(problem).to_have_text("Say how note is read.")
    expect(page.locator("#marks")).to_contain_text("note has numbers from 1 to 6")
    expect(counted(page, "refused")).to_have_text("31")
    page.get_by_label("Worst value").fill("6")
    page.get_by_label("Best value").fill("1")
    page.get_by_label("Best value").press("Tab")
    expect(counted(page, "good")).to_have_text("15")
    expect(counted(page, "bad")).to_have_text("15")
    expect(counted(page, "refused")).to_have_text("1")
    rows = page.locator("#rows tbody tr")
    expect(rows).to_have_count(20)
    expect(rows.first).to_contain_text("rating: 6 of 1 to 6 by prüfer-0")
    expect(page.get_by_text("The first 20 of 31 rows.")).to_be_visible()
    page.get_by_text("Why 1 row is refused").click()
    expect(page.locator("#refused")).to_contain_text("it has 5 cells, the header names 4 columns")
    assert person.axe() == []
    assert names(pages) == []

    # Nothing was stored until now; and what is stored is what was shown.
    page.get_by_role("button", name="Import 30 rows").click()
    page.wait_for_url("**/agents/desk/traces")
    ratings = list_feedback(pages.ws, "desk", limit=100)
    assert Counter(rating["kind"] for rating in ratings) == {"rating": 30}
    assert Counter(rating["value"] for rating in ratings) == dict.fromkeys(range(1, 7), 5)
    assert {rating["rater"] for rating in ratings} == {"prüfer-0", "prüfer-1", "prüfer-2"}


def test_a_person_says_which_value_is_good(person: Visitor, pages: PagesWorld) -> None:
    page = opened(person, "words")
    page.get_by_text("Paste rows instead of a file").click()
    page.get_by_label("Rows", exact=True).fill(
        "question\tanswer\tflag\nIs it open?\tNo.\tkeep\nWhen?\tAt nine.\tkeep\nWho?\tI.\tdrop\n"
    )
    page.get_by_role("button", name="Show what is in it").click()
    page.get_by_label("flag").select_option("thumb")
    expect(counted(page, "refused")).to_have_text("3")
    page.get_by_label("Good is").select_option("keep")
    expect(counted(page, "good")).to_have_text("2")
    expect(counted(page, "bad")).to_have_text("1")
    # A column that is one thing gives up the meaning to another.
    page.get_by_label("question").select_option("response")
    expect(page.get_by_label("answer")).to_have_value("")
    expect(page.get_by_role("alert")).to_contain_text("known to contain the prompt")
    assert names(pages).count("words") == 0


def test_nothing_is_imported_while_the_rows_are_looked_at(person: Visitor) -> None:
    """A click in between is not lost: the button takes none."""
    page = opened(person, "quick")
    page.get_by_text("Paste rows instead of a file").click()
    page.get_by_label("Rows", exact=True).fill("question,answer,flag\nWhen?,At nine.,yes\n")
    page.get_by_role("button", name="Show what is in it").click()
    page.get_by_label("flag").select_option("thumb")
    button = page.get_by_role("button", name="Import 1 row")
    expect(button).to_be_enabled()
    held: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        if is_held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/imports/previews?*", hold)
    page.get_by_label("flag").select_option("")
    expect(page.locator("#preview")).to_have_attribute("aria-busy", "true")
    expect(button).to_be_disabled()
    is_held = False
    for route in held:
        route.continue_()
    expect(button).to_be_enabled()


def test_words_are_put_in_order(person: Visitor) -> None:
    page = opened(person, "words")
    page.get_by_text("Paste rows instead of a file").click()
    rows = [f"What is {n}?,It is {n}.,{('adagio', 'moderato', 'vivace')[n % 3]}" for n in range(9)]
    page.get_by_label("Rows", exact=True).fill("\n".join(["question,answer,rating", *rows]))
    page.get_by_role("button", name="Show what is in it").click()
    order = page.get_by_label("Values from the worst to the best")
    expect(order).to_have_value("adagio\nmoderato\nvivace")
    expect(counted(page, "refused")).to_have_text("9")
    order.fill("vivace\nmoderato\nadagio")
    order.press("Tab")
    expect(counted(page, "good")).to_have_text("3")
    expect(counted(page, "bad")).to_have_text("3")
    expect(counted(page, "neither")).to_have_text("3")
    expect(page.locator("#rows tbody tr").first.locator(".badge")).to_have_text("good")


def test_a_file_that_cannot_be_read_says_so_at_its_field(person: Visitor, tmp_path: Path) -> None:
    page = opened(person, "broken")
    field = page.get_by_label("File", exact=True)
    for name, content, complaint in (
        ("empty.csv", b"", "It is empty. Give a CSV file whose first line names each column"),
        ("twice.csv", b"a,a\n1,2\n", "It has the column 'a' twice."),
        ("prose.jsonl", b"just words\n", "No line of it is a JSON object; the first"),
        ("broken.parquet", b"PAR1nothing", "It is no readable Parquet"),
        ("chats.json", b'[{"mapping": {}, "current_node": "x"}]', "No source reads"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        field.set_input_files(file)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.locator(".objection")).to_contain_text(complaint)
        assert "thumbwheel " not in page.locator("main").inner_text()
        expect(page.locator("#preview")).to_be_hidden()
    page.get_by_label("Zone of times without one").fill("Mars/Base")
    page.get_by_role("button", name="Show what is in it").click()
    expect(page.locator("#f-timezone-objection")).to_contain_text("there is no such zone")


def test_a_narrow_window_shows_the_table(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, "dark", NARROW, pages.code) as person:
        page = opened(person, "small")
        page.get_by_text("Paste rows instead of a file").click()
        page.get_by_label("Rows", exact=True).fill(GERMAN)
        page.get_by_role("button", name="Show what is in it").click()
        expect(page.locator("#rows tbody tr")).to_have_count(20)
        assert not person.is_too_wide()
        assert person.axe() == []
        person.check()


def test_reviewed_cases_are_gold(person: Visitor, pages: PagesWorld, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    cases = [{"type": "case", "input": f"{n} + 1?", "reference": str(n + 1)} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, cases)))
    page = opened(person, "sums", file)
    page.get_by_label("I reviewed the test cases").check()
    page.get_by_role("button", name="Show what is in it").click()
    expect(counted(page, "cases")).to_have_text("3")
    page.get_by_role("button", name="Import 3 rows").click()
    page.wait_for_url("**/agents/sums/cases")
    counts, _ = list_cases(pages.ws, "sums")
    assert counts == {"gold": 3}


@pytest.mark.slow
def test_a_worker_imports_a_file_with_progress(browser: Browser, tmp_path: Path) -> None:
    """The server and its worker are processes of their own."""
    file = tmp_path / "many.csv"
    rows = "".join(f"What is {n}?,It is {n}.,{n % 5 + 1}\n" for n in range(3_000))
    file.write_text("question,answer,rating\n" + rows + "Broken?,Yes.,99\n")
    with served(tmp_path / "home", workers=1) as server:
        code = LoginCodes(Home(tmp_path / "home").login_codes).make()
        with visitor(browser, server.url, code=code) as person:
            page = opened(person, "many", file)
            page.get_by_label("Worst value").fill("1")
            page.get_by_label("Best value").fill("5")
            page.get_by_label("Best value").press("Tab")
            expect(counted(page, "refused")).to_have_text("1")
            page.get_by_role("button", name="Import 3,000 rows").click()
            page.wait_for_url("**/jobs/job_*")
            expect(page.locator(".badge", has_text="succeeded")).to_be_visible(timeout=120_000)
            expect(page.get_by_role("log")).to_contain_text("[running]")
            expect(page.locator(".figures")).to_contain_text("3,000 stored")
            expect(page.locator(".figures")).to_contain_text("1 refused")
            expect(page.get_by_role("table", name="Refused rows")).to_contain_text("99 is outside")
            page.get_by_role("link", name="Open the answers").click()
            page.wait_for_url("**/agents/many/traces")
            person.check()
