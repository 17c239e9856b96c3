"""The rule for raters is one: statements about a trace, preferences about a pair, and equal texts
come to the same, and the order of the statements decides nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feedback_world import START
from thumbwheel.datasets.aggregate_prompt import PromptAggregator
from thumbwheel.datasets.store import TraceRow
from thumbwheel.datasets.types import DatasetConfig, Evidence, Tally
from thumbwheel.rewards.aggregate import judge
from thumbwheel.rewards.label import compare_pairs
from thumbwheel.rewards.types import Judgement, LabelConfig, PairComparison, Preference, Statement

CONFIG = LabelConfig()
MACHINES = frozenset({"d", "e"})


def thumb(rater: str, good: bool, weight: float, minute: int, lone: bool, number: int) -> Statement:
    return Statement(
        f"f{number}",
        "thumb",
        None,
        good,
        None,
        rater,
        weight,
        START + timedelta(minutes=minute),
        automatic=rater in MACHINES,
        timed=not lone,
        named=not lone,
    )


def numbered(statements: list[tuple[Any, ...]]) -> list[Statement]:
    return [thumb(*fields, number) for number, fields in enumerate(statements)]


ANY_STATEMENTS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.booleans(),
        st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 3.0]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=8,
).map(numbered)
ONE_EACH = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.just(1.0), st.just(0), st.just(False)),
    max_size=8,
    unique_by=lambda fields: fields[0],
).map(numbered)


def preferring(statement: Statement, good: str = "t1", bad: str = "t2") -> Preference:
    """The same word about a pair: up is for the first trace, down for the second."""
    ranking = ((good,), (bad,)) if statement.value else ((bad,), (good,))
    return Preference(
        statement.feedback_id,
        ranking,
        statement.rater,
        statement.weight,
        statement.at,
        statement.automatic,
        statement.lone,
    )


def trace(name: str, output: str) -> TraceRow:
    return TraceRow(name, "p", None, None, output, None, 1, "stop", None, None, None, None)


def of_texts(
    judged: list[tuple[TraceRow, Judgement | None]], compared: list[PairComparison] = ()
) -> Evidence:
    aggregator = PromptAggregator([], "train", DatasetConfig(), Tally())
    for row, judgement in judged:
        aggregator.add(row, judgement)
    for comparison in compared:
        aggregator.compare(comparison)
    return aggregator.evidence("p", None, ())


def summary(judgement: Judgement) -> tuple[Any, ...]:
    return (
        judgement.good,
        round(judgement.strength or 0.0, 9),
        judgement.conflict,
        judgement.feedback_ids,
        judgement.automatic,
    )


def summary_of_pair(comparison: PairComparison) -> tuple[Any, ...]:
    good = comparison.better == "t1" if comparison.decided else None
    strength = round(comparison.strength, 9)
    return good, strength, comparison.conflict, comparison.feedback_ids, comparison.automatic


@given(ANY_STATEMENTS)
def test_a_trace_a_pair_and_a_text_come_to_the_same(statements: list[Statement]) -> None:
    judgement = judge("t1", statements, CONFIG)
    comparisons = compare_pairs(map(preferring, statements))
    assert [summary_of_pair(comparison) for comparison in comparisons] == [
        summary(judgement)
    ] * bool(statements)

    evidence = of_texts([(trace("t1", "yes"), judgement), (trace("t2", "no"), None)], comparisons)
    answer = next(answer for answer in evidence.answers if answer.text == "yes")
    assert (answer.good, answer.strength) == (judgement.good, judgement.strength or 0.0)
    assert answer.conflict == judgement.conflict
    (edge,) = evidence.edges or (None,)
    if edge is None:
        assert judgement.good is None
    else:
        assert (evidence.answers[edge.better].text == "yes") is judgement.good
        assert round(edge.strength, 9) == round(judgement.strength or 0.0, 9)


@given(ONE_EACH)
def test_equal_texts_of_several_traces_come_to_what_one_trace_comes_to(
    statements: list[Statement],
) -> None:
    expected = judge("t", statements, CONFIG)
    judged: list[tuple[TraceRow, Judgement | None]] = []
    compared: list[PairComparison] = []
    for number, statement in enumerate(statements):
        yes, no = f"y{number}", f"n{number}"
        judged.append((trace(yes, "yes"), judge(yes, [statement], CONFIG)))
        judged.append((trace(no, "no"), None))
        compared += compare_pairs([preferring(statement, yes, no)])
    evidence = of_texts(judged, compared)
    for answer in evidence.answers:
        if answer.text == "yes":
            assert round(answer.strength, 9) == round(expected.strength or 0.0, 9)
            assert answer.good is expected.good and answer.conflict == expected.conflict
            assert answer.feedback_ids == expected.feedback_ids
            assert answer.automatic == expected.automatic
    edges = [(evidence.answers[edge.better].text == "yes", edge) for edge in evidence.edges]
    assert [better for better, _ in edges] == [expected.good] * (expected.good is not None)
    for _, edge in edges:
        assert round(edge.strength, 9) == round(expected.strength or 0.0, 9)
        assert edge.feedback_ids == expected.feedback_ids


@given(ANY_STATEMENTS, st.randoms(use_true_random=False))
def test_the_order_of_statements_decides_nothing(statements: list[Statement], random: Any) -> None:
    # ratings and corrections too: numbers and edits follow the same rule
    for number, statement in enumerate(list(statements)):
        if number % 3 == 1:
            stars = 5 if statement.value else 1
            statements[number] = replace(statement, kind="rating", value=stars)
        if number % 3 == 2:
            text = "better" if statement.value else "best"
            statements[number] = replace(statement, kind="correction", value=text)
    shuffled = random.sample(statements, len(statements))
    assert judge("t", shuffled, CONFIG) == judge("t", statements, CONFIG)

    comparisons = compare_pairs(map(preferring, statements))
    assert compare_pairs(map(preferring, shuffled)) == comparisons

    by_trace = [
        (trace(statement.feedback_id, "yes"), judge(statement.feedback_id, [statement], CONFIG))
        for statement in statements
    ]
    other_order = random.sample(by_trace, len(by_trace))
    assert of_texts(other_order).answers == of_texts(by_trace).answers
    assert set(of_texts(other_order).edges) == set(of_texts(by_trace).edges)
