"""One home with one embedded server for all tests of this folder; every test has an agent of its
own in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import processes


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two that change everything in different ways, and one that changes nothing."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        tiny_adapter(
            tiny_model, folder / str(n), seed=n, **({"init_lora_weights": True} if n == 3 else {})
        )
        for n in (1, 2, 3)
    ]


@pytest.fixture(scope="session")
def deploying_ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path_factory.mktemp("home")), Sources({}, "", {})) as ws:
        yield ws
        for record in (ws.home.path / "deployments").rglob(processes.RECORD):
            processes.stop(record.parent)


@pytest.fixture
def deployed(
    deploying_ws: Workspace, tiny_model: Path, adapters: list[Path], request: pytest.FixtureRequest
) -> DeployWorld:
    return DeployWorld(
        deploying_ws,
        tiny_model,
        adapters,
        re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-60:].strip("-"),
    )


@pytest.fixture
def server_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a server, which is ended with the test."""
    yield tmp_path / "place"
    processes.stop(tmp_path / "place")
