"""Seeds of the tests that show learning: the first runs in CI, the others with `make test-repeat`."""

from __future__ import annotations

import pytest

LEARNING_SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.repeat) for seed in (2, 3))]
