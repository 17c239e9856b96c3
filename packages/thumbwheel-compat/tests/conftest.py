"""Tiny models, made once; every test begins outside of any run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base
from thumbwheel.sdk.nesting import RUNS


@pytest.fixture(autouse=True)
def outside_of_any_run() -> Iterator[None]:
    """Whatever an earlier test has left open in this thread."""
    before = RUNS.set(())
    yield
    RUNS.reset(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter(tiny_model, tmp_path_factory.mktemp("adapter"))
