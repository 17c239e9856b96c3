"""Tiny models, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter(base, tmp_path_factory.mktemp("adapter"))
