"""The order of rows: every row once an epoch, another order every epoch, and the same rest after
any step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.training.algorithms.sft import SftConfig
from thumbwheel.training.order import Order
from thumbwheel.training.types import TrainConfig


@given(st.integers(1, 60), st.integers(1, 17), st.integers(1, 4), st.integers(0, 5), st.data())
def test_order(rows: int, batch_size: int, epochs: int, seed: int, data: st.DataObject) -> None:
    order = Order.of(rows, TrainConfig(batch_size=batch_size, num_train_epochs=epochs, seed=seed))
    batches = list(order.batches())
    assert len(batches) == order.steps == epochs * order.steps_an_epoch
    for epoch in range(epochs):
        part = batches[epoch * order.steps_an_epoch : (epoch + 1) * order.steps_an_epoch]
        assert sorted(row for batch in part for row in batch) == list(range(rows))
    done = data.draw(st.integers(0, order.steps))
    assert list(order.batches(done)) == batches[done:]


def test_another_seed_or_epoch_is_another_order() -> None:
    first, second = (
        list(Order.of(50, TrainConfig(batch_size=50, num_train_epochs=2, seed=seed)).batches())
        for seed in (1, 2)
    )
    assert first[0] != first[1]
    assert first[0] != second[0]


def test_few_rows_are_passed_over_more_often() -> None:
    fewest, few, many = (
        Order.of(rows, SftConfig(batch_size=16, min_steps=50)) for rows in (10, 60, 2000)
    )
    assert (fewest.steps, fewest.epoch(fewest.steps)) == (16, 16.0)
    assert (few.steps, few.epoch(few.steps)) == (50, 12.5)
    assert (many.steps, many.epoch(many.steps)) == (500, 4.0)
    assert Order.of(49, SftConfig(batch_size=16)).steps == 16
    assert Order.of(0, SftConfig()).steps == 0


def test_max_steps_wins_over_epochs() -> None:
    assert Order.of(10, TrainConfig(batch_size=4, num_train_epochs=5, max_steps=2)).steps == 2
