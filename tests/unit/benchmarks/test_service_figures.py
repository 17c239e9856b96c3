"""The benchmarks of the service, in short: what they measure holds on a small scale, too."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
UNBOUNDED = ("a rare word",)
"""Lists that go through all traces; the bound is for the others."""


@pytest.fixture
def benchmark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.param)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("benchmark", ["swap"], indirect=True)
def test_switches_under_load(benchmark: Any) -> None:
    figures = benchmark.run(requests=300, switches=4)
    wrong = ("failed", "mixed", "misnamed", "late", "recorded_wrongly")
    assert {name: figures[name] for name in wrong} == dict.fromkeys(wrong, 0), figures
    assert len(figures["answers"]) == 2


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("benchmark", ["lists"], indirect=True)
def test_lists_are_short_work(benchmark: Any, tmp_path: Path) -> None:
    home = benchmark.prepared(tmp_path, 10_000)
    rows = benchmark.measure(home, 10_000, calls=5, most_seconds=5.0)
    slow = [row for row in rows if row["cpu_p50_ms"] > 25 and row["list"] not in UNBOUNDED]
    assert slow == []


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("benchmark", ["idle"], indirect=True)
def test_a_server_that_nobody_asks(benchmark: Any, tmp_path: Path) -> None:
    figures = benchmark.measure(tmp_path / "home", workers=2, seconds=5.0, starts=0)
    assert figures["processes"] == 3
    assert not figures["torch"]
    assert figures["idle_cpu_ms_per_second"] < 40, "20 are wanted of a machine that is not shared"
