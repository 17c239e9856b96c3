"""The gate's figures, by benchmarks/gate.py itself: how often it is wrong, and how often it sees
the gain that it states as detectable."""

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
@pytest.mark.parametrize("number", [2, 5], ids=["cases that stand alone", "cases in groups"])
@pytest.mark.parametrize("kind", COUNTS)
def test_the_gate_meets_its_target(gate: ModuleType, kind: str, number: int) -> None:
    world = gate.WORLDS[number]
    decided = getattr(gate, kind)(world, COUNTS[kind], np.random.default_rng(0))
    assert decided.total >= COUNTS[kind], "a share of too few says nothing"
    line = gate.line(kind, world, decided)
    assert not line["missed"], line


@pytest.mark.slow
def test_guards_refuse_few_true_gains_and_pass_no_harm(gate: ModuleType) -> None:
    """The fast version of the table of both mistakes; bounds are exact binomial ones."""
    random = np.random.default_rng(0)
    world = gate.World(300, 0.3)
    for habit in gate.BASES.values():
        counts = gate.counted(gate.with_gain(world, habit, 30, random))
        assert counts.verdicts["rejected"] <= 3 and counts.verdicts["approved"] >= 20
    for name, habit in gate.HARMS.items():
        counts = gate.counted(gate.with_gain(world, habit, 12, random))
        most = 4 if name.startswith("exactly") else 2
        assert counts.verdicts["approved"] <= most, name
    refused = gate.counted(gate.with_gain(world, gate.NARROW, 10, random), gate.ABSOLUTE)
    assert refused.verdicts["rejected"] == 10, "what margins that ignore the base would do"
