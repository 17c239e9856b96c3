"""Random seeds of the tests that show learning. CI runs the first where no other test shows it,
`make test-repeat` all of them."""

from __future__ import annotations

import pytest

SEEDS = (1, 2, 3)
REPEATED_SEEDS = [pytest.param(seed, marks=pytest.mark.repeat) for seed in SEEDS]
LEARNING_SEEDS = [1, *REPEATED_SEEDS[1:]]
