"""A person's word wins over what was computed, in every shape; computed numbers fill what nobody
judged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS, DatasetConfig

CONFIG = DatasetConfig(
    dev=0, gate=0, allow=("leakage", "balance", "duplicates", "conflict", "noise")
)


def computed(world: FeedbackWorld, *names: str) -> None:
    """Make these raters checkers."""
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] in names:
            values["kind"] = "checker"


def built(world: FeedbackWorld, folder: Path, shape: str) -> list[Any]:
    computed(world, "checker")
    with world.into(Path(tempfile.mkdtemp(dir=folder))) as ws:
        dataset = build(ws, AGENT, shape, CONFIG)
        return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


def thumbs_against_scores() -> FeedbackWorld:
    """Two answers to a question: people like the one with the low stored reward; two others have a
    stored reward only."""
    world = FeedbackWorld()
    for name, thumb, score in (
        ("liked", True, 0.2),
        ("disliked", False, 0.9),
        ("high", None, 0.8),
        ("low", None, 0.1),
    ):
        trace = world.trace(name, "Opening hours?", name)
        world.say("score", score, trace, rater="checker", weight=5.0)
        if thumb is not None:
            world.say("thumb", thumb, trace, rater="ann", minute=0)
    return world


def test_labels_are_people_s_and_a_heavy_checker_fills_the_rest(tmp_path: Path) -> None:
    rows = built(thumbs_against_scores(), tmp_path, "labels")
    assert {row.completion: row.label for row in rows} == {
        "liked": True,
        "disliked": False,
        "high": True,
        "low": False,
    }


def test_in_groups_the_stored_reward_gives_way_to_the_thumb(tmp_path: Path) -> None:
    (row,) = built(thumbs_against_scores(), tmp_path, "groups")
    assert dict(zip(row.completions, row.values, strict=True)) == {
        "liked": 1.0,
        "disliked": 0.0,
        "high": 0.8,
        "low": 0.1,
    }


def test_scores_take_the_side_of_the_person(tmp_path: Path) -> None:
    rows = built(thumbs_against_scores(), tmp_path, "scored")
    assert {row.completion: row.value for row in rows} == {
        "liked": 1.0,
        "disliked": 0.0,
        "high": 0.8,
        "low": 0.1,
    }


def test_no_pair_stands_against_what_a_person_said(tmp_path: Path) -> None:
    world = thumbs_against_scores()
    liked, disliked = (
        values["id"]
        for table, values in world.rows
        if table.name == "traces" and values["external_id"] in ("liked", "disliked")
    )
    world.say("preference", {"ranking": [[0], [1]]}, disliked, liked, rater="checker")
    pairs = {(row.chosen, row.rejected) for row in built(world, tmp_path, "pairs")}
    assert ("liked", "disliked") in pairs
    assert not {(worse, better) for better, worse in pairs} & pairs
    assert not any(chosen == "disliked" for chosen, _ in pairs)


def test_what_a_prompt_s_answers_did_is_what_people_said(tmp_path: Path) -> None:
    (row,) = built(thumbs_against_scores(), tmp_path, "prompts")
    assert (row.liked, row.success) == ("liked", pytest.approx((1.0 + 0.0 + 0.8 + 0.1) / 4))


def test_a_computed_number_on_the_person_s_side_stays(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for name, thumb, score in (("good", True, 0.7), ("bad", False, 0.3)):
        trace = world.trace(name, "q", name)
        world.say("score", score, trace, rater="checker")
        world.say("thumb", thumb, trace, rater="ann", minute=0)
    (row,) = built(world, tmp_path, "groups")
    assert dict(zip(row.completions, row.values, strict=True)) == {"good": 0.7, "bad": 0.3}


def test_a_persons_number_stands_alone_beside_a_machine_s(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "a")
    world.say("rating", 2, trace, rater="ann")
    world.say("score", 1.0, trace, rater="checker", weight=9.0)
    (row,) = built(world, tmp_path, "scored")
    assert (row.value, row.scale) == (2, [1.0, 5.0])


def test_a_person_s_comparison_and_correction_win_over_computed_ones(tmp_path: Path) -> None:
    world = FeedbackWorld()
    better, worse = world.trace("a", "q", "a"), world.trace("b", "q", "b")
    world.say("preference", {"ranking": [[0], [1]]}, better, worse, rater="ann", minute=0)
    world.say("preference", {"ranking": [[1], [0]]}, better, worse, rater="checker", weight=9.0)
    other = world.trace("c", "another", "c")
    world.say("correction", "by ann", other, rater="ann", minute=0)
    world.say("correction", "by a machine", other, rater="checker", weight=9.0)
    assert {(row.chosen, row.rejected) for row in built(world, tmp_path, "pairs")} == {
        ("a", "b"),
        ("by ann", "c"),
    }


def test_a_person_s_correction_makes_an_answer_bad_that_a_checker_calls_good(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "original")
    world.say("correction", "edited", trace, rater="ann", minute=0)
    world.say("score", 1.0, trace, rater="checker")
    world.say("thumb", False, world.trace("b", "p", "b"), rater="ann")
    assert {row.completion: row.label for row in built(world, tmp_path, "labels")} == {
        "edited": True,
        "original": False,
        "b": False,
    }


def test_equal_answers_of_several_runs_are_judged_by_people_where_one_of_them_was(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    world.say("thumb", False, world.trace("judged", "q", "same"), rater="ann")
    for number in range(5):
        world.say("score", 1.0, world.trace(f"t{number}", "q", "same"), rater="checker")
    world.say("thumb", True, world.trace("other", "q", "other"), rater="ann")
    (row,) = built(world, tmp_path, "groups")
    assert dict(zip(row.completions, row.values, strict=True)) == {"same": 0.0, "other": 1.0}
