"""The benchmarks of the service, in short: what they measure holds on a small scale, too."""

from __future__ import annotations

import importlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MOST_STEPS = 20_000
MOST_SEARCHED = 500_000
"""Steps of SQLite's machine for a page; the second where texts or feedback are looked at. They are
the same with ten thousand traces and with a million."""
SEARCHED = ("what people disliked", "what nobody did", "a frequent word", "a rare word")
STRIDE = 100
"""Steps between two that are counted."""


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
    with Workspace.open(Home(home), Sources({}, "none", {})) as ws:
        counted = itertools.count()
        with ws.db.read() as connection:
            sa.event.listen(connection.engine, "checkout", counting(counted))
        steps = {
            name: steps_of(call, counted) for name, call in benchmark.lists(ws, 10_000).items()
        }
    searched = {name: steps.pop(name) for name in SEARCHED}
    assert max(steps.values()) < MOST_STEPS, steps
    assert max(searched.values()) < MOST_SEARCHED, searched


def counting(counted: Iterator[int]) -> Callable[..., None]:
    """For each connection: count every `STRIDE`th step of SQLite's machine."""

    def listen(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(lambda: next(counted) < 0, STRIDE)

    return listen


def steps_of(call: Callable[[], object], counted: Iterator[int]) -> int:
    before = next(counted)
    call()
    return STRIDE * (next(counted) - before - 1)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("benchmark", ["idle"], indirect=True)
def test_a_server_that_nobody_asks(benchmark: Any, tmp_path: Path) -> None:
    figures = benchmark.measure(tmp_path / "home", workers=2, seconds=5.0, starts=0)
    assert figures["processes"] == 3
    assert not figures["torch"]
    assert figures["idle_cpu_ms_per_second"] < 40, "20 are wanted of a machine that is not shared"
