"""Every test begins outside of any run, whatever an earlier one has left open in this thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thumbwheel.sdk.nesting import RUNS


@pytest.fixture(autouse=True)
def outside_of_any_run() -> Iterator[None]:
    before = RUNS.set(())
    yield
    RUNS.reset(before)
