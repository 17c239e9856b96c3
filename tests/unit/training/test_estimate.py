"""What a trial's figures mean for the whole run, and what past runs add; the trial itself is in
test_train.py."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.training_rows import QUICK, frozen, settings
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import TrainingError
from thumbwheel.datasets.types import Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.stats.power import detectable_area
from thumbwheel.training.estimate import estimate
from thumbwheel.training.train import dry_run, train
from thumbwheel.training.types import Run, RunState

TIMES = {
    "start": 10.0,
    "first": 0.02,
    "later": 0.01,
    "evaluation_first": 6.0,
    "evaluation_later": 4.0,
    "probe": 1.0,
    "save": 2.0,
    "steps": 3,
}
FOUND: dict[str, Any] = {
    "times": TIMES,
    "steps": 40,
    "steps_an_epoch": 10,
    "planned_tokens": 20_000,
    "tokens": 5000,
    "scored": 900,
    "checkpoint_gb": 0.1,
    "train_rows": 160,
    "dev_rows": 20,
    "evaluation": {
        "dev_rows": 20,
        "of": 20,
        "eval_steps": 4,
        "evaluations": 11,
        "share": 0.1,
        "budget": 0.15,
    },
    "dropped": {},
    "notes": {},
    "token_budget": 1024,
    "changes": [],
    "matched_modules": 14,
    "trainable_parameters": 4096,
    "dtype": "float32",
    "layout": "tree",
    "memory": {"weights": 1.0, "peak": 2.0},
}
SECONDS = 10 + 500 * (10 * 0.02 + 30 * 0.01) + 6 + 10 * 4 + 11 * 1 + 12 * 2


def of(past: list[Run], shape: str = "pairs", **changes: Any) -> Any:
    data = Dataset(
        "dst_1",
        "a",
        shape,
        "f",
        {"counts": {"train": 160, "dev": 20, "gate": 180}, "gate_groups": 180},
        datetime.now(UTC),
    )
    rows = [{"label": number % 3 == 0} for number in range(180)]
    return estimate(
        "dpo", settings("dpo", QUICK | changes), "preset cpu", data, [rows], FOUND, past
    )


def run(tokens: float = 20_000, seconds: float = 4 * SECONDS, **changes: Any) -> Run:
    metrics = {
        "planned_tokens": 2 * tokens,
        "planned_steps": 80,
        "steps": 40,
        "seconds": seconds,
        "dtype": "float32",
        "resumed": False,
    }
    metrics |= changes.pop("metrics", {})
    return Run(
        "run_1",
        "a",
        changes.pop("algorithm", "dpo"),
        "dst_1",
        "base",
        "f",
        {},
        changes.pop("state", RunState.FINISHED),
        None,
        metrics,
    )


def test_minutes_disk_and_power() -> None:
    estimated = of([])
    assert estimated.minutes == pytest.approx(SECONDS / 60, abs=0.01)
    assert estimated.disk_gb == pytest.approx(0.5) and estimated.memory_gb["peak"] == 2.0
    assert estimated.held_out_rows == 180 and estimated.detectable_gain == pytest.approx(
        0.11, abs=0.005
    )
    labels = of([], shape="labels")
    assert (estimated.detectable_gain_of, labels.detectable_gain_of) == ("answers", "AUC")
    assert labels.detectable_gain == detectable_area(60, 120) == pytest.approx(0.135, abs=0.005)


def test_past_runs_weigh_as_much_as_the_trial() -> None:
    assert (
        of([run()]).minutes == pytest.approx(2 * SECONDS / 60, abs=0.02)
        and of([run()]).past_runs == 1
    )
    others = [run(algorithm="kto"), run(state=RunState.STOPPED), run(tokens=1_000)]
    others += [
        run(metrics=metrics) for metrics in ({"resumed": True}, {"dtype": "bfloat16"}, {"steps": 0})
    ]
    assert of(others).past_runs == 0


def test_disk_is_of_the_checkpoints_that_a_run_will_have() -> None:
    assert of([], save_total_limit=10**9).disk_gb == pytest.approx(0.1 * (12 + 3))


@pytest.mark.slow
def test_a_run_whose_checkpoints_have_no_room_is_refused(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thumbwheel.training.train.disk_free_gb", lambda folder: 1e-6)
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "pairs", 8)
        with pytest.raises(
            TrainingError,
            match=r"checkpoints and adapter take about .* GB are free.*save_total_limit, now 2\)",
        ):
            dry_run(
                ws,
                Agent.named("a"),
                "dpo",
                find_base(str(tiny_model), ws.home.cache),
                dataset=dataset,
                options=QUICK,
            )


@pytest.mark.slow
def test_a_run_that_cannot_fit_is_refused_by_the_dry_run_and_by_the_run(
    tmp_path: Path, tiny_model: Path
) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "pairs", 8)
        options = QUICK | {"memory_limit_gb": 0.05}
        agent, model = Agent.named("a"), find_base(str(tiny_model), ws.home.cache)
        for verb in (dry_run, train):
            with pytest.raises(
                TrainingError, match=r"not even much shorter ones would fit.*--quantization nf4"
            ):
                verb(ws, agent, "dpo", model, dataset=dataset, options=options)
