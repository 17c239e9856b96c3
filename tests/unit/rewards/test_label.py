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

from tests.worlds.feedback_world import AGENT, START, World
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


def said(
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
    (said("thumb", True), True),
    (said("thumb", False), False),
    (said("thumb", 1), None),
    (said("rating", 5), True),
    (said("rating", 4), True),
    (said("rating", 3), None),
    (said("rating", 2), False),
    (said("rating", 1), False),
    (said("rating", 7, scale={"min": 0, "max": 10}), True),
    (said("rating", 6, scale={"min": 0, "max": 10}), True),
    (said("rating", 5, scale={"min": 0, "max": 10}), None),
    (said("rating", 4, scale={"min": 0, "max": 10}), False),
    (said("rating", 6), None),
    (said("score", 0.6), True),
    (said("score", 0.4), False),
    (said("score", 0.5), None),
    (said("score", 0.0), False),
    (said("label", True, name="correct"), True),
    (said("label", False, name="correct"), False),
    (said("label", "incorrect", name="verdict"), False),
    (said("label", "Correct", name="verdict"), True),
    (said("label", True, name="wrong"), False),
    (said("label", "billing", name="topic"), None),
    (said("outcome", True, name="resolved"), True),
    (said("outcome", True, name="escalated"), False),
    (said("outcome", 0.1, name="escalated"), True),
    (said("outcome", 0.9, name="conversion"), True),
    (said("comment", "nice"), None),
]


@pytest.mark.parametrize(
    ("one", "good"), READINGS, ids=lambda value: getattr(value, "feedback_id", str(value))
)
def test_what_one_statement_says(one: Statement, good: bool | None) -> None:
    assert verdict_of(one, CONFIG) is good


def test_thresholds_are_settings() -> None:
    strict = LabelConfig(good_from=1.0, bad_to=0.0)
    assert [verdict_of(said("rating", stars), strict) for stars in range(1, 6)] == [
        False,
        None,
        None,
        None,
        True,
    ]


def test_the_side_with_the_most_weight_decides_and_its_margin_is_the_strength() -> None:
    found = judge(
        "t",
        [
            said("thumb", True, rater="a"),
            said("thumb", True, rater="b"),
            said("thumb", False, rater="c"),
        ],
        CONFIG,
    )
    assert (found.good, found.strength, found.conflict) == (True, pytest.approx(1 / 3), True)
    found = judge(
        "t", [said("thumb", True, rater="a"), said("thumb", False, rater="c", weight=3.0)], CONFIG
    )
    assert (found.good, found.strength, found.kind) == (False, pytest.approx(0.5), "thumb")


def test_a_rating_and_a_thumb_given_at_once_are_both_the_newest_word_and_a_later_thumb_takes_the_number_away() -> (
    None
):
    def said(name: str, kind: str, value: Any, day: int) -> Statement:
        return Statement(name, kind, None, value, None, "ann", 1.0, START + timedelta(days=day))

    for first, second in (("a", "b"), ("b", "a")):
        found = judge(
            "t", [said(first, "thumb", True, 1), said(second, "rating", 5, 1)], LabelConfig()
        )
        assert found.good is True and found.value is not None and found.value.unit == 1.0
    later = judge("t", [said("a", "rating", 5, 1), said("b", "thumb", False, 2)], LabelConfig())
    assert (later.good, later.value) == (False, None)


def test_a_person_who_says_neither_does_not_make_a_label_of_machines_one_of_people() -> None:
    machine = replace(said("score", 0.0, rater="checker"), automatic=True)
    alone = judge("t", [machine], CONFIG)
    assert (alone.good, alone.automatic, alone.value and alone.value.automatic) == (
        False,
        True,
        True,
    )
    found = judge("t", [said("rating", 3, rater="anna"), machine], CONFIG)
    assert (found.good, found.kind, found.automatic) == (None, None, False), (
        "she judged it: neither good nor bad"
    )
    assert found.value is not None and (found.value.raw, found.value.automatic) == (3.0, False), (
        "her 3 is the number"
    )
    found = judge("t", [said("label", "billing", name="topic", rater="anna"), machine], CONFIG)
    assert (found.automatic, found.value and found.value.automatic) == (True, True)
    found = judge("t", [said("correction", "better", rater="anna"), machine], CONFIG)
    assert (found.automatic, found.edit and found.edit.automatic) == (True, False)
    for vote in (True, False):
        found = judge(
            "t",
            [
                said("thumb", vote, rater="anna"),
                machine,
                replace(machine, rater="other", feedback_id="o"),
            ],
            CONFIG,
        )
        assert not found.automatic, "she had a vote, on whichever side"


