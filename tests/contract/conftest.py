"""Contracts hold for the variants of an installed package as they do for ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.third_party import installed


@pytest.fixture(scope="module", autouse=True)
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package `kennel` is installed while the contract tests run."""
    with installed(tmp_path_factory.mktemp("site")):
        yield
