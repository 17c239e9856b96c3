"""The gate's figures, by benchmarks/gate.py itself: how often it is wrong, and how often it sees the gain that it states as detectable."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

COUNTS = {"equal": 1000, "gain": 1000, "cycles_equal": 300, "cycles_gain": 30}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("gate")


@pytest.mark.slow
@pytest.mark.parametrize("place", [2, 5], ids=["cases that stand alone", "cases in groups"])
@pytest.mark.parametrize("kind", COUNTS)
def test_the_gate_meets_its_target(gate: ModuleType, kind: str, place: int) -> None:
    world = gate.WORLDS[place]
    found = getattr(gate, kind)(world, COUNTS[kind], np.random.default_rng(0))
    assert found[1] >= COUNTS[kind], "a share of too few says nothing"
    line = gate.line(kind, world, found)
    assert not line["missed"], line
