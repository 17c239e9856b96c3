"""From fifteen ratings to a model that everybody gets, by clicking alone: rate, train, evaluate,
deploy, experiment, promoted. The model is small, and learns for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.models.tiny_models import tiny_base
from tests.ui.test_operations import confirm
from tests.worlds.animals_world import PLACES
from tests.worlds.browser_world import visitor
from tests.worlds.gateway_world import opened_home, running
from tests.worlds.pages_world import PagesWorld
from thumbwheel.capture.ingest import ingest
from thumbwheel.deploy.running import stop
from thumbwheel.models import versions
from thumbwheel.models.types import Agent

AGENT = "animals"
PAGES = f"/agents/{AGENT}"
RATED = 15
PATIENCE = 240_000
"""Milliseconds that a training or a deployment may take on a busy machine."""


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[PagesWorld]:
    """A home with fifteen recorded answers that nobody rated, sixty gold cases, and a random base:
    foxes live in the den, dogs in the yard."""
    traces: list[dict[str, object]] = []
    cases: list[dict[str, object]] = []
    for number in range(RATED):
        word = ("fox", "dog")[number % 2]
        asked = f"{word} {number}"
        traces.append({"type": "trace", "id": asked, "input": asked, "output": PLACES[word]})
    for number in range(60):
        word = ("fox", "dog")[number % 2]
        case = {"type": "case", "id": f"case{number}", "input": f"{word} {100 + number}"}
        cases.append(case | {"reference": json.loads(PLACES[word]), "checker": "json_fields"})
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    tiny_base(tmp_path / "small", initializer_range=0.1, **sizes)
    with opened_home(tmp_path / "home") as ws:
        ingest(ws, AGENT, "jsonl", write_lines(tmp_path / "traces.jsonl", traces))
        gold = write_lines(tmp_path / "gold.jsonl", cases)
        ingest(ws, AGENT, "jsonl", gold, reviewer="ann")
        ws.home.bases.mkdir()
        (ws.home.bases / "small").symlink_to(tmp_path / "small")
        with running(ws, drain_every=0.02) as server:
            yield PagesWorld(ws, server.url)
        stop(ws, Agent.named(AGENT))


@pytest.mark.slow
def test_fifteen_ratings_become_what_everybody_gets(browser: Browser, pages: PagesWorld) -> None:
    with visitor(browser, pages.url, code=pages.code) as person:
        page = person.page
        rate(page)
        train(page)
        approve(page)
        deploy(page, "v0", "live")
        deploy(page, "v1", "none")
        start_experiment(page)
        people_ask(pages)
        page.get_by_role("link", name="Experiments", exact=True).click()
        expect(decided(page).get_by_role("cell", name="won", exact=True)).to_be_visible()
        page.get_by_role("link", name="Deployments").click()
        expect(page.get_by_role("listitem").filter(has_text="live").first).to_contain_text("v1")
        person.check()
    live = versions.aliases_of(pages.ws, Agent.named(AGENT))["live"]
    assert versions.by_id(pages.ws, live).name == "v1"


def rate(page: Page) -> None:
    """Call every recorded answer good."""
    page.goto(f"{PAGES}/traces")
    addresses = []
    for number in range(RATED):
        link = page.get_by_role("link", name=f"{('fox', 'dog')[number % 2]} {number}", exact=True)
        addresses.append(link.get_attribute("href"))
    for address in addresses:
        page.goto(str(address))
        with page.expect_navigation():
            page.get_by_role("button", name="Good", exact=True).click()


def train(page: Page) -> None:
    page.get_by_role("link", name="Data plan").click()
    page.goto(f"{PAGES}/train?method=sft")
    page.get_by_role("combobox", name="Base").fill("small")
    page.get_by_label("Learning rate").fill("0.01")
    page.get_by_label("Max steps").fill("60")
    page.get_by_text("All settings of sft").click()
    page.get_by_label("Min rows").fill("5")
    page.get_by_label("Probe prompts").fill("0")
    page.get_by_label("Require gain").uncheck()
    with page.expect_navigation(timeout=PATIENCE):
        page.get_by_role("button", name="Train", exact=True).click()
    expect(page.get_by_role("row", name="sft small")).to_contain_text("finished")


def approve(page: Page) -> None:
    """Declare a gate for a random base, which has no general skill to lose, and pass it."""
    page.get_by_role("link", name="Gate").click()
    page.get_by_text("All settings of the gate").click()
    page.get_by_label("Margin anchors").fill("9")
    page.get_by_label("Max growth").fill("99")
    with page.expect_navigation():
        page.get_by_role("button", name="Declare the gate").click()
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("link", name="v1", exact=True).last.click()
    with page.expect_navigation(timeout=PATIENCE):
        page.get_by_role("button", name="Evaluate", exact=True).click()
    expect(page.locator(".verdict")).to_contain_text("Approved on the basis of gold")


def deploy(page: Page, version: str, alias: str) -> None:
    page.goto(f"{PAGES}/models/{version}")
    page.get_by_label("Target").select_option("embedded")
    page.get_by_label("Alias").select_option(alias)
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"A canary check first tests {version}")
    with page.expect_navigation(timeout=PATIENCE):
        confirm(page, "Deploy")
    expect(page.get_by_role("row", name=f"{version} embedded")).to_contain_text("answers")


def start_experiment(page: Page) -> None:
    page.get_by_role("link", name="Experiments", exact=True).click()
    page.get_by_role("link", name="Start an experiment").click()
    expect(page.get_by_label("Arms")).to_have_value("v0\nv1")
    page.get_by_label("Effect").fill("0.5")
    page.get_by_label("Min units").fill("20")
    page.get_by_label("Min hours").fill("0")
    page.get_by_text("All settings").click()
    page.get_by_label("Min senders").fill("1")
    page.get_by_label("Guards").fill("")
    page.get_by_role("button", name="Start", exact=True).click()
    with page.expect_navigation():
        confirm(page, "Start")


def people_ask(world: PagesWorld) -> None:
    """The people who are served like answers that are right."""
    with httpx2.Client(base_url=f"{world.url}/a/{AGENT}", timeout=60, trust_env=False) as client:
        for number in range(80):
            word = ("fox", "dog")[number % 2]
            messages = [{"role": "user", "content": f"{word} {200 + number}"}]
            body = {"model": AGENT, "messages": messages, "max_tokens": 14, "temperature": 0}
            who = {"x-thumbwheel-subject": f"person-{number}"}
            answer = client.post("/v1/chat/completions", json=body, headers=who)
            text = answer.json()["choices"][0]["message"]["content"]
            thumb = {"trace": answer.headers["x-thumbwheel-trace"]}
            thumb |= {"thumb": PLACES[word] in text, "rater": f"person-{number}"}
            assert client.post("/api/feedback", json=thumb).status_code == 202


def decided(page: Page) -> Page:
    """The list of experiments once the server has decided: it looks every second."""
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    for _ in range(60):
        if page.get_by_role("cell", name="won", exact=True).count():
            break
        page.wait_for_timeout(500)
        page.reload()
    return page
