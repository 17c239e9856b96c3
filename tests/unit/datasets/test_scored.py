"""The shape `scored`: what counts as a number, whose numbers are averaged, and the one scale of a
dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.row_stats import RowStats, columns_of
from thumbwheel.datasets.shapes.scored import ScoredAnswers
from thumbwheel.datasets.types import DatasetConfig, ScoredRow
from thumbwheel.rewards.types import Value

TRAIN = DatasetConfig(dev=0, gate=0)


def scored(
    world: FeedbackWorld, home: Path
) -> tuple[dict[str, Any], dict[str, tuple[float, list[float], str]]]:
    """(manifest, answer -> (value, scale, origin))."""
    with world.into(home) as ws:
        dataset = build(ws, AGENT, "scored", TRAIN)
        rows = list(load_rows(ws, dataset.id, "train"))
    return dataset.manifest, {row.completion: (row.value, row.scale, row.origin) for row in rows}


def test_numbers_of_several_raters_are_averaged_and_words_are_none(tmp_path: Path) -> None:
    world = FeedbackWorld()
    of = {
        name: world.trace(name, f"question {name}", name)
        for name in ("both", "changed", "thumbed", "neutral", "edited")
    }
    world.say("rating", 5, of["both"], rater="heavy", weight=3.0)
    world.say("rating", 1, of["both"], rater="b")
    world.say("rating", 1, of["changed"], rater="a")
    world.say("rating", 4, of["changed"], rater="a")
    world.say("thumb", True, of["thumbed"])
    world.say("rating", 3, of["neutral"])
    world.say("correction", "better", of["edited"])
    manifest, rows = scored(world, tmp_path)
    scale = [1.0, 5.0]
    assert rows == {
        "both": (4.0, scale, "rating"),
        "changed": (4.0, scale, "rating"),
        "neutral": (3.0, scale, "rating"),
    }
    assert manifest["fitted"] == {"scale": scale}
    assert (
        manifest["drops"]["no number says how good the answer is"] == 3
    )  # the thumb, the edited answer and its edit


def test_all_rows_come_to_the_scale_that_most_have(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number, (kind, value, more) in enumerate(
        [
            ("rating", 2, {}),
            ("rating", 5, {}),
            ("score", 0.25, {}),
            ("rating", 7, {"scale": {"min": 0, "max": 10}}),
        ]
    ):
        world.say(
            kind, value, world.trace(f"t{number}", f"question {number}", f"answer {number}"), **more
        )
    world.say("rating", 3, world.trace("t8", "question 8", "answer 8"))
    world.say("outcome", 0.75, world.trace("t9", "question 9", "answer 9"), name="escalated")
    _, rows = scored(world, tmp_path)
    assert {text: value for text, (value, _, _) in rows.items()} == pytest.approx(
        {
            "answer 0": 2,
            "answer 1": 5,
            "answer 2": 2.0,
            "answer 3": 3.8,
            "answer 8": 3,
            "answer 9": 2.0,
        }
    )
    assert {tuple(scale) for _, scale, _ in rows.values()} == {(1.0, 5.0)}


def test_no_number_in_train_is_an_error(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("t", "question", "answer"))
    with world.into(tmp_path) as ws, pytest.raises(DataError, match="no scored in train"):
        build(ws, AGENT, "scored", TRAIN)


def row(number: int, value: float, scale: tuple[float, float], split: str = "train") -> ScoredRow:
    return ScoredRow(
        row_id=f"r{number}",
        group="g",
        split=split,
        prompt=[],
        tools=None,
        weight=1.0,
        origin="rating",
        feedback_ids=[],
        trace_ids=[],
        subject_ids=[],
        completion="a",
        value=value,
        scale=list(scale),
    )


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([(0.0, 1.0), (1.0, 5.0), (-2.0, 2.0)])),
        min_size=1,
        max_size=12,
    )
)
def test_a_common_scale_keeps_every_place(
    positions: list[tuple[float, tuple[float, float]]],
) -> None:
    rows = [
        row(number, low + unit * (high - low), (low, high))
        for number, (unit, (low, high)) in enumerate(positions)
    ]
    stats = RowStats()
    stats.take(columns_of(rows))
    fitted = ScoredAnswers().fit(stats, TRAIN)
    low, high = fitted["scale"]
    columns = ScoredAnswers().finish(columns_of(rows), fitted)
    assert all(scale == [low, high] for scale in columns["scale"])
    assert [(value - low) / (high - low) for value in columns["value"]] == pytest.approx(
        [unit for unit, _ in positions], abs=1e-9
    )


def test_the_mean_of_different_scales_is_one_of_places() -> None:
    assert Value.mean([]) is None
    mean = Value.mean(
        [
            (Value(1.0, (1.0, 5.0), "rating", ("b",)), 1.0),
            (Value(0.0, (0.0, 1.0), "score", ("a",)), 3.0),
        ]
    )
    assert mean == Value(0.25, (0.0, 1.0), "rating", ("a", "b"))
    same = Value.mean([(Value(0.5, (1.0, 5.0), "rating", ("b",)), 1.0)])
    assert same is not None and same.raw == 3.0
