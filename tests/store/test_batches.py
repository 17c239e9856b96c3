"""Values in batches that fit into one statement."""

from __future__ import annotations

import pytest

from thumbwheel.db.batches import VARIABLES, batches


@pytest.mark.parametrize("count", [0, 1, VARIABLES, VARIABLES + 1, 2 * VARIABLES])
def test_every_value_is_in_one_batch_in_order(count: int) -> None:
    parts = list(batches(iter(range(count))))
    assert [value for batch in parts for value in batch] == list(range(count))
    assert all(len(batch) == VARIABLES for batch in parts[:-1])
    assert all(batch for batch in parts)
