"""Debian's chromium by Playwright, and what a page must never do: break its policy, or fail in a
script."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.pictures import BROWSER
from tests.required import missing

Scheme = Literal["light", "dark"]
NARROW, WIDE = (320, 640), (1280, 800)
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""
"""Runs before the scripts of every page."""
MILLISECONDS = 30_000
"""That anything of a page may take: machines are busy."""
FIRST_MILLISECONDS = 10 * MILLISECONDS
"""That the first answer of a server may take: it builds its routes then."""
expect.set_options(timeout=MILLISECONDS)
RULES = {"resultTypes": ["violations"]}
_AXE = Axe()


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A browser without a window; the test is skipped where there is none."""
    executable = shutil.which(BROWSER)
    if executable is None:
        missing("all", f"{BROWSER} is not installed")
    with sync_playwright() as playwright:
        # CI is root in a container, and the pages are our own
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@dataclass
class Visitor:
    """A person with a browser window of their own at a server."""

    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors of scripts, and what the policy forbade."""

    def open(self, path: str) -> Page:
        """Go to a page of the server."""
        self.page.goto(path)
        return self.page

    def check(self) -> None:
        """Fail where a script failed, or something broke the policy."""
        violations = self.page.evaluate("window.violations || []")
        assert self.complaints + violations == []

    def axe(self) -> list[str]:
        """What axe objects to on the page as it is: each rule with the elements that break it."""
        violations = _AXE.run(self.page, options=RULES).response["violations"]
        objections = []
        for violation in violations:
            elements = [node["html"] for node in violation["nodes"]]
            objections.append(f"{violation['id']}: {violation['help']}: {elements[:4]}")
        return objections

    def is_too_wide(self) -> bool:
        """Whether the page scrolls sideways."""
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )


@contextmanager
def visitor(
    browser: Browser,
    url: str,
    scheme: Scheme = "light",
    size: tuple[int, int] = WIDE,
    code: str | None = None,
) -> Iterator[Visitor]:
    """A person at the server at `url`, logged in by a code where there is one."""
    width, height = size
    context = browser.new_context(
        base_url=url,
        color_scheme=scheme,
        reduced_motion="reduce",
        viewport={"width": width, "height": height},
    )
    context.set_default_timeout(MILLISECONDS)
    context.add_init_script(WATCH)
    person = Visitor(context, context.new_page())
    _watch(person)
    try:
        if code is not None:
            context.request.get("/login", timeout=FIRST_MILLISECONDS)
            person.open(f"/login?code={code}")
        yield person
    finally:
        context.close()


def _watch(person: Visitor) -> None:
    def heard(message: ConsoleMessage) -> None:
        # a refused request is said to the person, and the browser says it too
        if message.type == "error" and "Failed to load resource" not in message.text:
            person.complaints.append(message.text)

    person.page.on("console", heard)
    person.page.on("pageerror", lambda error: person.complaints.append(str(error)))
