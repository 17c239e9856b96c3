"""The channels of notices on the page of settings: a test goes out by a button, and what the
receiver refuses is said."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.servers.notice_receivers import http_receiver
from tests.unit.notify.test_delivery import ask, home, webhook
from tests.worlds.browser_world import WIDE, visitor
from tests.worlds.gateway_world import running
from tests.worlds.pages_world import PagesWorld


def test_a_test_is_sent_by_a_button(browser: Browser, tmp_path: Path) -> None:
    with http_receiver() as receiver, home(tmp_path, {"ops": webhook(receiver)}) as ws:
        ask(ws, tmp_path)
        with running(ws) as server:
            world = PagesWorld(ws, server.url)
            with visitor(browser, world.url, size=WIDE, code=world.code) as person:
                page = person.open("/settings?section=notify")
                button = page.get_by_role("button", name="Send a test")
                button.click()
                expect(page.get_by_role("status")).to_contain_text("ops took a test notice")
                assert len(receiver.received) == 1
                receiver.statuses = [500]
                button.click()
                expect(page.get_by_role("status")).to_contain_text("answers HTTP 500")
                assert person.axe() == []
                if picture := os.environ.get("THUMBWHEEL_UI_PICTURES"):
                    page.evaluate("scrollTo(0, 0)")
                    page.screenshot(path=Path(picture) / "settings-notify.png")
