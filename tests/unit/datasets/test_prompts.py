"""Prompts to be answered afresh and groups of recorded answers: what becomes a row, and that no
gold or held-out prompt gets in."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.public_data import public_data
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.data_plan import data_plan


def rows_of(
    ws: Workspace, shape: str, config: DatasetConfig | None = None, agent: str = AGENT
) -> list[Any]:
    dataset = build(ws, agent, shape, config)
    return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


def asked(row: Any) -> str:
    return str(row.prompt[-1]["content"])


def test_cases_and_asked_prompts_become_rows_and_gold_never_does(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(30):
        world.case(f"c{number}", f"case {number}", "feedback")
        world.case(f"g{number}", f"gold {number}")
        world.say("thumb", True, world.trace(f"t{number}", f"judged {number}", "a"))
        world.trace(f"u{number}", f"unjudged {number}", "a", subject="ann")
        world.trace(f"v{number}", f"gold {number}", "a")
    world.case("both", "judged 3", "feedback")
    with world.into(tmp_path) as ws:
        rows = {asked(row): row for row in rows_of(ws, "prompts")}
        lean = rows_of(ws, "prompts", DatasetConfig(prompts_from_traces=False))
    assert len(rows) == 90
    assert not any(text.startswith("gold") for text in rows)
    assert {asked(row) for row in lean} == {*(f"case {number}" for number in range(30)), "judged 3"}
    case, both, unjudged = rows["case 1"], rows["judged 3"], rows["unjudged 1"]
    assert (case.reference, case.origin, case.trace_ids, case.subject_ids) == ("x", "case", [], [])
    assert case.case_id
    assert (both.reference, both.origin, len(both.trace_ids)) == ("x", "case", 1)
    assert (unjudged.reference, unjudged.checker, unjudged.case_id, unjudged.origin) == (
        None,
        None,
        None,
        "trace",
    )
    assert len(unjudged.trace_ids) == len(unjudged.subject_ids) == 1
    assert Counter(row.split for row in rows.values())["train"] > 60


def test_a_prompt_that_is_held_out_anywhere_is_held_out_here(tmp_path: Path) -> None:
    config = DatasetConfig(gate=0.5, dev=0.0)
    world = FeedbackWorld()
    for number in range(40):
        world.say(
            "thumb", True, world.trace(f"t{number}", f"q {number}", "a", session=f"s{number % 5}")
        )
        world.trace(
            f"u{number}", f"q  {number}", "a", session=f"z{number % 7}"
        )  # the same question in other spacing, elsewhere
    with world.into(tmp_path) as ws:
        rows = rows_of(ws, "prompts", config)
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(" ".join(asked(row).split()), set()).add(row.split)
    assert len(splits) == 40
    assert all(len(splits_of_prompt) == 1 for splits_of_prompt in splits.values())
    assert {split for splits_of_prompt in splits.values() for split in splits_of_prompt} == {
        "train",
        "gate",
    }


def test_the_same_rows_whatever_the_order(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(25):
        world.case(f"c{number}", f"case {number % 20}", "feedback")
        trace = world.trace(f"t{number}", f"judged {number % 9}", f"a{number}")
        world.say("rating", number % 5 + 1, trace)
    with (
        world.into(tmp_path / "one") as first,
        world.into(tmp_path / "two", random.Random(3).shuffle) as second,
    ):
        for shape in ("prompts", "groups"):
            assert build(first, AGENT, shape).fingerprint == build(second, AGENT, shape).fingerprint


def test_groups_hold_the_valued_answers_of_a_prompt(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("rating", 4, world.trace("a", "q", "four stars", token_ids=[1, 2]))
    world.say("thumb", False, world.trace("b", "q", "down"))
    both = world.trace("c", "q", "torn")
    world.say("thumb", True, both, rater="one", weight=3.0)
    world.say("thumb", False, both, rater="two")
    world.say("comment", "hm", world.trace("d", "q", "unvalued"))
    world.say("thumb", True, world.trace("e", "alone", "x"))
    for number in range(20):  # so that train is not empty
        for answer in ("x", "y"):
            world.say("thumb", True, world.trace(f"{number}{answer}", f"more {number}", answer))
    with world.into(tmp_path) as ws:
        (row,) = [
            row
            for row in rows_of(ws, "groups", DatasetConfig(dev=0.0, gate=0.0))
            if asked(row) == "q"
        ]
        drops = build(ws, AGENT, "groups", DatasetConfig(dev=0.0, gate=0.0)).manifest["drops"]
    values = dict(zip(row.completions, row.values, strict=True))
    assert values == {"four stars": 0.75, "down": 0.0, "torn": 0.75}
    tokens = dict(zip(row.completions, row.token_ids, strict=True))
    assert tokens == {"four stars": [1, 2], "down": None, "torn": None}
    assert row.logps == [None, None, None]
    assert len(row.feedback_ids) == 4
    assert drops == {
        "nothing says how good the answer is": 1,
        "the only valued answer to its prompt": 1,
    }


def test_without_anything_to_ask_there_is_no_dataset(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.case("g", "gold")
    with world.into(tmp_path) as ws, pytest.raises(DataError, match="no prompts in train"):
        build(ws, AGENT, "prompts")


def test_the_plan_says_what_fresh_answers_could_use(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(120):
        world.case(f"c{number}", f"case {number}", "feedback")
    with world.into(tmp_path) as ws:
        words = data_plan(ws, AGENT).to_words()
    assert any(
        line.startswith(
            "GRPO: fresh answers to 120 prompts can be checked (of 120; train/dev/gate "
        )
        for line in words
    )
    assert words[-1].endswith("Only GRPO has data: 120 prompts whose answers can be checked.")


@pytest.mark.slow
def test_gsm8k_becomes_prompts_that_can_be_checked(tmp_path: Path) -> None:
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.core.config import Home

    with Workspace.open(Home.at(tmp_path)) as ws:
        ingest(ws, "math", "graded", public_data("math/gsm8k-model-solutions-graded.jsonl"))
        prompts, groups = rows_of(ws, "prompts", agent="math"), rows_of(ws, "groups", agent="math")
    assert len(prompts) == 652
    assert (
        len(groups) == 652
    )  # the gate too: a grade against the answer of the file is no opinion of a checker
    assert all(row.checker == "exact_answer" and row.reference for row in prompts)
    assert all(
        2 <= len(row.values) == len(row.completions) <= 4 and set(row.values) <= {0.0, 1.0}
        for row in groups
    )


def test_grades_against_the_answer_of_the_file_reach_the_gate(tmp_path: Path) -> None:
    """A checker's opinion fills no gate; that the file holds the right answer and compared with it
    is no opinion."""
    import json

    from thumbwheel.capture.ingest import ingest
    from thumbwheel.core.config import Home

    lines = [
        {
            "question": f"{n} + 1?",
            "ground_truth": f"#### {n + 1}",
            "m": {"is_correct": n % 2 == 0, "solution": f"A: {n + 1 + n % 2}"},
        }
        for n in range(60)
    ]
    (tmp_path / "graded.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Workspace.open(Home.at(tmp_path / "home")) as ws:
        ingest(ws, "math", "graded", tmp_path / "graded.jsonl")
        rows = rows_of(ws, "labels", agent="math")
    assert len(rows) == 60 and {row.split for row in rows} == {"train", "dev", "gate"}


def test_what_people_wrote_or_liked_stands_beside_a_prompt(tmp_path: Path) -> None:
    """A correction before an upvote; no answer that is disputed, was edited, or that only a machine
    called good."""
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("a", "liked", "fine"))
    world.say("thumb", False, world.trace("b", "disliked", "bad"))
    world.say("thumb", True, world.trace("c", "edited", "fine"))
    world.say("correction", "better", world.trace("d", "edited", "wrong"))
    torn = world.trace("e", "torn", "so so")
    world.say("thumb", True, torn, rater="one")
    world.say("thumb", False, torn, rater="two")
    world.say("thumb", True, world.trace("f", "graded", "good"), rater="machine")
    for number in range(20):  # so that train is not empty
        world.trace(f"u{number}", f"more {number}", "x")
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == "machine":
            values["kind"] = "checker"
    with world.into(tmp_path) as ws:
        rows = {asked(row): row for row in rows_of(ws, "prompts")}
    assert {prompt: row.liked for prompt, row in rows.items() if row.liked} == {
        "liked": "fine",
        "edited": "better",
    }
    assert {prompt for prompt, row in rows.items() if row.feedback_ids} == {
        "liked",
        "edited",
    }  # so that erasing finds them
