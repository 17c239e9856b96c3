"""An open home, and tiny models, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as opened:
        yield opened


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter(base, tmp_path_factory.mktemp("adapter"))