def test_an_exact_tie_has_no_value() -> None:
    found = judge("t", [said("thumb", True, rater="a"), said("rating", 1, rater="b")], CONFIG)
    assert (found.good, found.strength, found.conflict) == (None, None, True)


def test_the_newest_statement_of_a_rater_counts() -> None:
    found = judge(
        "t",
        [
            said("thumb", True, minute=2),
            said("rating", 1, minute=1),
            said("thumb", False, minute=0),
        ],
        CONFIG,
    )
    assert (found.good, found.conflict, len(found.feedback_ids)) == (True, False, 1)


def test_a_newer_neutral_rating_withdraws_the_opinion() -> None:
    found = judge("t", [said("thumb", True, minute=0), said("rating", 3, minute=1)], CONFIG)
    assert (found.good, found.strength, found.feedback_ids) == (None, None, ())


def test_a_topic_is_no_opinion() -> None:
    assert (
        judge(
            "t",
            [said("thumb", True, minute=0), said("label", "billing", name="topic", minute=1)],
            CONFIG,
        ).good
        is True
    )


def test_an_outcome_is_a_witness_of_its_own() -> None:
    found = judge(
        "t",
        [said("thumb", True, minute=0), said("outcome", False, name="resolved", minute=9)],
        CONFIG,
    )
    assert (found.good, found.conflict) == (None, True)


def test_a_rater_who_contradicts_himself_in_one_instant_does_not_count() -> None:
    both = [said("thumb", True, rater="a"), said("thumb", False, rater="a")]
    found = judge("t", [*both, said("thumb", False, rater="b")], CONFIG)
    assert (found.good, found.strength, found.conflict) == (False, 1.0, True)


def test_a_muted_rater_is_not_heard() -> None:
    found = judge(
        "t",
        [
            said("thumb", True, rater="bot", weight=0.0),
            said("correction", "x", rater="bot", weight=0.0),
        ],
        CONFIG,
    )
    assert (found.good, found.edit, found.feedback_ids) == (None, None, ())


