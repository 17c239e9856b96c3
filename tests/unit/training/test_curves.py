"""Curves of runs: every spike is in them, however few points are asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.curves import Curve, StepRange, curves, extremes
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Run, RunState

RUN = Run("run_1", "a", "dpo", "ds_1", "base", None, {}, RunState.RUNNING, None, None)


@pytest.mark.parametrize("points", [10, 37, 400])
def test_extremes_are_kept_in_every_stretch(points: int) -> None:
    values = np.random.default_rng(0).normal(size=5000)
    values[2713] = 50.0
    indices = extremes(values, points)
    assert len(indices) <= points
    assert indices == sorted(set(indices))
    assert {0, 2713, 4999} <= set(indices)
    assert int(np.argmin(values)) in indices


def test_a_run_that_goes_on_is_read_anew(tmp_path: Path) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws:
        assert curves(ws, RUN, 100).lines == 0
        folder = RunDir(ws.home.runs / RUN.id)
        folder.path.mkdir(parents=True)
        first = {"step": 1, "loss": 0.6931471, "eval_loss": 0.7, "kl": None, "epoch": 0.1}
        folder.metrics.write_text(json.dumps(first) + "\n" + '{"step": 2, "lo')
        shown = curves(ws, RUN, 100)
        assert shown.lines == 1
        assert list(shown.curves) == [
            Curve("loss", "train", (1,), (0.69315,)),
            Curve("loss", "dev", (1,), (0.7,)),
        ]
        with folder.metrics.open("a") as stream:
            stream.write('ss": 0.5}\n')
        assert curves(ws, RUN, 100, ["loss"]).curves[0].values == (0.69315, 0.5)
        assert curves(ws, RUN, 100, ["kl"]).curves == []
        assert curves(ws, replace(RUN, id="run_2"), 100).curves == ()


def test_a_part_of_a_curve_has_the_points_next_to_it(tmp_path: Path) -> None:
    """Dev rows are measured seldom: their line crosses a zoom that has none of its points."""
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws:
        folder = RunDir(ws.home.runs / RUN.id)
        folder.path.mkdir(parents=True)
        lines = [
            {"step": step, "loss": float(step)} | ({"eval_loss": 1.0} if step % 40 == 0 else {})
            for step in range(1, 301)
        ]
        folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        train, dev = curves(ws, RUN, 400, steps=StepRange(205, 235)).curves
        assert (train.steps[0], train.steps[-1]) == (204, 236)
        assert (dev.split, dev.steps) == ("dev", (200, 240))
        assert curves(ws, RUN, 400, steps=StepRange(400, 500)).curves == []
        assert curves(ws, RUN, 400, steps=StepRange(None, 2)).curves[0].steps == (1, 2, 3)
