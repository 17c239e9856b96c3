"""Texts of models, people and tools are shown and do nothing: 200 payloads in every field of
traces and feedback, on every page; text that runs from right to left; very long texts; a trace
with ten thousand steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from tests.ui.page_urls import URLS
from tests.worlds.browser_world import NARROW, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import AGENT, PagesWorld, fill, small_home
from tests.worlds.script_payloads import SERVER, payloads
from thumbwheel.capture.traces import list_traces
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace

LIST = f"/agents/{AGENT}/traces"
MEGABYTE = 2**20
MOST_HTML = 700_000
"""Bytes of the page of any trace, however long it is."""
ALIVE = """
() => [...document.querySelectorAll(
  "main script, main iframe, main object, main embed, main img, main link, main style, main base, "
  + "main meta, main video, main marquee, main math, main template, form[action*='//']"
)].map((element) => element.outerHTML).concat(
  [...document.querySelectorAll("*")].flatMap((element) => [...element.attributes]
    .filter((attribute) => attribute.name.startsWith("on") || attribute.name === "style"
      || /^\\s*(javascript|vbscript|data):/i.test(attribute.value))
    .map((attribute) => `${element.tagName} ${attribute.name}=${attribute.value}`))
)
"""
"""What of somebody's text became an element, a handler or an address."""


def hostile_home() -> list[dict[str, Any]]:
    """The small home with payloads in place of what people, models and tools say; and traces with
    all payloads as names and texts."""
    texts = payloads()
    lines = []
    for line, text in zip(small_home(), texts, strict=False):
        lines.append(_poisoned(line, text))
    for number, text in enumerate(texts):
        trace = {"type": "trace", "id": text, "session": text, "subject": text, "model": text}
        lines.append(trace | {"input": text, "output": text, "metadata": {text: text}})
        about = {"type": "feedback", "target": {"trace": text}, "rater": text, "comment": text}
        lines.append(about | _signal(number, text))
    steps = []
    for text in texts:
        shared = {"name": text, "input": {text: text}, "output": text, "error": text}
        steps.append({"kind": "tool", **shared})
        steps.append({"kind": "llm", "output": text, "model": text, "finish_reason": "stop"})
    chat = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    everything = {"type": "trace", "id": "everything", "output": "\n\n".join(texts)}
    lines.append(everything | {"input": chat, "steps": steps})
    return lines


def _signal(number: int, text: str) -> dict[str, Any]:
    if number % 3 == 0:
        return {"kind": "thumb", "value": False}
    if number % 3 == 1:
        return {"kind": "correction", "value": text}
    return {"kind": "label", "name": text, "value": text}


def _poisoned(line: dict[str, Any], text: str) -> dict[str, Any]:
    poisoned = dict(line)
    for key in ("session", "subject", "output", "model", "served_model", "rater", "comment"):
        if key in poisoned:
            poisoned[key] = f"{poisoned[key]} {text}"
    if poisoned.get("kind") == "correction":
        poisoned["value"] = text
    return poisoned


