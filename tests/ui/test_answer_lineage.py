"""From an answer back to the single pieces of feedback that taught its model, and forward to what
learned from a trace and what erasing its person removes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.worlds.browser_world import visitor
from tests.worlds.erasure_world import AGENT, lines_of, name, word
from tests.worlds.pages_world import PagesWorld, running_pages
from tests.worlds.sealed_calls import record_calls
from thumbwheel.access import users
from thumbwheel.core import ids
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion

PEOPLE = 12
PASSWORD = "correct horse battery"


def trained(ws: Workspace, folder: Path) -> ModelVersion:
    """A version that learned from the labels of the home, as a run leaves it."""
    dataset = build(ws, AGENT, "labels", DatasetConfig(dev=0.2, gate=0.4))
    base = versions.ensure_base(ws, AGENT, "/models/base", "ab" * 32)
    row = {
        "id": ids.new("run"),
        "agent_id": base.agent_id,
        "algorithm": "kto",
        "dataset_id": dataset.id,
        "base": "/models/base",
        "config": {},
        "seed": 1,
        "environment": {},
        "state": "finished",
        "metrics": {},
        "recorded_at": datetime.now(UTC),
    }
    ws.db.write(lambda connection: connection.execute(schema.runs.insert().values(**row)) and None)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_text("weights")
    return versions.add_candidate(ws, base, str(row["id"]), adapter)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    folder = tmp_path_factory.mktemp("lineage")
    lines = []
    for person in range(PEOPLE):
        lines += lines_of(person)
    with running_pages(folder, lines=lines) as world:
        version = trained(world.ws, folder)
        answered = {
            "type": "trace",
            "agent": AGENT,
            "id": "answered",
            "input": "Hello?",
            "output": "Hi!",
        }
        routing = {"arm": "new", "experiment": "exp_1", "reason": "drawn with 0.5"}
        call = {"kind": "llm", "output": "Hi!", "model_version": version.name, "routing": routing}
        record_calls(world.ws, [answered | {"steps": [call]}])
        yield world


def test_from_an_answer_to_the_feedback_that_taught_it(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"/agents/{AGENT}/traces/answered")
        about = page.get_by_label("About")
        expect(about).to_contain_text("v1")
        expect(about).to_contain_text("drawn with 0.5")
        page.get_by_role("link", name="Lineage of this answer").click()
        back = page.get_by_label("Training data of the model that answered")
        expect(back).to_contain_text("kto")
        expect(back).to_contain_text("I did not like it, says")
        assert person.axe() == []
        back.get_by_role("link", name="about this trace").first.click()
        expect(page.get_by_label("Feedback")).to_contain_text("thumb")
        person.check()


def test_from_a_trace_to_what_learned_from_it_and_what_is_erased(
    browser: Browser, pages: PagesWorld
) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(3)}/lineage")
        forward = page.get_by_label("Where this trace was used")
        expect(forward).to_contain_text("labels")
        erasure = page.get_by_label("If this person asks for erasure")
        expect(erasure).to_contain_text("tainted versions")
        page.get_by_role("button", name="Erase this person").click()
        page.get_by_role("dialog").get_by_role("button", name="Erase everything").click()
        page.wait_for_url(f"**/agents/{AGENT}/traces")
        page = person.open(f"/agents/{AGENT}/traces?subject={name(3)}")
        expect(page.get_by_text("No trace matches.")).to_be_visible()
        page = person.open(f"/agents/{AGENT}/traces/answered/lineage")
        expect(page.get_by_label("Training data of the model that answered")).to_contain_text(
            "tainted"
        )
        person.check()


def test_pages_show_to_each_what_they_may(browser: Browser, pages: PagesWorld) -> None:
    users.add(pages.ws, "rita", password=PASSWORD, role="rater", agent=AGENT)
    users.add(pages.ws, "vera", password=PASSWORD, role="viewer", agent=AGENT)
    with visitor(browser, pages.url) as person:
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(1)}")
        page.get_by_label("Name").fill("rita")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("button", name="Good")).to_be_visible()
        expect(page.get_by_text("Add as a gold case")).to_have_count(0)
        expect(page.get_by_role("link", name="Add an agent")).to_have_count(0)
        page.get_by_role("button", name="Good").click()
        expect(page.get_by_label("Feedback")).to_contain_text("rita")
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(1)}/lineage")
        expect(page.get_by_text("Only an owner of the agent")).to_be_visible()
        page = person.open("/start")
        expect(page.locator(".verdict.bad")).to_contain_text("may not run")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        page.get_by_label("Name").fill("vera")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(1)}")
        expect(page.get_by_label("Feedback")).to_contain_text("rita")
        expect(page.get_by_role("button", name="Good")).to_have_count(0)
        person.check()


def test_a_session_that_ends_in_the_midst_says_so_and_loses_nothing(
    browser: Browser, pages: PagesWorld
) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(2)}")
        page.get_by_text("Write a better answer").click()
        page.get_by_label("Corrected answer").fill("Press twice.")
        cookies: list[Any] = [*person.context.cookies()]
        person.context.clear_cookies()
        page.get_by_role("button", name="Save the correction").click()
        expect(page.get_by_role("status")).to_contain_text("logged out")
        expect(page.get_by_label("Corrected answer")).to_have_value("Press twice.")
        person.context.add_cookies(cookies)  # another tab logged in
        page.get_by_role("button", name="Save the correction").click()
        expect(page.get_by_label("Feedback")).to_contain_text("Press twice.")
        person.check()


def test_a_lost_network_says_so_and_the_same_click_works_later(
    browser: Browser, pages: PagesWorld
) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.open(f"/agents/{AGENT}/traces/t0-{word(4)}")
        person.context.set_offline(True)
        page.get_by_role("button", name="Bad").click()
        expect(page.get_by_role("status")).to_contain_text("cannot be reached")
        person.context.set_offline(False)
        page.get_by_role("button", name="Bad").click()
        expect(page.get_by_label("Feedback")).to_contain_text("owner")
        person.check()
