"""Feedback resolution: readings, superseding, raters that contradict each other, corrections,
preferences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feedback_world import AGENT, START, FeedbackWorld
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import (
    comparisons,
    judge,
    judgements,
    signals,
    target_counts,
    verdict_of,
)
from thumbwheel.rewards.types import Judgement, LabelConfig, Statement

CONFIG = LabelConfig()


def statement(
    kind: str,
    value: Any,
    *,
    rater: str = "a",
    weight: float = 1.0,
    minute: int = 0,
    name: str | None = None,
    scale: Any = None,
    id: str = "",
) -> Statement:
    feedback_id = id or f"{kind}-{value}-{rater}-{minute}-{name}"
    return Statement(
        feedback_id, kind, name, value, scale, rater, weight, START + timedelta(minutes=minute)
    )


READINGS = [
    (statement("thumb", True), True),
    (statement("thumb", False), False),
    (statement("thumb", 1), None),
    (statement("rating", 5), True),
    (statement("rating", 4), True),
    (statement("rating", 3), None),
    (statement("rating", 2), False),
    (statement("rating", 1), False),
    (statement("rating", 7, scale={"min": 0, "max": 10}), True),
    (statement("rating", 6, scale={"min": 0, "max": 10}), True),
    (statement("rating", 5, scale={"min": 0, "max": 10}), None),
    (statement("rating", 4, scale={"min": 0, "max": 10}), False),
    (statement("rating", 6), None),
    (statement("score", 0.6), True),
    (statement("score", 0.4), False),
    (statement("score", 0.5), None),
    (statement("score", 0.0), False),
    (statement("label", True, name="correct"), True),
    (statement("label", False, name="correct"), False),
    (statement("label", "incorrect", name="verdict"), False),
    (statement("label", "Correct", name="verdict"), True),
    (statement("label", True, name="wrong"), False),
    (statement("label", "billing", name="topic"), None),
    (statement("outcome", True, name="resolved"), True),
    (statement("outcome", True, name="escalated"), False),
    (statement("outcome", 0.1, name="escalated"), True),
    (statement("outcome", 0.9, name="conversion"), True),
    (statement("comment", "nice"), None),
]


@pytest.mark.parametrize(
    ("statement", "good"), READINGS, ids=lambda value: getattr(value, "feedback_id", str(value))
)
def test_what_one_statement_says(statement: Statement, good: bool | None) -> None:
    assert verdict_of(statement, CONFIG) is good


def test_thresholds_are_settings() -> None:
    strict = LabelConfig(good_from=1.0, bad_to=0.0)
    assert [verdict_of(statement("rating", stars), strict) for stars in range(1, 6)] == [
        False,
        None,
        None,
        None,
        True,
    ]


def test_the_side_with_the_most_weight_decides_and_its_margin_is_the_strength() -> None:
    judgement = judge(
        "t",
        [
            statement("thumb", True, rater="a"),
            statement("thumb", True, rater="b"),
            statement("thumb", False, rater="c"),
        ],
        CONFIG,
    )
    assert (judgement.good, judgement.strength, judgement.conflict) == (
        True,
        pytest.approx(1 / 3),
        True,
    )
    judgement = judge(
        "t",
        [statement("thumb", True, rater="a"), statement("thumb", False, rater="c", weight=3.0)],
        CONFIG,
    )
    assert (judgement.good, judgement.strength, judgement.kind) == (
        False,
        pytest.approx(0.5),
        "thumb",
    )


def test_a_rating_and_a_thumb_at_once_both_count_and_a_later_thumb_removes_the_number() -> None:
    def statement(name: str, kind: str, value: Any, day: int) -> Statement:
        return Statement(name, kind, None, value, None, "ann", 1.0, START + timedelta(days=day))

    for first, second in (("a", "b"), ("b", "a")):
        judgement = judge(
            "t",
            [statement(first, "thumb", True, 1), statement(second, "rating", 5, 1)],
            LabelConfig(),
        )
        assert (
            judgement.good is True and judgement.value is not None and judgement.value.unit == 1.0
        )
    later = judge(
        "t", [statement("a", "rating", 5, 1), statement("b", "thumb", False, 2)], LabelConfig()
    )
    assert (later.good, later.value) == (False, None)


def test_a_person_who_says_neither_does_not_make_a_label_of_machines_one_of_people() -> None:
    machine = replace(statement("score", 0.0, rater="checker"), automatic=True)
    alone = judge("t", [machine], CONFIG)
    assert (alone.good, alone.automatic, alone.value and alone.value.automatic) == (
        False,
        True,
        True,
    )
    judgement = judge("t", [statement("rating", 3, rater="anna"), machine], CONFIG)
    assert (judgement.good, judgement.kind, judgement.automatic) == (None, None, False), (
        "she judged it: neither good nor bad"
    )
    assert judgement.value is not None and (judgement.value.raw, judgement.value.automatic) == (
        3.0,
        False,
    ), "her 3 is the number"
    judgement = judge(
        "t", [statement("label", "billing", name="topic", rater="anna"), machine], CONFIG
    )
    assert (judgement.automatic, judgement.value and judgement.value.automatic) == (True, True)
    judgement = judge("t", [statement("correction", "better", rater="anna"), machine], CONFIG)
    assert (judgement.automatic, judgement.edit and judgement.edit.automatic) == (True, False)
    for vote in (True, False):
        judgement = judge(
            "t",
            [
                statement("thumb", vote, rater="anna"),
                machine,
                replace(machine, rater="other", feedback_id="o"),
            ],
            CONFIG,
        )
        assert not judgement.automatic, "she had a vote, on whichever side"


def test_an_exact_tie_has_no_value() -> None:
    judgement = judge(
        "t", [statement("thumb", True, rater="a"), statement("rating", 1, rater="b")], CONFIG
    )
    assert (judgement.good, judgement.strength, judgement.conflict) == (None, None, True)


def test_the_newest_statement_of_a_rater_counts() -> None:
    judgement = judge(
        "t",
        [
            statement("thumb", True, minute=2),
            statement("rating", 1, minute=1),
            statement("thumb", False, minute=0),
        ],
        CONFIG,
    )
    assert (judgement.good, judgement.conflict, len(judgement.feedback_ids)) == (True, False, 1)


def test_a_newer_neutral_rating_withdraws_the_opinion() -> None:
    judgement = judge(
        "t", [statement("thumb", True, minute=0), statement("rating", 3, minute=1)], CONFIG
    )
    assert (judgement.good, judgement.strength, judgement.feedback_ids) == (None, None, ())


def test_a_topic_is_no_opinion() -> None:
    assert (
        judge(
            "t",
            [
                statement("thumb", True, minute=0),
                statement("label", "billing", name="topic", minute=1),
            ],
            CONFIG,
        ).good
        is True
    )


def test_an_outcome_is_a_witness_of_its_own() -> None:
    judgement = judge(
        "t",
        [
            statement("thumb", True, minute=0),
            statement("outcome", False, name="resolved", minute=9),
        ],
        CONFIG,
    )
    assert (judgement.good, judgement.conflict) == (None, True)


def test_a_rater_who_contradicts_himself_in_one_instant_does_not_count() -> None:
    both = [statement("thumb", True, rater="a"), statement("thumb", False, rater="a")]
    judgement = judge("t", [*both, statement("thumb", False, rater="b")], CONFIG)
    assert (judgement.good, judgement.strength, judgement.conflict) == (False, 1.0, True)


def test_a_muted_rater_is_not_heard() -> None:
    judgement = judge(
        "t",
        [
            statement("thumb", True, rater="bot", weight=0.0),
            statement("correction", "x", rater="bot", weight=0.0),
        ],
        CONFIG,
    )
    assert (judgement.good, judgement.edit, judgement.feedback_ids) == (None, None, ())


def test_corrections_newest_per_rater_and_conflicts() -> None:
    judgement = judge(
        "t",
        [statement("correction", "old", minute=0), statement("correction", "new", minute=1)],
        CONFIG,
    )
    assert judgement.edit is not None
    assert (judgement.edit.text, judgement.edit_conflict, judgement.good) == ("new", False, None)
    torn = judge(
        "t",
        [statement("correction", "x", rater="a"), statement("correction", "y", rater="b")],
        CONFIG,
    )
    assert (torn.edit, torn.edit_conflict) == (None, True)
    decided = judge(
        "t",
        [
            statement("correction", "x", rater="a"),
            statement("correction", "y", rater="b"),
            statement("correction", "y", rater="c"),
        ],
        CONFIG,
    )
    assert decided.edit is not None
    assert (decided.edit.text, len(decided.edit.feedback_ids), decided.edit_conflict) == (
        "y",
        2,
        True,
    )


votes = st.lists(
    st.builds(
        lambda kind, rater, minute, weight: statement(
            kind[0], kind[1], rater=rater, minute=minute, weight=weight, id=f"{kind}{rater}{minute}"
        ),
        st.sampled_from(
            [("thumb", True), ("thumb", False), ("rating", 5), ("rating", 3), ("rating", 1)]
        ),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.just(1.0),
    ),
    max_size=8,
)


@given(votes, st.randoms())
def test_order_does_not_matter_and_missing_is_no_number(
    given_votes: list[Statement], random: Any
) -> None:
    shuffled = random.sample(given_votes, len(given_votes))
    judgement = judge("t", given_votes, CONFIG)
    assert judgement == judge("t", shuffled, CONFIG)
    assert (judgement.good is None) == (judgement.strength is None)
    assert judgement.strength is None or 0 < judgement.strength <= 1


@given(votes)
def test_inverting_every_vote_inverts_the_judgement(given_votes: list[Statement]) -> None:
    inverted = [
        replace(vote, value=not vote.value if vote.kind == "thumb" else 6 - vote.value)
        for vote in given_votes
    ]
    judgement, opposite = judge("t", given_votes, CONFIG), judge("t", inverted, CONFIG)
    assert (judgement.good, judgement.strength, judgement.conflict) == (
        None if opposite.good is None else not opposite.good,
        opposite.strength,
        opposite.conflict,
    )


def resolved(
    tmp_path: Path, fill: Callable[[FeedbackWorld], object], **more: Any
) -> dict[str, Judgement]:
    world = FeedbackWorld()
    fill(world)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        return {
            judgement.trace_id: judgement
            for judgement in judgements(connection, Agent.named(AGENT), **more)
        }


def test_superseded_and_retracted_feedback_is_out(tmp_path: Path) -> None:
    world = FeedbackWorld()
    plain, replaced, withdrawn = (world.trace(name, name, "out") for name in "abc")
    world.say("thumb", True, plain)
    first = world.say("thumb", False, replaced, minute=50)
    world.say("thumb", True, replaced, minute=1, supersedes=first)
    wrong = world.say("thumb", True, withdrawn)
    world.say("thumb", True, withdrawn, retracts=wrong)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        judged = {
            judgement.trace_id: judgement
            for judgement in judgements(connection, Agent.named(AGENT))
        }
        counts = {
            signal.kind: (signal.count, signal.good, signal.bad, signal.raters)
            for signal in signals(connection, Agent.named(AGENT))
        }
    assert {trace: judgement.good for trace, judgement in judged.items()} == {
        plain: True,
        replaced: True,
    }
    assert counts == {"thumb": (2, 2, 0, 1)}


def test_as_of_sees_what_was_recorded_by_then(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "out")
    first = world.say("thumb", True, trace, recorded=START)
    world.say("thumb", False, trace, recorded=START + timedelta(days=2), supersedes=first)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert [judgement.good for judgement in judgements(connection, Agent.named(AGENT))] == [
            False
        ]
        assert [
            judgement.good
            for judgement in judgements(connection, Agent.named(AGENT), START + timedelta(days=1))
        ] == [True]
        assert list(judgements(connection, Agent.named(AGENT), START - timedelta(days=1))) == []


def test_unnamed_feedback_of_a_source_is_one_rater(tmp_path: Path) -> None:
    def fill(world: FeedbackWorld) -> None:
        trace = world.trace("a", "q", "out")
        world.say("thumb", False, trace, rater=None)
        world.say("thumb", True, trace, rater=None)

    assert [
        (judgement.good, judgement.conflict) for judgement in resolved(tmp_path, fill).values()
    ] == [(True, False)]


def test_awaited_targets_judge_nothing_and_are_counted(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "out")
    world.say("thumb", True, "missing-1")
    world.say("thumb", True, targets=[("session", trace)])
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert list(judgements(connection, Agent.named(AGENT))) == []
        about = target_counts(connection, Agent.named(AGENT))
    assert (about.arrived, about.awaited) == ({"session": 1}, {"trace": 1})


def test_rankings_become_pairs_by_plurality(tmp_path: Path) -> None:
    world = FeedbackWorld()
    a, b, c = (world.trace(name, "q", name) for name in "abc")
    world.say("preference", {"ranking": [[0], [1, 2]]}, a, b, c, rater="r1")
    world.say("preference", {"ranking": [[1], [0]]}, a, b, rater="r2")
    world.say("preference", {"ranking": [[0], [1]]}, a, b, rater="r3")
    world.say("preference", {"ranking": [[0], [1]]}, a, "missing", rater="r3")
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        by_pair = {
            frozenset((comparison.better, comparison.worse)): comparison
            for comparison in comparisons(connection, Agent.named(AGENT))
        }
    comparison = by_pair[frozenset((a, b))]
    assert (
        comparison.better,
        comparison.decided,
        comparison.strength,
        comparison.conflict,
        len(comparison.feedback_ids),
    ) == (
        a,
        True,
        pytest.approx(1 / 3),
        True,
        3,
    )
    assert (by_pair[frozenset((a, c))].better, by_pair[frozenset((a, c))].strength) == (a, 1.0)
    assert (by_pair[frozenset((b, c))].decided, by_pair[frozenset((b, c))].conflict) == (
        False,
        False,
    )


def test_disagreement_without_plurality_gives_no_pair(tmp_path: Path) -> None:
    world = FeedbackWorld()
    a, b = (world.trace(name, "q", name) for name in "ab")
    for rater, ranking in (("r1", [[0], [1]]), ("r2", [[1], [0]]), ("r3", [[0, 1]])):
        world.say("preference", {"ranking": ranking}, a, b, rater=rater)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert [
            (comparison.decided, comparison.conflict, comparison.strength)
            for comparison in comparisons(connection, Agent.named(AGENT))
        ] == [(False, True, 0.0)]
