"""The pages of operations under a person's hands: what is clicked happens once, against the state
that was seen, and what is refused is said where it belongs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.worlds.browser_world import Visitor, visitor
from tests.worlds.operations_world import running_operations
from tests.worlds.pages_world import PagesWorld
from thumbwheel.access import keys
from thumbwheel.datasets import build
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.evaluation.declaration import declarations, policy_of
from thumbwheel.experiments import controller
from thumbwheel.jobs import queue
from thumbwheel.loop.loops import status
from thumbwheel.models import versions
from thumbwheel.models.types import Agent
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.usage import UsageFile

AGENT = Agent.named("support")
PAGES = "/agents/support"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A server over a home that has something for every page."""
    with running_operations(tmp_path_factory.mktemp("operations")) as world:
        yield world


def confirm(page: Page, word: str) -> None:
    """Say yes to what a dialog asks."""
    page.get_by_role("dialog").get_by_role("button", name=word, exact=True).click()


def live(world: PagesWorld) -> str:
    version_id = versions.aliases_of(world.ws, AGENT)["live"]
    return versions.by_id(world.ws, version_id).name


def test_curves_go_on_while_a_run_trains(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/runs")
    panels = page.locator("#curves figure")
    expect(panels).to_have_count(4)
    expect(page.locator("#curves")).to_have_attribute("data-drawn", "3")
    page.get_by_label("Draw sft run_sft").uncheck()
    expect(page.locator("#curves")).to_have_attribute("data-drawn", "2")
    with RunDir(pages.ws.home.runs / "run_kto").metrics.open("a") as stream:
        stream.write(json.dumps({"step": 121, "loss": 0.0625}) + "\n")
    drawing = page.get_by_role("img", name="Loss")
    expect(drawing).to_have_attribute("aria-label", _ending("kto train", "0.0625"))
    page.get_by_label("Draw all runs").check()
    expect(page.locator("#curves")).to_have_attribute("data-drawn", "3")


def test_a_training_begins_with_the_settings_of_an_earlier_run(person: Visitor) -> None:
    sent: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(json={})

    page = person.open(f"{PAGES}/runs/run_sft")
    page.get_by_role("link", name="Train with these settings").click()
    expect(page.get_by_label("Learning rate")).to_have_value("0.0005")
    page.get_by_label("Seed").fill("7")
    page.route("**/api/agents/support/runs/sft", answer)
    page.get_by_role("button", name="Train").click()
    expect(page).to_have_url(re.compile("/runs$"))
    assert sent[0]["learning_rate"] == 0.0005 and sent[0]["seed"] == 7


def test_a_run_that_trains_says_how_long_it_takes_on(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/runs/run_kto")
    progress = page.locator("#progress")
    expect(progress).to_contain_text(re.compile(r"step 1\d\d of 400"))
    expect(page.get_by_role("img", name="Learning rate")).to_be_visible()
    with RunDir(pages.ws.home.runs / "run_kto").metrics.open("a") as stream:
        for step in range(191, 201):
            line = {"step": step, "loss": 0.0625, "step_seconds": 3.0}
            stream.write(json.dumps(line) + "\n")
    expect(progress).to_contain_text("200 of 400")
    expect(progress).to_contain_text("about 10 min left")


def _ending(curve: str, value: str) -> re.Pattern[str]:
    return re.compile(rf"{curve} from \S+ to {re.escape(value)}")


def test_a_double_click_does_it_once(person: Visitor, pages: PagesWorld) -> None:
    before = len(status(pages.ws, AGENT).checks)
    page = person.open(f"{PAGES}/loop")
    with page.expect_navigation():
        page.get_by_role("button", name="Check now whether a cycle is due").dblclick()
    expect(page.get_by_role("table", name="Newest checks")).to_be_visible()
    assert len(status(pages.ws, AGENT).checks) == before + 1


def test_what_is_refused_is_said_at_its_field(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/loop")
    zone = page.get_by_label("Timezone")
    zone.fill("Mars/Base")
    page.get_by_role("button", name="Enable the loop").click()
    expect(zone).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".objection")).to_contain_text("no time zone 'Mars/Base'")
    assert not status(pages.ws, AGENT).enabled
    zone.fill("Europe/Berlin")
    expect(page.locator(".objection")).to_have_count(0)


def test_two_people_change_the_gate(browser: Browser, person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/gate")
    page.get_by_label("Min cases").fill("77")
    page.get_by_label("Reason").fill("more cases have come")
    with visitor(browser, pages.url, code=pages.code) as other:
        other_page = other.open(f"{PAGES}/gate")
        other_page.get_by_label("Alpha").fill("0.01")
        other_page.get_by_label("Reason").fill("we have been wrong once")
        with other_page.expect_navigation():
            other_page.get_by_role("button", name="gate").click()
        other.check()
    page.get_by_role("button", name="gate").click()
    expect(page.get_by_role("status")).to_contain_text("Somebody else has changed this")
    expect(page.get_by_label("Min cases")).to_have_value("77")
    assert policy_of(pages.ws, AGENT).min_cases != 77
    assert len(declarations(pages.ws, AGENT)) == 2
    page.reload()
    expect(page.get_by_label("Alpha")).to_have_value("0.01")


def test_a_session_that_has_ended_loses_nothing(person: Visitor, pages: PagesWorld) -> None:
    page = person.open("/keys")
    page.get_by_label("Name").fill("late")
    person.context.clear_cookies()
    page.get_by_role("button", name="Make the key").click()
    expect(page.get_by_role("status")).to_contain_text("You are logged out")
    expect(page.get_by_label("Name")).to_have_value("late")
    person.context.new_page().goto(f"/login?code={pages.code}")
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("#new-key code")).to_contain_text("tw_")
    assert [key.name for key in keys.listed(pages.ws)].count("late") == 1


def test_a_key_is_shown_once_and_revoked(person: Visitor, pages: PagesWorld) -> None:
    page = person.open("/keys")
    page.get_by_label("Name").fill("nightly")
    page.get_by_role("button", name="Make the key").click()
    secret = page.locator("#new-key code")
    expect(secret).to_contain_text("tw_")
    text = secret.inner_text()
    page.reload()
    assert text not in page.content()
    page.get_by_role("row", name="nightly").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("Apps that use nightly lose access")
    with page.expect_navigation():
        confirm(page, "Revoke nightly")
    assert "nightly" not in [key.name for key in keys.listed(pages.ws)]


def test_an_export_is_downloaded_and_another_one_asked_for(
    person: Visitor, pages: PagesWorld
) -> None:
    page = person.open(f"{PAGES}/models/{pages.parts['candidate']}")
    page.get_by_text("Files to download").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="model.gguf").click()
    assert Path(download.value.path()).read_bytes() == b"GGUF" * 1000
    page.get_by_label("Format").select_option("adapter")
    with page.expect_request(re.compile("/exports$")) as asked:
        page.get_by_role("button", name="Export", exact=True).click()
    assert asked.value.method == "POST" and asked.value.post_data_json == {"format": "adapter"}


