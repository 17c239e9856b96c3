"""Random seeds of the tests that show learning. CI runs the first, `make test-repeat` the rest."""

from __future__ import annotations

import pytest

LEARNING_SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.repeat) for seed in (2, 3))]