def long_home() -> list[dict[str, Any]]:
    """A megabyte, ten thousand steps, right to left, and letters with many marks."""
    right_to_left = "\u202eevil\u202c שלום \u2067עולם\u2069 مرحبا " * 20
    marks = ("a" + "\u0301" * 60 + " ") * 200
    texts = {"mega": "word " * (MEGABYTE // 5), "unbroken": "x" * 50_000}
    texts |= {"rtl": right_to_left, "marks": marks, "emoji": "👩‍👩‍👧‍👦" * 500}
    lines = []
    for name, text in texts.items():
        chat = [{"role": "user", "content": text}]
        lines.append(
            {"type": "trace", "id": name, "input": chat, "output": text, "session": text[:99]}
        )
    steps = [{"kind": "tool", "name": f"tool_{n}", "output": "y" * 300} for n in range(9_999)]
    steps.append({"kind": "llm", "output": "done"})
    lines.append({"type": "trace", "id": "steps", "input": "Go", "output": "done", "steps": steps})
    return lines


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    folder = tmp_path_factory.mktemp("hostile")
    with running_operations(folder, lines=hostile_home()) as world:
        fill(world.ws, folder, long_home())
        poison(world.ws)
        yield world


def poison(ws: Workspace) -> None:
    """Payloads where runs, versions, decisions and experiments name or explain something."""
    texts = iter(payloads())
    columns = (
        schema.runs.c.base,
        schema.runs.c.reason,
        schema.model_versions.c.base,
        schema.experiments.c.reason,
        schema.loop_checks.c.reason,
        schema.jobs.c.asked_by,
        schema.loop_decisions.c.question,
    )

    def work(connection: sa.Connection) -> None:
        for column in columns:
            connection.execute(sa.update(column.table).values({column.name: next(texts)}))
        error = {"kind": "InputError", "what": next(texts), "why": next(texts), "fix": next(texts)}
        connection.execute(sa.update(schema.jobs).values(error=error))

    ws.db.write(work)


def check_inert(page: Page) -> None:
    assert page.evaluate(ALIVE) == []
    assert page.evaluate("window.pwned") is None


def test_two_hundred_payloads_do_nothing_on_any_page(browser: Browser, pages: PagesWorld) -> None:
    assert len(payloads()) == 200
    foreign: list[str] = []
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.page
        page.on("dialog", lambda dialog: foreign.append(dialog.message))
        page.on("request", lambda request: foreign.append(request.url))
        listed = 0
        address: str | None = LIST
        while address is not None:
            person.open(address)
            check_inert(page)
            listed += page.locator("#traces > tr").count()
            following = page.get_by_role("link", name="Next page")
            address = following.get_attribute("href") if following.count() else None
            address = None if address is None else f"{LIST}{address}"
        assert listed > 200
        everything = f"{LIST}/everything"
        addresses = [url.format(**pages.parts) for url in URLS.values()]
        addresses += [f"{everything}?steps={first}" for first in (0, 100, 200, 300)]
        for path in addresses:
            person.open(path)
            page.evaluate("for (const all of document.querySelectorAll('details')) all.open = true")
            check_inert(page)
        for trace in list_traces(pages.ws, AGENT, limit=8).traces:
            person.open(f"{LIST}/{trace.id}")
            check_inert(page)
            person.open(f"{LIST}/{trace.id}/lineage")
            check_inert(page)
        person.check()
    assert [url for url in foreign if not url.startswith(pages.url)] == []
    assert SERVER not in pages.url


@pytest.mark.parametrize("name", ["mega", "unbroken", "rtl", "marks", "emoji", "steps"])
def test_long_and_strange_texts_leave_a_page_that_can_be_used(
    browser: Browser, pages: PagesWorld, name: str
) -> None:
    with visitor(browser, pages.url, size=NARROW, code=pages.code) as person:
        answer = person.page.goto(f"{LIST}/{name}")
        assert answer is not None and len(answer.body()) < MOST_HTML
        assert not person.is_too_wide()
        expect(person.page.get_by_role("button", name="Good")).to_be_visible()
        if name == "rtl":
            assert "\u202e" not in person.page.inner_text("body"), "its direction is its own"
        person.check()


def test_the_rest_of_a_long_answer_comes_on_demand(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"{LIST}/mega")
        button = page.get_by_role("button", name="Show all of the answer")
        button.click()
        expect(button).to_have_count(0)
        whole = page.locator(".turn.answer pre")
        assert whole.evaluate("element => element.textContent.length") >= MEGABYTE - 5
        person.check()


def test_ten_thousand_steps_come_in_parts(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"{LIST}/steps")
        assert page.locator(".timeline > li").count() == 100
        page.get_by_role("link", name="Next steps").click()
        expect(page.locator(".timeline > li").first).to_contain_text("tool_100")
        page = person.open(f"{LIST}/steps?steps=10000")
        expect(page.locator(".timeline > li")).to_have_count(1)
        person.check()


def test_pages_of_a_list_are_small(pages: PagesWorld) -> None:
    headers = {"authorization": f"Bearer {pages.token}", "accept": "text/html"}
    answer = httpx2.get(f"{pages.url}{LIST}", headers=headers, timeout=60)
    assert answer.status_code == 200
    assert len(answer.content) < 150_000