def test_answers_that_got_worse_are_shown_word_by_word(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/evaluations/{pages.parts['candidate']}")
    examples = page.locator("article[data-change]")
    count = examples.count()
    changes = {examples.nth(number).get_attribute("data-change") for number in range(count)}
    assert changes == {"worse", "better"}
    expect(page.locator("[data-side=before] del").first).to_be_visible()
    expect(page.locator("[data-side=after] ins").first).to_be_visible()
    expect(page.locator("[data-side=before] ins, [data-side=after] del")).to_have_count(0)
    page.get_by_label("Show", exact=True).select_option("answers that got worse")
    worse = page.locator("article[data-change=worse]")
    expect(worse.first).to_be_visible()
    expect(page.locator("article[data-change=better]").first).to_be_hidden()
    expect(page.locator("#shown")).to_have_text(f"{worse.count()} of {count}")


@pytest.mark.parametrize("path", ["models/v3", "evaluations/v3", "experiments/{experiment}"])
def test_charts_are_drawn_once_the_page_is_there(
    person: Visitor, pages: PagesWorld, path: str
) -> None:
    page = person.open(f"/agents/support/{path.format(**pages.parts)}")
    expect(page.locator("[data-charts] figure.drawing").first).to_be_visible()
    expect(page.locator("[data-later]")).to_have_count(0)
    person.check()


def test_a_version_goes_live_and_back(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/models/v1")
    page.get_by_role("button", name="Make live").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("moves from v0 to v1 in one step")
    dialog.get_by_role("button", name="Cancel").click()
    assert live(pages) == "v0"
    page.get_by_role("button", name="Make live").click()
    with page.expect_navigation():
        confirm(page, "Make v1 live")
    assert live(pages) == "v1"
    page.goto(f"{PAGES}/deployments")
    page.get_by_role("button", name="Roll back to v0").click()
    expect(page.get_by_role("dialog")).to_contain_text("from v1 back to v0")
    with page.expect_navigation():
        confirm(page, "Roll back to v0")
    assert live(pages) == "v0"


def test_an_experiment_is_paused_and_goes_on(person: Visitor, pages: PagesWorld) -> None:
    experiment = pages.parts["experiment"]
    page = person.open(f"{PAGES}/experiments/{experiment}")
    expect(page.get_by_role("img", name="Gain of v1 in thumb")).to_be_visible()
    for word, state in (("Pause", "paused"), ("Resume", "running")):
        page.get_by_label("Reason (stored with the experiment)").fill("the provider is down")
        page.get_by_role("button", name=word, exact=True).click()
        with page.expect_navigation():
            confirm(page, word)
        assert controller.find(pages.ws, experiment).state == state
    page.goto(f"{PAGES}/loop")
    decided = page.get_by_role("link", name="v0 against v1")
    expect(decided).to_have_attribute("href", f"{PAGES}/experiments/{experiment}")


def test_held_feedback_is_released(person: Visitor) -> None:
    page = person.open(f"{PAGES}/loop")
    page.get_by_role("row", name="visitor-7").get_by_role("button", name="Release").click()
    expect(page.get_by_role("dialog")).to_contain_text("These 60 thumbs count again")
    with page.expect_navigation():
        confirm(page, "Release")
    expect(page.get_by_role("heading", name="Held feedback")).to_have_count(0)


def test_a_job_is_followed_cancelled_and_resumed(person: Visitor, pages: PagesWorld) -> None:
    job_id = pages.parts["job"]
    page = person.open(f"/jobs/{job_id}")
    page.get_by_role("button", name="Cancel the job").click()
    confirm(page, "Cancel the job")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("[cancelled]")
    page.wait_for_load_state("networkidle")  # the click and the job's own event both load it anew
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Cancel the job")).to_be_visible()
    assert queue.job(pages.ws, job_id).state == "queued"
    # Somebody else cancels it: the page follows.
    queue.cancel(pages.ws, job_id)
    expect(page.get_by_role("button", name="Resume")).to_be_visible()


def test_rows_are_paged_and_the_way_back_is_as_it_was(person: Visitor, pages: PagesWorld) -> None:
    page = person.open(f"{PAGES}/datasets/{pages.parts['dataset']}")
    expect(page.get_by_text(re.compile(r"^1 of 25 "))).to_be_visible()
    page.get_by_role("link", name="Next rows").click()
    expect(page.get_by_text(re.compile(r"^21 of 25 "))).to_be_visible()
    page.get_by_role("link", name="gate 12").click()
    expect(page.get_by_text(re.compile(r"^1 of 12 "))).to_be_visible()
    page.go_back()
    expect(page.get_by_text(re.compile(r"^21 of 25 "))).to_be_visible()
    page.go_back()
    expect(page.get_by_text(re.compile(r"^1 of 25 "))).to_be_visible()


def test_an_estimate_says_what_an_experiment_takes(person: Visitor) -> None:
    page = person.open(f"{PAGES}/experiments/new")
    page.get_by_role("button", name="How long would it take?").click()
    result = page.locator("[data-result]")
    expect(result).to_contain_text("dry run: nothing was started")
    expect(result).to_contain_text("v0 against v1")
    page.get_by_label("Metric").fill("applause")
    page.get_by_role("button", name="How long would it take?").click()
    expect(page.get_by_role("status")).to_contain_text("applause")


def test_every_table_is_a_file(person: Visitor, tmp_path: Path) -> None:
    page = person.open(f"{PAGES}/deployments")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download Deployments as CSV").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "deployments.csv"
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["Version"] for row in rows] == page.locator(
        "[aria-label=Deployments] tbody td:first-child"
    ).all_inner_texts()
    assert "Actions" not in rows[0]
    assert all(datetime.fromisoformat(row["Since"]) for row in rows)


def test_runs_are_compared(person: Visitor) -> None:
    page = person.open(f"{PAGES}/runs")
    page.get_by_label("Draw all runs").check()
    page.get_by_label("Draw all runs").uncheck()
    compare = page.get_by_text("Compare the chosen")
    expect(compare).to_have_attribute("aria-disabled", "true")
    for run in ("sft run_sft", "dpo run_dpo"):
        page.get_by_label(f"Draw {run}").check()
    expect(compare).to_have_attribute("aria-disabled", "false")
    compare.click()
    expect(page.locator("#curves")).to_have_attribute("data-drawn", "2")
    result = page.get_by_role("table", name="Result")
    row = result.get_by_role("row").filter(has_text="dev loss of the best")
    assert len(set(row.get_by_role("cell").all_inner_texts())) == 2
    settings = page.get_by_role("table", name="Setting", exact=True)
    expect(settings.get_by_role("rowheader")).to_have_text(["method"])
    expect(settings.get_by_role("cell")).to_have_text(["dpo", "sft"])
    page.get_by_text("settings are the same").click()
    same = page.get_by_role("table", name="Same setting")
    expect(same.get_by_role("row").filter(has_text="learning_rate")).to_contain_text("0.0005")
    assert person.axe() == []
    page = person.open(f"{PAGES}/runs/compare?runs=run_sft")
    expect(page.locator(".verdict.bad")).to_contain_text("2 to 8 can be compared")


def test_curves_are_smoothed(person: Visitor) -> None:
    page = person.open(f"{PAGES}/runs")
    curve = page.locator("#curves figure").first.locator(".curve.train").first
    expect(curve).to_be_visible()
    rough = str(curve.get_attribute("d"))
    page.get_by_label("Smoothing").fill("0.9")
    expect(curve).not_to_have_attribute("d", rough)


def test_a_row_is_looked_for_and_kept_out(person: Visitor, pages: PagesWorld) -> None:
    config = DatasetConfig(dev=0.25, gate=0.25)
    before = build.build(pages.ws, AGENT.slug, "labels", config)
    page = person.open(f"{PAGES}/datasets/{before.id}")
    page.get_by_label("Text").fill("about case 1?")
    page.get_by_role("button", name="Search").click()
    splits = page.get_by_role("navigation", name="Splits").get_by_role("link")
    for split in range(3):
        rows = page.locator("article.row")
        if rows.count():
            break
        splits.nth(split).click()
        page.get_by_label("Text").fill("about case 1?")
        page.get_by_role("button", name="Search").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Case 1 is settled")
    rows.get_by_text("Exclude…").click()
    page.get_by_label("Reason for excluding it").fill("a test of ours")
    rows.get_by_role("button", name="Exclude").click()
    expect(page.get_by_role("status").filter(has_text="Excluded.")).to_be_visible()
    assert person.axe() == []
    page.get_by_role("button", name="Rebuild").click()
    confirm(page, "Rebuild")
    page.wait_for_url(re.compile("/jobs/|/datasets$"))
    anew = build.build(pages.ws, AGENT.slug, "labels", config)
    assert anew.id != before.id
    assert sum(anew.counts.values()) == sum(before.counts.values()) - 1
    frozen = build.find(pages.ws, AGENT.slug, before.id)
    assert frozen.counts == before.counts


def test_curves_are_zoomed_by_keyboard_and_by_mouse(person: Visitor) -> None:
    page = person.open(f"{PAGES}/runs/run_sft")
    drawing = page.get_by_role("img", name="Loss")
    expect(drawing).to_be_visible()
    page.get_by_label("Steps", exact=True).fill("41")
    page.get_by_label("to", exact=True).fill("60")
    page.get_by_label("to", exact=True).press("Enter")
    curves = page.locator("#curves")
    expect(curves).to_have_attribute("data-steps", "41-60")
    drawing.hover()
    expect(page.locator("#curves .reading").first).to_contain_text(re.compile(r"step (4|5)\d:"))
    page.get_by_role("button", name="All steps").click()
    expect(curves).to_have_attribute("data-steps", "-")
    drawing.hover()  # scrolls to it
    box = drawing.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    page.mouse.up()
    expect(curves).to_have_attribute("data-steps", re.compile(r"^\d\d-\d\d$"))
    assert person.axe() == []


def test_a_run_gets_a_note_and_a_tag_and_one_that_gave_nothing_is_deleted(
    browser: Browser, pages: PagesWorld
) -> None:
    with visitor(browser, pages.url, size=(375, 740), code=pages.code) as person:
        page = person.open(f"{PAGES}/runs/run_dpo")
        page.get_by_text("Write a note or tags").click()
        page.get_by_role("textbox", name="Note").fill("too few pairs")
        page.get_by_role("textbox", name="Tags").fill("first try")
        with page.expect_navigation():
            page.get_by_role("button", name="Save the note").click()
        expect(page.locator("main")).to_contain_text("too few pairs")
        assert person.axe() == [] and not person.is_too_wide()
        page = person.open(f"{PAGES}/runs")
        page.get_by_role("link", name="first try").click()
        expect(page.locator("#runs tbody tr")).to_have_count(1)
        page = person.open(f"{PAGES}/runs/run_sft")
        expect(page.get_by_text("cannot be deleted: v3 came from it")).to_be_visible()
        page = person.open(f"{PAGES}/runs/run_dpo")
        page.get_by_role("button", name="Delete this run").click()
        expect(page.get_by_role("dialog")).to_contain_text("cannot be brought back")
        with page.expect_navigation():
            confirm(page, "Delete the run")
        expect(page.locator("#runs tbody tr")).to_have_count(2)
        person.check()


def test_a_running_run_shows_speed_and_resources(person: Visitor, pages: PagesWorld) -> None:
    folder = RunDir(pages.ws.home.runs / "run_kto")
    with folder.metrics.open("a") as stream:
        for step in range(201, 206):
            line = {"step": step, "loss": 0.06, "step_seconds": 2.0, "num_tokens": 2500.0 * step}
            stream.write(json.dumps(line) + "\n")
    with UsageFile(folder, every=0.2):
        page = person.open(f"{PAGES}/runs/run_kto")
        usage = page.get_by_role("group", name="Speed and resources now")
        expect(usage).to_contain_text("1,250 tokens a second")
        expect(usage).to_contain_text("processor cores busy")
        expect(usage).to_contain_text("memory")
    assert person.axe() == []
