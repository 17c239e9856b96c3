"""The rating bench in a browser: by keys and by mouse, on and off the network, over a killed
server, with what people and models put into it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from tests.servers.thumbwheel_server import lasting_port, serve_command
from tests.waiting import until
from tests.worlds.browser_world import NARROW, Visitor, visitor
from tests.worlds.gateway_world import opened_home
from tests.worlds.pages_world import AGENT, PagesWorld, fill
from tests.worlds.rating_world import (
    HOSTILE,
    RIGHT_TO_LEFT,
    Said,
    in_force,
    queue_of,
    running_ratings,
    trace,
    traces,
)
from thumbwheel.access import users
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.review.queues import QueueSelection
from thumbwheel.review.types import Origin

MEGABYTE = "A long answer with many words. " * 34_000
RATINGS = 120
PASSWORD = "correct horse battery staple"


@dataclass
class Bench:
    """A queue of its own over traces of its own, and somebody who rates in it."""

    person: Visitor
    world: PagesWorld
    name: str

    @property
    def page(self) -> Page:
        return self.person.page

    def begin(
        self,
        lines: Sequence[dict[str, Any]] | None = None,
        of: Origin = Origin.TRACES,
        answers: int = 2,
        **config: Any,
    ) -> Page:
        """Make the queue, and open it."""
        folder = self.world.ws.home.path
        rows = traces(5, self.name) if lines is None else lines
        fill(self.world.ws, folder, [{"session": self.name, **row} for row in rows])
        wanted = QueueSelection(of, TraceFilter(session=self.name), answers=answers)
        queue_of(self.world.ws, self.name, wanted, **config)
        self.person.open(f"/agents/{AGENT}/rate/{self.name}")
        expect(self.page.locator("#item .text").first).to_be_visible()
        return self.page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def sent(self) -> None:
        """Wait until nothing is on its way."""
        expect(self.page.locator("#pending")).to_have_attribute("data-count", "0")

    def statements(self) -> list[Said]:
        """What counts about the traces of this queue, once all is sent."""
        self.sent()
        return [row for row in in_force(self.world.ws) if row.trace.startswith(self.name)]

    def verdicts(self) -> list[tuple[str, Any]]:
        """In an order of their own."""
        return sorted(((row.kind, row.value) for row in self.statements()), key=str)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    with running_ratings(tmp_path_factory.mktemp("ratings"), traces(1)) as world:
        yield world


@pytest.fixture
def bench(browser: Browser, ratings: PagesWorld, request: pytest.FixtureRequest) -> Iterator[Bench]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    with visitor(browser, ratings.url, code=ratings.code) as person:
        yield Bench(person, ratings, name)
        person.check()


def pair(name: str, number: int) -> list[dict[str, Any]]:
    """Two answers to one question."""
    prompt = f"Question {name} {number}?"
    first = trace(f"{name}{number}a", prompt, f"First answer {number}.")
    return [first, trace(f"{name}{number}b", prompt, f"Second answer {number}.")]


def test_ratings_as_fast_as_keys_are_pressed_survive_a_killed_server(
    browser: Browser, tmp_path: Path
) -> None:
    home, port = tmp_path / "home", lasting_port()
    with opened_home(home) as ws:
        fill(ws, tmp_path, traces(RATINGS))
        queue_of(ws, "fast")
        codes = LoginCodes(ws.home.login_codes)
    server = _started(home, port)
    try:
        with visitor(browser, f"http://127.0.0.1:{port}", code=codes.make()) as person:
            page = person.open(f"/agents/{AGENT}/rate/fast")
            for number in range(RATINGS):
                # the next item is there before the next key is pressed
                expect(page.locator("#item .answer")).to_be_visible(timeout=20_000)
                page.keyboard.press("y" if number % 3 else "n")
                if number == RATINGS // 3:
                    server.send_signal(signal.SIGKILL)
                    server.wait()
                if number == RATINGS // 3 + 3:
                    server = _started(home, port)
            expect(page.locator("#item .empty")).to_contain_text("That was all", timeout=20_000)
            expect(page.locator("#pending")).to_have_attribute("data-count", "0")
            person.check()
    finally:
        server.terminate()
        server.wait()
    with opened_home(home) as ws:
        rows = in_force(ws)
    assert Counter(row.trace for row in rows) == {f"t{number}": 1 for number in range(RATINGS)}
    assert Counter(row.value for row in rows) == {True: RATINGS * 2 // 3, False: RATINGS // 3}


def _started(home: Path, port: int) -> subprocess.Popen[bytes]:
    """The server of the home, as soon as it answers: it listens before its token is there."""
    server = subprocess.Popen(serve_command(home, port), stderr=subprocess.DEVNULL)
    until(lambda: _is_live(port))
    return server


def _is_live(port: int) -> bool:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/live", timeout=30):
        return True
    return False


def test_thumbs_labels_tags_and_notes_by_keys_alone(bench: Bench) -> None:
    page = bench.begin(labels=("topic=order|payment",), tags=("rude",))
    topic = page.locator("[data-action='label:topic=payment']")
    key = topic.get_attribute("aria-keyshortcuts") or ""
    bench.press("m")
    page.keyboard.type("yn1 z s: keys in a note rate nothing")
    expect(page.locator("#note")).to_have_value("yn1 z s: keys in a note rate nothing")
    tag = page.locator("[data-action='tag:rude']").get_attribute("aria-keyshortcuts") or ""
    first = page.locator("#item .answers .text").inner_text()
    bench.press("Escape", tag, "n")
    expect(page.locator("[data-action=down]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#item .answers .text")).to_have_text(first)
    bench.press(key)  # everything that is asked is answered: the next item comes by itself
    expect(page.locator("#item .answers .text")).not_to_have_text(first)
    statements = bench.statements()
    assert [(row.kind, row.name, row.value) for row in statements] == [
        ("label", "rude", True),
        ("label", "topic", "payment"),
        ("thumb", None, False),
    ]
    assert [row.comment for row in statements if row.comment] == [
        "yn1 z s: keys in a note rate nothing"
    ]


def test_everything_is_taken_back_in_the_order_in_which_it_was_done(bench: Bench) -> None:
    page = bench.begin()
    first = page.locator("#item .answers .text").inner_text()
    bench.press("y", "s", "n")
    bench.sent()
    expect(page.locator("#count")).to_contain_text("2 by you")
    bench.press("z")
    assert bench.verdicts() == [("thumb", True)]
    bench.press("z", "z", "z")
    bench.press("z")
    expect(page.locator("#item .answers .text")).to_have_text(first)
    assert bench.verdicts() == []
    bench.press("n")
    assert bench.verdicts() == [("thumb", False)]


def test_a_double_click_rates_once_and_a_held_key_too(bench: Bench) -> None:
    page = bench.begin()
    page.locator("[data-action=up]").dblclick()
    assert bench.verdicts() == [("thumb", True)]
    page.keyboard.down("n")
    page.keyboard.down("n")  # as a key that is held repeats itself
    page.keyboard.down("n")
    page.keyboard.up("n")
    assert bench.verdicts() == [("thumb", False), ("thumb", True)]


def test_ratings_of_a_scale_and_an_edit_with_its_changes(bench: Bench) -> None:
    page = bench.begin([trace(f"{bench.name}0", "When?", "On Friday, surely.")], ask=("rating",))
    bench.press("e")
    editor = page.get_by_label("The corrected answer")
    editor.fill("On Monday, surely.")
    expect(page.locator(".diff del")).to_have_text("Friday")
    expect(page.locator(".diff ins")).to_have_text("Monday")
    editor.press("Control+Enter")
    bench.press("2")
    assert bench.verdicts() == [("correction", "On Monday, surely."), ("rating", 2)]


def test_comparisons_by_keys_and_ties(bench: Bench) -> None:
    rows = [row for number in range(3) for row in pair(bench.name, number)]
    page = bench.begin(rows, Origin.COMPARISONS)
    left = page.locator("#item .answer .text").all_inner_texts()
    bench.press("b")
    expect(page.locator("#item .answer .text").first).not_to_have_text(left[0])
    page.locator(".thumbs").get_by_role("button", name="Tie").click()
    bench.press("a")
    statements = bench.statements()
    assert sorted(str(row.value) for row in statements) == [
        "{'ranking': [[0, 1]]}",
        "{'ranking': [[0], [1]]}",
        "{'ranking': [[1], [0]]}",
    ]
    bench.press("z")
    assert len(bench.statements()) == 2


def test_three_answers_are_ranked(bench: Bench) -> None:
    rows = [trace(f"{bench.name}{n}", "Which?", f"Answer {n}.") for n in range(3)]
    bench.begin(rows, Origin.COMPARISONS, answers=3)
    bench.press("c", "a")
    (statement,) = bench.statements()
    assert statement.value == {"ranking": [[2], [0], [1]]}


def test_gold_is_made_by_a_review(bench: Bench) -> None:
    bench.begin([trace(f"{bench.name}0", "2 + 2?", "5")])
    bench.press("e")
    bench.page.get_by_label("The corrected answer").fill("4")
    bench.page.get_by_role("button", name="Keep the edit").click()
    bench.press("g")
    bench.sent()
    _, cases = list_cases(bench.world.ws, AGENT, basis="gold")
    assert [case["reference"] for case in cases] == ["4"]
    bench.press("z")
    bench.sent()
    assert list_cases(bench.world.ws, AGENT, basis="gold")[1] == []


def test_off_the_network_ratings_wait_and_a_reload_keeps_them(bench: Bench) -> None:
    page = bench.begin()
    bench.person.context.set_offline(True)
    bench.press("y", "n")
    expect(page.get_by_role("alert")).to_contain_text("2 ratings are stored here")
    bench.press("z")
    expect(page.locator("#pending")).to_have_attribute("data-count", "1")
    bench.person.context.set_offline(False)
    page.reload()
    assert bench.verdicts() == [("thumb", True)]
    bench.person.complaints.clear()  # the browser itself says that it was offline


def test_what_was_skipped_is_looked_at_again(bench: Bench) -> None:
    page = bench.begin(traces(2, bench.name))
    bench.press("s", "s")
    page.get_by_role("button", name="Rate the 2 items that you skipped").click()
    expect(page.locator("#item .answers .text")).to_be_visible()
    bench.press("y", "y")
    expect(page.locator("#item .empty")).to_contain_text("That was all")
    expect(page.get_by_role("button", name="items that you skipped")).to_have_count(0)
    assert bench.verdicts() == [("thumb", True)] * 2


def test_the_next_item_is_there_before_the_server_has_answered(bench: Bench) -> None:
    page = bench.begin(traces(6, bench.name))
    under_way: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        if is_held:
            under_way.append(route)
        else:
            route.continue_()

    page.route("**/*", hold)
    for _ in range(4):
        before = page.locator("#item .answers .text").inner_text()
        bench.press("y")
        expect(page.locator("#item .answers .text")).not_to_have_text(before)
    assert under_way
    is_held = False
    for route in under_way:
        route.continue_()
    assert len(bench.statements()) == 4


def test_an_answer_that_comes_late_brings_back_nothing_that_is_done(bench: Bench) -> None:
    """The server gave the next items before it knew of the last ratings."""
    page = bench.begin(traces(6, bench.name))
    late: list[tuple[Route, APIResponse]] = []
    page.route("**/next", lambda route: late.append((route, route.fetch())))
    answers = page.locator("#item .answers .text")
    for _ in range(4):
        before = answers.inner_text()
        bench.press("y")
        expect(answers).not_to_have_text(before)
    bench.sent()
    until(lambda: (page.wait_for_timeout(20), late)[1])
    for route, response in late:
        route.fulfill(response=response)
    page.unroute("**/next")
    expect(page.locator("#count")).to_contain_text("4 by you")
    bench.press("y")
    expect(page.locator("#count")).to_contain_text("5 by you")
    bench.press("y")
    expect(page.locator("#item .empty")).to_contain_text("That was all")
    assert len(bench.statements()) == 6


def test_keys_that_are_typed_before_the_next_item_wait_for_it(bench: Bench) -> None:
    page = bench.begin(traces(40, bench.name))
    asked: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        if is_held:
            asked.append(route)
        else:
            route.continue_()

    page.route("**/next", hold)
    page.reload()
    expect(page.locator("#item .empty")).to_contain_text("Loading the next item")
    until(lambda: (page.wait_for_timeout(20), asked)[1])
    bench.press("y", "n", "s", "z", "y")  # the skip is taken back before anything is there
    assert asked[0].request.post_data_json["limit"] == 30
    is_held = False
    asked[0].continue_()
    expect(page.locator("#count")).to_contain_text("3 by you")
    assert bench.verdicts() == [("thumb", False), ("thumb", True), ("thumb", True)]


def test_an_expired_session_keeps_ratings_and_asks_to_log_in(bench: Bench) -> None:
    page = bench.begin()
    bench.person.context.clear_cookies()
    bench.press("y", "n")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("You are logged out")
    expect(alert.get_by_role("link", name="Log in")).to_be_visible()
    other = bench.person.context.new_page()
    other.goto(f"/login?code={bench.world.code}")
    other.close()
    page.get_by_role("button", name="Try again").click()
    assert bench.verdicts() == [("thumb", False), ("thumb", True)]


def test_whoever_may_not_rate_any_more_is_told(browser: Browser, ratings: PagesWorld) -> None:
    users.add(ratings.ws, "dora", password=PASSWORD, role="rater", agent=AGENT)
    queue_of(ratings.ws, "doras", QueueSelection(most=1))
    with visitor(browser, ratings.url) as person:
        person.open(f"/agents/{AGENT}/rate/doras")
        person.page.get_by_label("Name").fill("dora")
        person.page.get_by_label("Password").fill(PASSWORD)
        person.page.get_by_role("button", name="Log in").click()
        expect(person.page.locator("#item .answer")).to_be_visible()
        users.set_role(ratings.ws, "dora", "viewer", agent=AGENT)
        person.page.keyboard.press("y")
        alert = person.page.get_by_role("alert")
        expect(alert).to_contain_text("The server refuses")
        expect(alert).to_contain_text("may not rate")
        users.set_role(ratings.ws, "dora", "rater", agent=AGENT)
        person.page.get_by_role("button", name="Try again").click()
        expect(person.page.locator("#pending")).to_have_attribute("data-count", "0")
    assert ("dora", True) in [(row.rater, row.value) for row in in_force(ratings.ws)]


def test_hostile_and_strange_texts_are_shown_as_they_are(bench: Bench) -> None:
    texts = [*HOSTILE, RIGHT_TO_LEFT]
    rows = []
    for number, text in enumerate(texts):
        steps = [{"kind": "tool", "name": text, "input": text, "output": text}]
        rows.append(
            trace(f"{bench.name}{number}", text, text, steps=steps, metadata={"size": text})
        )
    page = bench.begin(rows)
    for _ in texts:
        expect(page.locator("#item .answer")).to_be_visible()
        assert page.locator("#item img, #item script, #item iframe, #item style").count() == 0
        bench.press("y")
    expect(page.locator("#item .empty")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert len(bench.statements()) == len(texts)


def test_a_megabyte_and_ten_thousand_steps(bench: Bench) -> None:
    steps = [{"kind": "tool", "name": "look", "output": f"row {n}"} for n in range(10_000)]
    rows = [trace(f"{bench.name}0", "Look at everything.", MEGABYTE, steps=steps)]
    page = bench.begin([*rows, *traces(1, f"{bench.name}1")])
    if "Look" not in page.locator("#item .turn").first.inner_text():
        bench.press("s")
    expect(page.locator("#item summary")).to_contain_text("200 steps")
    bench.press("e")
    editor = page.get_by_label("The corrected answer")
    editor.press("Control+End")
    editor.press_sequentially("End.")
    expect(page.locator(".diff ins")).to_have_text("End.")
    editor.press("Control+Enter")
    bench.press("n")
    assert [row.value for row in bench.statements() if row.kind == "correction"] == [
        MEGABYTE + "End."
    ]


def test_keys_are_shown_and_changed(bench: Bench) -> None:
    page = bench.begin()
    bench.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    field = dialog.get_by_label("Thumb up")
    expect(field).to_have_value("y")
    field.press("q")
    expect(dialog.get_by_label("Thumb up")).to_have_value("q")
    assert bench.person.axe() == []
    bench.press("Escape", "y")
    assert bench.verdicts() == []
    bench.press("q")
    assert bench.verdicts() == [("thumb", True)]
    page.reload()
    expect(page.locator("[data-action=up]")).to_have_attribute("aria-keyshortcuts", "q")


def test_markdown_is_shown_by_a_key_and_stays_off_until_then(bench: Bench) -> None:
    answer = "**Shipped** from Ulm:\n\n1. the depot\n2. the van\n\n<img src=x onerror=alert(1)>"
    lines = [trace(f"{bench.name}{number}", f"Where {number}?", answer) for number in range(2)]
    page = bench.begin(lines)
    region = page.get_by_role("region", name="Answer")
    expect(region).to_contain_text("**Shipped**")
    bench.press("v")
    expect(region.locator("ol li")).to_have_count(2)
    expect(region.locator("strong")).to_have_text("Shipped")
    expect(page.get_by_role("button", name="Markdown")).to_have_attribute("aria-pressed", "true")
    assert region.locator("img").count() == 0
    assert bench.person.axe() == []
    page.reload()
    expect(region.locator("ol li")).to_have_count(2)
    bench.press("y")
    expect(page.locator("#item")).to_contain_text(re.compile("Where [01]"))
    expect(region.locator("ol li")).to_have_count(2)
    bench.press("v")
    expect(region.locator("ol li")).to_have_count(0)
    assert len(bench.statements()) == 1


def test_a_screen_reader_hears_what_is_rated(bench: Bench) -> None:
    page = bench.begin()
    live = page.locator("#live")
    expect(live).to_contain_text("Question")
    before = live.inner_text()
    page.get_by_role("button", name="Good").focus()
    bench.press("Enter")
    expect(live).to_contain_text("Saved.")
    expect(live).not_to_have_text(before)
    expect(page.get_by_role("button", name="Good")).to_be_focused()
    assert bench.verdicts() == [("thumb", True)]


def test_the_back_button_leaves_and_comes_back_to_the_same_item(bench: Bench) -> None:
    page = bench.begin()
    bench.press("y")
    bench.sent()
    page.locator("[data-action=skip]").wait_for()
    current = page.locator("#item .answers .text").inner_text()
    page.goto(f"/agents/{AGENT}/rate")
    page.go_back()
    expect(page.locator("#item .answers .text")).to_have_text(current)
    assert bench.verdicts() == [("thumb", True)]


def test_widgets_are_rated_as_cards(bench: Bench) -> None:
    rows = []
    for number in range(30):
        size = {"scenario": "kpi", "fixture": f"dial-{number}", "size": "hero"}
        size["question"] = f"How is pump {number}?"
        size["card"] = f"run:{number}"
        data = {"data": {"demoData": {"label": "Flow", "value": number}}}
        name = f"{bench.name}{number:02}"
        rows.append(trace(name, f"Pump {number}?", f"dial-{number}", metadata=size | data))
    page = bench.begin(rows, layout="cards", tags=("perfect", "ugly"))
    first = page.get_by_role("article").first
    expect(first).to_contain_text("kpi")
    expect(first.locator(".question")).to_have_text(re.compile(r"How is pump \d+\?"))
    # before a thumb they wait for it
    first.get_by_role("button", name="perfect").click()
    for number in range(3):
        page.get_by_role("article").nth(number).get_by_role("button", name="Good").click()
    page.get_by_role("article").nth(1).get_by_role("button", name="Bad").click()
    statements = bench.statements()
    assert sorted(row.value for row in statements) == [False, True, True]
    first.get_by_label("Note").fill("clear")
    first.get_by_label("Note").press("Tab")
    (tagged,) = [row for row in bench.statements() if (row.metadata or {}).get("tags")]
    assert (tagged.metadata["tags"], tagged.comment) == (["perfect"], "clear")
    assert bench.person.axe() == []
    page.get_by_role("button", name="Undo").click()
    assert sorted(row.value for row in bench.statements()) == [True, True]


def test_rating_on_a_telephone(browser: Browser, ratings: PagesWorld) -> None:
    queue_of(ratings.ws, "narrow", QueueSelection(most=1), labels=("topic=order|payment",))
    with visitor(browser, ratings.url, "dark", NARROW, ratings.code) as person:
        page = person.open(f"/agents/{AGENT}/rate/narrow")
        expect(page.locator("#item .answer")).to_be_visible()
        assert not person.is_too_wide()
        assert person.axe() == []
        person.check()
