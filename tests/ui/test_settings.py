"""The owner of the home changes settings on a page: a wrong value stands at its field, a right one
is in the file, and whatever needs a restart says so."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.pictures import without_folder
from tests.worlds.browser_world import visitor
from tests.worlds.gateway_world import running
from tests.worlds.pages_world import PagesWorld
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

FILE = "# ours\ngate:\n  alpha: 0.05  # agreed\n"
PHONE = (375, 740)


def test_settings_are_changed_on_the_page(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "thumbwheel.yaml"
    file.write_text(FILE)
    with (
        Workspace.open(Home(tmp_path / "home"), Sources.read(file, {})) as ws,
        running(ws) as server,
    ):
        world = PagesWorld(ws, server.url)
        with visitor(browser, world.url, size=PHONE, code=world.code) as person:
            page = person.open("/settings?section=gate")
            alpha = page.get_by_label("Alpha", exact=True)
            expect(alpha).to_have_value("0.05")
            # by the keyboard alone
            alpha.focus()
            alpha.press("Control+a")
            page.keyboard.type("0")
            page.keyboard.press("Enter")
            expect(page.locator("[id='f-alpha-objection']")).to_contain_text("greater than 0")
            assert file.read_text() == FILE
            alpha.fill("0.01")
            with page.expect_navigation():
                alpha.press("Enter")
            expect(alpha).to_have_value("0.01")
            assert file.read_text() == FILE.replace("0.05", "0.01")
            assert person.axe() == []
            assert not person.is_too_wide()
            with page.expect_navigation():
                page.get_by_role("button", name="Use the default of Alpha").click()
                page.get_by_role("dialog").get_by_role("button", name="Use the default").click()
            assert "alpha" not in file.read_text()

            page = person.open("/settings?section=log")
            with page.expect_navigation():
                page.get_by_label("Requests").check()
                page.get_by_role("button", name="Save").click()
            expect(page.get_by_text("Restart the server to apply:")).to_be_visible()
            assert person.axe() == []
            person.check()
            if picture := os.environ.get("THUMBWHEEL_UI_PICTURES"):
                page.set_viewport_size({"width": 1280, "height": 800})
                page.evaluate("scrollTo(0, 0)")
                without_folder(page, tmp_path)
                page.screenshot(path=Path(picture) / "settings.png")
