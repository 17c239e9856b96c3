"""How many dev rows an evaluation reads, by what the base costs."""

from __future__ import annotations

from collections import Counter

from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import Prepared
from thumbwheel.training.assemble import (
    DEV_BUDGET,
    FEWEST_DEV_ROWS,
    UNREAD_DEV_ROWS,
    affordable,
)

TOKENS = 50


def dev_rows(count: int) -> Prepared:
    items = [
        Example(tuple(range(TOKENS - 10)), (Branch(tuple(range(10))),), str(number))
        for number in range(count)
    ]
    return Prepared(items=items, rows=list(range(count)), notes=Counter({"a note": 1}))


def test_a_small_base_is_measured_on_all_dev_rows() -> None:
    rows = dev_rows(3000)
    assert affordable(rows, 4_000_000) is rows


def test_a_larger_base_is_measured_on_as_many_as_the_budget_has() -> None:
    rows = dev_rows(1000)
    measured = affordable(rows, 135_000_000)
    assert FEWEST_DEV_ROWS < len(measured.items) < len(rows.items)
    assert len(measured.items) * TOKENS * 135_000_000 <= DEV_BUDGET
    assert measured.items == rows.items[: len(measured.items)]
    assert measured.rows == rows.rows[: len(measured.items)]
    assert measured.notes == Counter(
        {"a note": 1, UNREAD_DEV_ROWS: len(rows.items) - len(measured.items)}
    )


def test_however_large_the_base_enough_rows_are_read_to_tell_a_gain() -> None:
    assert len(affordable(dev_rows(1000), 70_000_000_000).items) == FEWEST_DEV_ROWS
    assert len(affordable(dev_rows(20), 70_000_000_000).items) == 20


def test_methods_that_answer_have_their_own_limit() -> None:
    prompts = Prepared(items=["a prompt"] * 1000, rows=list(range(1000)))
    assert affordable(prompts, 70_000_000_000) is prompts