def test_corrections_newest_per_rater_and_conflicts() -> None:
    found = judge(
        "t", [said("correction", "old", minute=0), said("correction", "new", minute=1)], CONFIG
    )
    assert found.edit is not None
    assert (found.edit.text, found.edit_conflict, found.good) == ("new", False, None)
    torn = judge(
        "t", [said("correction", "x", rater="a"), said("correction", "y", rater="b")], CONFIG
    )
    assert (torn.edit, torn.edit_conflict) == (None, True)
    decided = judge(
        "t",
        [
            said("correction", "x", rater="a"),
            said("correction", "y", rater="b"),
            said("correction", "y", rater="c"),
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
        lambda kind, rater, minute, weight: said(
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
    found = judge("t", given_votes, CONFIG)
    assert found == judge("t", shuffled, CONFIG)
    assert (found.good is None) == (found.strength is None)
    assert found.strength is None or 0 < found.strength <= 1


@given(votes)
def test_inverting_every_vote_inverts_the_judgement(given_votes: list[Statement]) -> None:
    inverted = [
        replace(vote, value=not vote.value if vote.kind == "thumb" else 6 - vote.value)
        for vote in given_votes
    ]
    one, other = judge("t", given_votes, CONFIG), judge("t", inverted, CONFIG)
    assert (one.good, one.strength, one.conflict) == (
        None if other.good is None else not other.good,
        other.strength,
        other.conflict,
    )


def resolved(tmp_path: Path, fill: Callable[[World], object], **more: Any) -> dict[str, Judgement]:
    world = World()
    fill(world)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        return {one.trace_id: one for one in judgements(connection, AGENT, **more)}


def test_superseded_and_retracted_feedback_is_out(tmp_path: Path) -> None:
    world = World()
    kept, replaced, withdrawn = (world.trace(name, name, "out") for name in "abc")
    world.say("thumb", True, kept)
    first = world.say("thumb", False, replaced, at=50)
    world.say("thumb", True, replaced, at=1, supersedes=first)
    wrong = world.say("thumb", True, withdrawn)
    world.say("thumb", True, withdrawn, retracts=wrong)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        found = {one.trace_id: one for one in judgements(connection, AGENT)}
        counts = {
            signal.kind: (signal.count, signal.good, signal.bad, signal.raters)
            for signal in signals(connection, AGENT)
        }
    assert {trace: one.good for trace, one in found.items()} == {kept: True, replaced: True}
    assert counts == {"thumb": (2, 2, 0, 1)}


def test_as_of_sees_what_was_recorded_by_then(tmp_path: Path) -> None:
    world = World()
    trace = world.trace("a", "q", "out")
    first = world.say("thumb", True, trace, recorded=START)
    world.say("thumb", False, trace, recorded=START + timedelta(days=2), supersedes=first)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert [one.good for one in judgements(connection, AGENT)] == [False]
        assert [one.good for one in judgements(connection, AGENT, START + timedelta(days=1))] == [
            True
        ]
        assert list(judgements(connection, AGENT, START - timedelta(days=1))) == []


def test_unnamed_feedback_of_a_source_is_one_rater(tmp_path: Path) -> None:
    def fill(world: World) -> None:
        trace = world.trace("a", "q", "out")
        world.say("thumb", False, trace, rater=None)
        world.say("thumb", True, trace, rater=None)

    assert [(one.good, one.conflict) for one in resolved(tmp_path, fill).values()] == [
        (True, False)
    ]


def test_awaited_targets_judge_nothing_and_are_counted(tmp_path: Path) -> None:
    world = World()
    trace = world.trace("a", "q", "out")
    world.say("thumb", True, "missing-1")
    world.say("thumb", True, targets=[("session", trace)])
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert list(judgements(connection, AGENT)) == []
        about = target_counts(connection, AGENT)
    assert (about.arrived, about.awaited) == ({"session": 1}, {"trace": 1})


def test_rankings_become_pairs_by_plurality(tmp_path: Path) -> None:
    world = World()
    a, b, c = (world.trace(name, "q", name) for name in "abc")
    world.say("preference", {"ranking": [[0], [1, 2]]}, a, b, c, rater="r1")
    world.say("preference", {"ranking": [[1], [0]]}, a, b, rater="r2")
    world.say("preference", {"ranking": [[0], [1]]}, a, b, rater="r3")
    world.say("preference", {"ranking": [[0], [1]]}, a, "missing", rater="r3")
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        found = {frozenset((one.better, one.worse)): one for one in comparisons(connection, AGENT)}
    one = found[frozenset((a, b))]
    assert (one.better, one.decided, one.strength, one.conflict, len(one.feedback_ids)) == (
        a,
        True,
        pytest.approx(1 / 3),
        True,
        3,
    )
    assert (found[frozenset((a, c))].better, found[frozenset((a, c))].strength) == (a, 1.0)
    assert (found[frozenset((b, c))].decided, found[frozenset((b, c))].conflict) == (False, False)


def test_disagreement_without_plurality_gives_no_pair(tmp_path: Path) -> None:
    world = World()
    a, b = (world.trace(name, "q", name) for name in "ab")
    for rater, ranking in (("r1", [[0], [1]]), ("r2", [[1], [0]]), ("r3", [[0, 1]])):
        world.say("preference", {"ranking": ranking}, a, b, rater=rater)
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        assert [
            (one.decided, one.conflict, one.strength) for one in comparisons(connection, AGENT)
        ] == [(False, True, 0.0)]
