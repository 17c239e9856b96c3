"""One account of alpha holds the looks of the gate and the experiments of an agent."""

from __future__ import annotations

from thumbwheel.evaluation.policy import Look
from thumbwheel.evaluation.spending import look_number
from thumbwheel.stats.multiple import look_level

ROWS = frozenset({"a", "b"})


def test_an_experiment_counts_as_a_look_at_every_row() -> None:
    first = Look(("x", "y"), "success", ROWS, (1.0,))
    second = Look(("x", "z"), "success", ROWS, (2.0,))
    assert look_number(first, [], experiments=0) == 1
    assert look_number(second, [first], experiments=0) == 2
    assert look_number(second, [first], experiments=3) == 5
    # rows that nobody looked at before are as often read as there were experiments
    fresh = Look(("x", "z"), "success", frozenset({"c"}), (2.0,))
    assert look_number(fresh, [first, second], experiments=3) == 4


def test_all_tests_together_spend_less_than_alpha() -> None:
    spent = sum((1 - look_level(0.05, number)) / 2 for number in range(1, 200))
    assert spent < 0.05
