"""The short form of benchmarks/faults.py: a service with two workers on PostgreSQL."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.repeat
def test_a_service_survives_every_fault_and_loses_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    results = importlib.import_module("faults").run(tmp_path, short=True)
    failures = [f"{result.fault}: {result.evidence}" for result in results if not result.survived]
    assert len(results) > 10
    assert failures == []
