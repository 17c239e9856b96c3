"""Two bases: one that was barely trained (for the mechanics, seconds) and the real one (for slow
tests, cached between runs)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thumbwheel.demo.base import BaseConfig, ensure_base


@pytest.fixture(scope="session")
def tiny() -> BaseConfig:
    """A base that is trained within a second and knows nothing."""
    return BaseConfig(mails=320, layers=1, hidden=64, intermediate=64, vocabulary=512)


@pytest.fixture(scope="session")
def tiny_cache(tiny: BaseConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the tiny base."""
    cache = tmp_path_factory.mktemp("tiny-base")
    ensure_base(cache, tiny)
    return cache


@pytest.fixture(scope="session")
def real_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's own base. `THUMBWHEEL_TEST_BASES` is a folder that keeps it between test runs."""
    folder = os.environ.get("THUMBWHEEL_TEST_BASES")
    return ensure_base(Path(folder) if folder else tmp_path_factory.mktemp("bases"))
