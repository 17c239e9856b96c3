"""Every test of a store runs twice, with its homes in SQLite and in PostgreSQL; those marked
`sqlite` are about the file itself, those marked `postgresql` about the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases
from thumbwheel.db.dialects import Backend, Postgresql, Sqlite

KINDS = ("sqlite", "postgresql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    of_server = metafunc.definition.get_closest_marker("postgresql")
    if "database_kind" in metafunc.fixturenames and not of_server:
        of_file = metafunc.definition.get_closest_marker("sqlite")
        metafunc.parametrize("database_kind", KINDS[:1] if of_file else KINDS, indirect=True)


@pytest.fixture(autouse=True)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Where the homes of the test have their rows."""
    kind = getattr(request, "param", "")  # tests of the server name their databases themselves
    if kind == "postgresql":
        request.getfixturevalue("homes_in_postgresql")
    return kind


@pytest.fixture
def backend(
    database_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Backend]:
    """A new database without tables, whose writers wait half a second for each other."""
    if database_kind == "sqlite":
        yield Sqlite(tmp_path / "db", tmp_path / "lock", wait=0.5)
        return
    databases: Databases = request.getfixturevalue("databases")
    url = databases.empty()
    yield Postgresql(sa.make_url(url), wait=0.5)
    databases.drop(url)
