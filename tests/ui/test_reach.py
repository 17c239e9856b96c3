"""Every page, for everybody: on a phone, at 200 %, by screen reader, over 3G; those with the most
controls by keyboard alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.ui.page_urls import URLS
from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import PagesWorld

PHONE = (375, 740)
ZOOMED = (640, 400)
"""What a window of 1280 times 800 pixels has at 200 %."""
RATINGS = "question,answer,thumb\n" + "".join(
    f"Where is parcel {number}?,In the depot.,{('up', 'down')[number % 2]}\n" for number in range(6)
)
BY_KEYBOARD = (
    "home",
    "overview",
    "import",
    "bench",
    "playground",
    "replay",
    "runs",
    "compare",
    "bases",
    "settings",
    "traces",
)
"""Pages with controls of every kind, which are gone through key by key."""


def show_preview(page: Page) -> None:
    rows = {"name": "ratings.csv", "mimeType": "text/csv", "buffer": RATINGS.encode()}
    page.get_by_label("File", exact=True).set_input_files(rows)  # type: ignore[arg-type]
    expect(page.locator("[data-count=good] b")).to_have_text("3")


def show_item(page: Page) -> None:
    expect(page.locator("#controls button").first).to_be_visible()


PREPARED: dict[str, Callable[[Page], None]] = {"import": show_preview, "bench": show_item}
"""Page -> what is done on it, or waited for, before it is looked at."""

CLIPPED = """() => {
  const clipped = [];
  for (const element of document.querySelectorAll("main *, header *, nav *")) {
    const style = getComputedStyle(element);
    if (!element.checkVisibility() || !element.textContent.trim()) continue;
    if (element.closest(".hidden, .skip, svg, [tabindex='0']")) continue;
    const hides = ["hidden", "clip"].includes(style.overflowX);
    if (hides && style.textOverflow !== "ellipsis" && element.scrollWidth > element.clientWidth + 1)
      clipped.push(element.outerHTML.slice(0, 120));
  }
  return clipped;
}"""
"""Elements whose words are cut without a sign of it."""
OUTSIDE = """() => {
  const outside = [];
  for (const element of document.querySelectorAll("a[href], button, input, select, textarea")) {
    if (!element.checkVisibility({checkVisibilityCSS: true})) continue;
    if (element.closest(".skip, .hidden")) continue;
    let scrolls = false;
    for (let part = element.parentElement; part; part = part.parentElement)
      scrolls ||= ["auto", "scroll"].includes(getComputedStyle(part).overflowX);
    const box = element.getBoundingClientRect();
    if (!scrolls && box.width > 2 && (box.right > innerWidth + 1 || box.left < -1))
      outside.push(element.outerHTML.slice(0, 120));
  }
  return outside;
}"""
"""Controls that stand beside the window, in no part that scrolls: a finger does not reach them."""
TOO_SMALL = """() => {
  const small = [];
  for (const element of document.querySelectorAll("button, summary, select, input, .button")) {
    if (!element.checkVisibility({checkVisibilityCSS: true})) continue;
    const target = element.closest("label") ?? element;
    const box = target.getBoundingClientRect();
    if (box.width > 2 && (box.height < 23.5 || box.width < 23.5))
      small.push(`${box.width} x ${box.height}: ${element.outerHTML.slice(0, 120)}`);
  }
  return small;
}"""
"""Controls under 24 pixels (WCAG 2.5.8)."""
PARTS_OF_FIELDS = 24
"""More stops than there are controls: a date is typed in parts."""
REACHABLE = """() => {
  const seen = new Set();
  let count = 0;
  const all = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  for (const element of document.querySelectorAll(all)) {
    if (!element.checkVisibility({checkVisibilityCSS: true}) || element.disabled) continue;
    if (element.tabIndex < 0 || element.type === "hidden" || element.closest("dialog:not([open])"))
      continue;
    if (element.type === "radio") {
      if (seen.has(element.name)) continue;
      seen.add(element.name);
    }
    element.dataset.reach = String(count++);
  }
  return count;
}"""
"""Number the controls that a keyboard has to reach, and count them."""
FOCUSED = """() => {
  let element = document.activeElement;
  if (!element || element === document.body) return null;
  let number = element.dataset.reach ?? null;
  if (element.type === "radio" && number === null)
    number = document.querySelector(`[name="${element.name}"][data-reach]`)?.dataset.reach ?? null;
  const style = getComputedStyle(element);
  // The parts of a date show the focus themselves.
  const shown = element.type === "date" || element.matches(":focus-visible")
    && ((style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)
      || style.boxShadow !== "none");
  return {number, shown, html: element.outerHTML.slice(0, 120)};
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page."""
    with running_operations(tmp_path_factory.mktemp("operations")) as world:
        yield world


def opened(person: Visitor, pages: PagesWorld, name: str) -> Page:
    page = person.open(URLS[name].format(**pages.parts))
    expect(page.locator("main h1")).to_be_visible()
    if name in PREPARED:
        PREPARED[name](page)
    return page


def complaints_of_layout(page: Page) -> list[str]:
    complaints = [f"cut: {html}" for html in page.evaluate(CLIPPED)]
    complaints += [f"beside the window: {html}" for html in page.evaluate(OUTSIDE)]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        complaints.append("it scrolls sideways")
    return complaints


def test_a_phone_shows_everything_and_every_control_takes_a_finger(
    browser: Browser, pages: PagesWorld
) -> None:
    complaints_by_page: dict[str, list[str]] = {}
    with visitor(browser, pages.url, size=PHONE, code=pages.code) as person:
        for name in URLS:
            page = opened(person, pages, name)
            complaints = complaints_of_layout(page)
            complaints += [f"too small: {html}" for html in page.evaluate(TOO_SMALL)]
            if complaints:
                complaints_by_page[name] = complaints
            person.check()
    assert complaints_by_page == {}


def test_at_200_percent_nothing_is_cut(browser: Browser, pages: PagesWorld) -> None:
    """Once the whole page is twice as large, once its text alone."""
    complaints_by_page: dict[str, list[str]] = {}
    with visitor(browser, pages.url, size=ZOOMED, code=pages.code) as person:
        for name in URLS:
            if complaints := complaints_of_layout(opened(person, pages, name)):
                complaints_by_page[name] = complaints
    with visitor(browser, pages.url, code=pages.code) as person:
        settings = {"standard": 32, "fixed": 26}
        devtools(person.page).send("Page.setFontSizes", {"fontSizes": settings})
        for name in URLS:
            if complaints := complaints_of_layout(opened(person, pages, name)):
                complaints_by_page[f"{name}, large text"] = complaints
    assert complaints_by_page == {}


@pytest.mark.parametrize("name", BY_KEYBOARD)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    browser: Browser, pages: PagesWorld, name: str
) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = opened(person, pages, name)
        count = page.evaluate(REACHABLE)
        first = page.locator("[data-reach='0']")
        expect(first).to_have_text("Skip to the content")
        first.focus()
        reached = {"0"}
        order: list[int] = []
        hidden: list[str] = []
        for _ in range(count + PARTS_OF_FIELDS):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused is None:
                break
            if focused["number"] is not None:
                reached.add(focused["number"])
                order.append(int(focused["number"]))
            if not focused["shown"]:
                hidden.append(focused["html"])
        missed = [
            page.locator(f"[data-reach='{number}']").first.evaluate(
                "element => element.outerHTML.slice(0, 120)"
            )
            for number in range(count)
            if str(number) not in reached
        ]
        assert missed == []
        assert hidden == [], "the focus is not seen"
        assert order == sorted(order), "the keyboard goes in the order of the page"


def test_the_content_is_one_key_away(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = opened(person, pages, "runs")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_a_screen_reader_hears_what_everything_is(browser: Browser, pages: PagesWorld) -> None:
    complaints_by_page: dict[str, list[str]] = {}
    with visitor(browser, pages.url, code=pages.code) as person:
        for name in URLS:
            page = opened(person, pages, name)
            if complaints := complaints_of_tree(devtools(page)):
                complaints_by_page[name] = complaints
    assert complaints_by_page == {}


NAMED = {
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "radio",
    "spinbutton",
    "slider",
    "img",
    "image",
    "table",
    "dialog",
    "navigation",
    "region",
    "progressbar",
}
"""Roles that say nothing without a name."""


def complaints_of_tree(session: CDPSession) -> list[str]:
    """What is wrong with the tree that the browser gives to a screen reader."""
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    nodes = [node for node in nodes if not node.get("ignored")]
    complaints: list[str] = []
    roles: Counter[str] = Counter()
    levels = [0]
    for node in nodes:
        role, name = value(node, "role"), value(node, "name").strip()
        roles[role] += 1
        if role in NAMED and not name:
            complaints.append(f"{role} without a name")
        if role == "heading":
            levels.append(level_of(node))
            if levels[-1] > levels[-2] + 1:
                complaints.append(f"heading {name!r} skips from {levels[-2]} to {levels[-1]}")
    once = {"main": roles["main"], "banner": roles["banner"], "h1": levels.count(1)}
    complaints += [f"{count} of {what}" for what, count in once.items() if count != 1]
    if not roles["status"]:
        complaints.append("no place where messages are read aloud")
    return complaints


def level_of(node: dict[str, Any]) -> int:
    (level,) = (entry for entry in node["properties"] if entry["name"] == "level")
    return int(level["value"]["value"])


def value(node: dict[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", ""))


LATENCY, BYTES_A_SECOND = 400, 50_000
"""Milliseconds a request and speed of slow 3G, as browsers' tools have them."""
MOST_COLD, MOST_WARM = 100_000, 80_000
"""Bytes of the first page, and of each further one."""
MOST_REQUESTS = 16


def devtools(page: Page) -> CDPSession:
    return page.context.new_cdp_session(page)


def test_over_3g_pages_are_small_and_usable(browser: Browser, pages: PagesWorld) -> None:
    """Seconds depend on the machine; bytes and requests do not, and make the seconds on 3G."""
    transfers: dict[str, dict[str, int]] = {}
    with visitor(browser, pages.url, code=pages.code) as person:
        session = devtools(person.page)
        session.send("Network.enable")
        session.send("Network.clearBrowserCache")
        session.send(
            "Network.emulateNetworkConditions",
            {
                "offline": False,
                "latency": LATENCY,
                "downloadThroughput": BYTES_A_SECOND,
                "uploadThroughput": BYTES_A_SECOND,
            },
        )
        sizes: list[int] = []
        session.on("Network.loadingFinished", lambda done: sizes.append(done["encodedDataLength"]))
        for name in URLS:
            sizes.clear()
            opened(person, pages, name)
            person.page.wait_for_load_state("networkidle")
            over_network = [int(size) for size in sizes if size]
            transfers[name] = {"bytes": sum(over_network), "requests": len(over_network)}
        person.check()
    first, *others = transfers.values()
    assert first["bytes"] <= MOST_COLD, transfers
    assert max(page["bytes"] for page in others) <= MOST_WARM, transfers
    assert max(page["requests"] for page in transfers.values()) <= MOST_REQUESTS, transfers
