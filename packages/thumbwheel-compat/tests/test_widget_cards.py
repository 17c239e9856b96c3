"""Rated widgets as cards: what a card is of, what a thumb on it is, what of it counts in a build,
and how it becomes a case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat.command_center import OnlineLearner
from thumbwheel.compat.command_center.routes import _stored_ratings
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.rate import RatingRequest, approve_liked, rate, undo
from thumbwheel.review.types import Queue, QueueConfig, RaterVerdict
from thumbwheel.rewards.label import judgements

PANEL = Agent.named("panel")
TAGS = ("perfect", "wrong-chart-type")


def entry(number: int, **changes: Any) -> dict[str, Any]:
    """Two widgets a question: both natural, or the second forced."""
    question = number // 2
    return {
        "entry_id": f"e{number:05}",
        "question_id": f"q{question}",
        "question": f"How is pump {question}?",
        "scenario": ("kpi", "trend")[number % 2],
        "fixture": f"dial-{number}",
        "size": "normal",
        "natural": True,
        "forced": False,
        "pipeline_meta": {"intent": {"type": "status", "confidence": 0.4 + 0.1 * (question % 6)}},
        "data_override": {"demoData": {"label": "Flow", "value": question}},
    } | changes


def write_run(folder: Path, entries: list[dict[str, Any]], name: str = "run1") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "exhaustive_data.json").write_text(json.dumps({"run_id": name, "entries": entries}))
    return folder


def cards_of(ws: Workspace, **selection: Any) -> Queue:
    config = QueueConfig(layout="cards", tags=TAGS)
    return create(ws, PANEL, "cards", config, QueueSelection(**selection))


def test_there_is_a_card_for_every_entry_and_no_other(empty_ws: Workspace, tmp_path: Path) -> None:
    """Also where rated widgets of a question were combined into answers of several."""
    rated = {0: "up", 1: "up", 2: "down", 3: "up"}
    entries = [
        entry(number, question_id=f"q{number // 4}", question=f"Pump {number // 4}?")
        | {"rating": rated[number % 4], "scenario": f"s{number % 4}"}
        for number in range(480)
    ]
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "run1", entries))
    queue = cards_of(empty_ws)
    assert queue.items == 480
    shown = next_items(empty_ws, queue, "ann", 480).items
    assert len({item.facts["fixture"] for item in shown}) == 480
    assert all(item.facts["question"].startswith("Pump ") for item in shown)


def test_fewer_cards_are_counted_as_cards(empty_ws: Workspace, tmp_path: Path) -> None:
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "r", [entry(n) for n in range(10)]))
    assert cards_of(empty_ws, most=7).items == 7


def test_a_thumb_on_a_card_is_the_rating_that_an_app_sends(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "r", [entry(n) for n in range(4)]))
    queue = cards_of(empty_ws)
    item = next_items(empty_ws, queue, "ann").items[0]
    verdict = RaterVerdict(thumb=True, tags=("perfect",), note="clear")
    rate(empty_ws, PANEL, RatingRequest(queue, item.id, "ann", "k1"), verdict)
    (rating,) = _stored_ratings(empty_ws, "panel").values()
    shown = {key: rating[key] for key in ("rating", "tags", "notes", "device_id", "run_id")}
    assert shown == {
        "rating": "up",
        "tags": ["perfect"],
        "notes": "clear",
        "device_id": "ann",
        "run_id": "run1",
    }
    with empty_ws.db.read() as connection:
        judged = [row for row in judgements(connection, PANEL) if row.good is not None]
    assert len(judged) == 2, "the fixture, and the choice of the widget"

    # said anew it is another rating of the same device, and taken back it is none
    rate(empty_ws, PANEL, RatingRequest(queue, item.id, "ann", "k2"), RaterVerdict(thumb=False))
    (rating,) = _stored_ratings(empty_ws, "panel").values()
    assert (rating["rating"], rating["tags"]) == ("down", [])
    undo(empty_ws, PANEL, RatingRequest(queue, item.id, "ann", "k3"))
    assert _stored_ratings(empty_ws, "panel") == {}


def test_tags_of_pages_and_posts_and_files_are_filtered_at_the_build(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    entries = [entry(number, natural=False, forced=True) for number in range(60)]
    for number in range(30):
        entries[number] |= {"rating": ("up", "down")[number % 2], "tags": ["perfect"]}
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "r", entries))
    queue = cards_of(empty_ws)
    for item in next_items(empty_ws, queue, "ann", 60).items:
        number = int(item.facts["fixture"].removeprefix("dial-"))
        if number < 30:
            continue
        verdict = RaterVerdict(thumb=number % 2 == 0, tags=("wrong-chart-type",))
        rate(empty_ws, PANEL, RatingRequest(queue, item.id, "ann", f"k{number}"), verdict)

    def rows(**filters: Any) -> int:
        rules = DatasetConfig(dev=0, gate=0, **filters)
        dataset = build(empty_ws, "panel", "labels", rules)
        return len(list(load_rows(empty_ws, dataset.id, "train")))

    assert rows() == 60
    assert rows(tag=("perfect",)) == 30
    assert rows(tag=TAGS) == 60
    assert rows(without_tag=("wrong-chart-type",)) == 30
    assert 0 < rows(min_confidence=0.65) < 60
    with pytest.raises(DataError):
        rows(tag=("ugly",))


def test_what_was_called_good_becomes_gold_by_one_command(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "r", [entry(n) for n in range(6)]))
    queue = cards_of(empty_ws)
    with pytest.raises(DataError, match="called nothing in it good"):
        approve_liked(empty_ws, PANEL, queue, "ann")
    for number, item in enumerate(next_items(empty_ws, queue, "ann", 6).items):
        verdict = RaterVerdict(thumb=number < 4)
        rate(empty_ws, PANEL, RatingRequest(queue, item.id, "ann", f"k{number}"), verdict)
    assert len(approve_liked(empty_ws, PANEL, queue, "ann", "exact_answer")) == 4
    counts, gold = list_cases(empty_ws, "panel", basis="gold")
    assert counts == {"gold": 4}
    assert {case["reference"][:5] for case in gold} == {"dial-"}


def test_the_learner_finds_the_entries_of_the_home(
    empty_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing but what the app has: entry_id, rating, tags and notes."""
    entries = [entry(n, natural=False, forced=True, scenario="kpi") for n in range(40)]
    ingest(empty_ws, "panel", "widgets", write_run(tmp_path / "r", entries))
    home = empty_ws.home.path
    empty_ws.db.close()
    monkeypatch.setenv("THUMBWHEEL_HOME", str(home))
    learner = OnlineLearner(min_samples=40, checkpoint_dir=tmp_path / "rl_checkpoints")
    for number in range(40):
        rating = ("up", "down")[number % 2]
        feedback = {"entry_id": f"e{number:05}", "rating": rating, "tags": [], "notes": ""}
        is_due = learner.add_feedback(feedback)
    assert is_due
    pairs = learner._pairs(learner._samples())
    assert len(pairs) == 20
    assert {pair.question_id for pair in pairs} == {f"q{number}" for number in range(20)}
    assert all("How is pump" in pair.prompt for pair in pairs)
