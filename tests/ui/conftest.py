"""A browser, and a server over the small world of the pages, for a module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.worlds.browser_world import Visitor, opened_browser, visitor
from tests.worlds.pages_world import PagesWorld, running_pages

PICTURES = "THUMBWHEEL_UI_PICTURES"
"""The folder that pictures of the pages are written to; none are without it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here take a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ui)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while Playwright is open, its event loop runs in this thread, and tests
    of other modules could start none."""
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    with running_pages(tmp_path_factory.mktemp("pages")) as world:
        yield world


@pytest.fixture
def person(browser: Browser, pages: PagesWorld) -> Iterator[Visitor]:
    """Somebody who is logged in as the owner, and whose pages must break nothing."""
    with visitor(browser, pages.url, code=pages.code) as person:
        yield person
        person.check()


@pytest.fixture(scope="session")
def pictures() -> Path | None:
    folder = os.environ.get(PICTURES)
    return None if folder is None else Path(folder)
