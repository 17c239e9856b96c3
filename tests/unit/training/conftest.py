"""A tiny base, and single-threaded torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"), initializer_range=0.1)
