"""The dry run: what a run would be, from a trial of its first steps in a process of its own
(trial_run.py) and from past runs here.

Minutes are those of a run without early stopping, and of a machine that is as busy as during the
trial. Runs of the same method over the same base that this home has seen weigh as much as the
trial.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from thumbwheel.core.private import UMASK
from thumbwheel.datasets.types import Dataset
from thumbwheel.stats.power import expected_detectable
from thumbwheel.training.algorithm import SplitRows
from thumbwheel.training.children import environment
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import DryRun, EvaluationPlan, Run, RunState, Status, TrainConfig

DISCORDANCE = 0.3
"""Share of held-out rows on which a tuned model and its base usually differ; the power of an
evaluation depends on it."""
SAME = (
    "dev_rows",
    "dropped",
    "notes",
    "tokens",
    "steps",
    "token_budget",
    "changes",
    "matched_modules",
    "trainable_parameters",
    "dtype",
    "layout",
)
"""Figures that a dry run has from its trial as they are."""
ENDED = (RunState.FINISHED, RunState.NOTHING_LEARNED)
"""States of runs that took all the time that they were given."""
ALIKE = 3.0
"""A past run says something of one that is at most so many times larger or smaller."""


def trial(run: RunDir) -> Status:
    """Run the trial of the run in this folder; return how it ended, with its figures."""
    command = [sys.executable, "-P", "-m", "thumbwheel.training.trial_run", str(run.path)]
    with run.log.open("ab") as out:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(os.environ),
            umask=UMASK,
            check=False,
        )
    status = run.status()
    if status is not None:
        return status
    how = f"exit code {process.returncode}"
    if process.returncode < 0:
        how = f"killed by signal {-process.returncode}"
    last_words = run.log.read_text(encoding="utf-8")[-300:]
    return Status(RunState.FAILED, reason=f"the trial ended without a word ({how}): {last_words}")


def estimate(
    algorithm: str,
    config: TrainConfig,
    preset: str,
    dataset: Dataset,
    rows: Sequence[SplitRows],
    figures: Mapping[str, Any],
    past: Sequence[Run],
) -> DryRun:
    """Estimate what the run needs from the `rows` of its dataset by split, the `figures` of its
    trial and the `past` runs of the agent over the same base."""
    steps, tokens = figures["steps"], figures["planned_tokens"]
    seconds = _seconds(config, figures, steps)
    alike = [run for run in past if run.config.get("ranks", 1) == config.ranks]
    rates = _rates(algorithm, figures, alike, tokens)
    if rates:
        seconds = statistics.geometric_mean([seconds, statistics.median(rates) * tokens])
    checkpoints = min(config.save_total_limit, _saves(config, figures)) + 3
    return DryRun(
        algorithm=algorithm,
        dataset_id=dataset.id,
        preset=preset,
        rows=figures["train_rows"],
        scored_tokens=figures["scored"],
        minutes=round(seconds / 60, 2),
        past_runs=len(rates),
        memory_gb={name: round(size, 6) for name, size in figures["memory"].items()},
        disk_gb=round(figures["checkpoint_gb"] * checkpoints, 6),
        held_out_rows=dataset.counts.get("gate", 0),
        detectable_gain=_detectable(dataset, rows),
        detectable_gain_of="AUC" if dataset.shape == "labels" else "answers",
        probed_steps=figures["times"]["steps"],
        scores=dataset.manifest.get("scores"),
        evaluation=EvaluationPlan(**figures["evaluation"]),
        **{name: figures[name] for name in SAME},
    )


def _detectable(dataset: Dataset, rows: Sequence[SplitRows]) -> float | None:
    """Return the gain that the gate rows can detect, as if each of their groups were one row and
    their labels were distributed as in the other splits, or None for too few."""
    gate_rows = dataset.counts.get("gate", 0)
    groups = min(gate_rows, dataset.manifest.get("gate_groups", gate_rows))
    good_share = None
    if dataset.shape == "labels":
        good_share = statistics.fmean(bool(row["label"]) for row in chain.from_iterable(rows))
    return expected_detectable(groups, DISCORDANCE, good_share)


def _seconds(config: TrainConfig, figures: Mapping[str, Any], steps: int) -> float:
    """Return the seconds of the whole run, estimated from the trial alone; checkpoints come with
    the evaluations."""
    times = figures["times"]

    first_steps = min(steps, max(1, figures["steps_an_epoch"]))
    later_steps = steps - first_steps
    tokens_a_step = figures["planned_tokens"] / max(1, steps)
    training = tokens_a_step * (first_steps * times["first"] + later_steps * times["later"])

    evaluating = 0.0
    if evaluations := figures["evaluation"]["evaluations"]:
        evaluating = times["evaluation_first"] + (evaluations - 1) * times["evaluation_later"]
        evaluating += evaluations * times["probe"]

    saving = _saves(config, figures) * times["save"]
    return float(times["start"] + training + evaluating + saving)


def _saves(config: TrainConfig, figures: Mapping[str, Any]) -> int:
    return int(figures["steps"] // (config.save_steps or figures["evaluation"]["eval_steps"])) + 2


def _rates(
    algorithm: str, figures: Mapping[str, Any], past: Sequence[Run], tokens: float
) -> list[float]:
    """Return the seconds per planned token of comparable past runs, everything in a run
    included."""
    rates = []
    for run in past:
        metrics = run.metrics or {}
        if run.algorithm != algorithm or run.state not in ENDED:
            continue
        if metrics.get("dtype") != figures["dtype"] or metrics.get("resumed"):
            continue
        done = metrics.get("steps", 0) / max(1, metrics.get("planned_steps", 1))
        trained_tokens = metrics.get("planned_tokens", 0.0) * done
        if trained_tokens and 1 / ALIKE < trained_tokens / tokens < ALIKE:
            rates.append(metrics["seconds"] / trained_tokens)
    return rates
