"""Shuffled feedback, as a rate over worlds: a single seed is approved now and then, as the gate
says itself."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

WORLDS = 3
SURE = 0.998
"""Confidence of the claim that the rate lies above the nominal one, so that chance hardly ever
fails the test."""


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("shuffled")


@pytest.mark.slow
def test_shuffled_feedback_is_approved_no_more_often_than_the_gate_says(
    shuffled: ModuleType,
) -> None:
    rows = [shuffled.world(shuffled.FIRST + number) for number in range(WORLDS)]
    counts = shuffled.summary(rows)["counts"]
    assert not shuffled.exceeds(counts["approved"], WORLDS, SURE), json.dumps(rows, indent=1)
    assert sum("gain" in row for row in rows) >= WORLDS // 4, (
        "most runs gave no candidate, so nothing was tried"
    )


def test_what_the_test_above_can_tell(shuffled: ModuleType) -> None:
    """A gate that approved whatever looks better would approve about every second of these
    worlds, so three of three now and then; benchmarks/shuffled.py counts over 200."""
    assert [shuffled.exceeds(count, WORLDS, SURE) for count in (0, 1, 2, 3)] == [
        False,
        False,
        False,
        True,
    ]
    assert [shuffled.exceeds(count, 200, SURE) for count in (5, 9, 20)] == [False, False, True]


def test_a_run_goes_on_where_it_was_stopped_and_counts_mistakes_apart(
    shuffled: ModuleType, tmp_path: Path
) -> None:
    common = {"method": "kto", "seconds": 1.0, "gain": 0.05, "low": 0.01}
    rows = [
        {"seed": 1003, "verdict": "rejected", **common, "low": -0.01},
        {
            "seed": 1001,
            "verdict": "approved",
            **common,
            "fresh": {"gain": 0.03, "low": 0.01, "high": 0.05, "n": 2000},
        },
        {
            "seed": 1002,
            "verdict": "approved",
            **common,
            "fresh": {"gain": -0.01, "low": -0.03, "high": 0.01, "n": 2000},
        },
        {"seed": 1004, "verdict": "no candidate", "method": "sft", "seconds": 1.0},
    ]
    path = tmp_path / "shuffled.json"
    shuffled.write(path, rows)
    assert [row["seed"] for row in shuffled.finished_rows(path)] == [1001, 1002, 1003, 1004]
    counts = json.loads(path.read_text())["summary"]["counts"]
    assert counts == {"worlds": 4, "gain seen": 2, "approved": 2, "approved without a true gain": 1}
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"settings": stored["settings"] | {"steps": 5}}))
    assert shuffled.finished_rows(path) == [] == shuffled.finished_rows(tmp_path / "none.json")
