"""An open home, and a tiny base with an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter(tiny_model, tmp_path_factory.mktemp("adapter"))
