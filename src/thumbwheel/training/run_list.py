"""Recorded runs as people list and compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import versions
from thumbwheel.training.run_notes import NO_NOTE, notes
from thumbwheel.training.train import activity_of, run_of, runs
from thumbwheel.training.types import ComparedValues, ListedRun, Run, RunComparison

FEWEST, MOST = 2, 8
"""Runs that can be compared; each has a hue of its own on the page."""
SECONDS = "seconds"
"""The result that people read as a duration."""


def listed_runs(ws: Workspace, agent: Agent) -> list[ListedRun]:
    """Return the runs of an agent, oldest first, with what each gave or does now."""
    return _listed(ws, agent, runs(ws, agent))


def compare_runs(ws: Workspace, agent: Agent, names: Sequence[str]) -> RunComparison:
    """Compare runs of an agent: what they came to, and their settings. Raises InputError for too
    few or too many, NotFound for an unknown one."""
    recorded = {run.id: run for run in (run_of(ws, agent, name) for name in names)}
    if not FEWEST <= len(recorded) <= MOST:
        raise InputError(
            f"{len(recorded)} different run{'' if len(recorded) == 1 else 's'}",
            f"{FEWEST} to {MOST} can be compared",
            f"Name some: thumbwheel run list --agent {agent.slug}",
        )
    compared = _listed(ws, agent, [*recorded.values()])
    settings = _settings(compared)
    return RunComparison(
        runs=compared,
        results=[
            ComparedValues(name, [result(run) for run in compared])
            for name, result in RESULTS.items()
        ],
        settings=[line for line in settings if line.differs],
        same=[line for line in settings if not line.differs],
    )


def _listed(ws: Workspace, agent: Agent, recorded: Sequence[Run]) -> list[ListedRun]:
    version_of = {version.run_id: version.name for version in versions(ws, agent)}
    note_by_run = notes(ws, agent)
    listed = []
    for run in recorded:
        note = note_by_run.get(run.id, NO_NOTE)
        listed.append(
            ListedRun(
                **vars(run),
                version=version_of.get(run.id),
                activity=activity_of(ws, run),
                note=note.text,
                tags=list(note.tags),
            )
        )
    return listed


def _settings(compared: Sequence[Run]) -> list[ComparedValues]:
    """Return every setting of the runs, in the order of the first run that has it."""
    names = dict.fromkeys(name for run in compared for name in run.config)
    lines = [
        ComparedValues("method", [run.algorithm for run in compared]),
        ComparedValues("base", [run.base for run in compared]),
        ComparedValues("dataset", [run.dataset_id for run in compared]),
    ]
    return [*lines, *(_setting(name, compared) for name in names)]


def _setting(name: str, compared: Sequence[Run]) -> ComparedValues:
    return ComparedValues(name, [run.config.get(name) for run in compared])


def _figure(name: str) -> Callable[[ListedRun], Any]:
    """Return a function that reads a figure of the end of a run."""
    return lambda run: (run.metrics or {}).get(name)


def _dev_figure(point: str, name: str) -> Callable[[ListedRun], Any]:
    """Return a function that reads a figure of the dev rows, at a point of the run."""
    return lambda run: ((run.metrics or {}).get(point) or {}).get(name)


RESULTS: Mapping[str, Callable[[ListedRun], Any]] = {
    "dev loss of the base": _dev_figure("dev_base", "eval_loss"),
    "dev loss of the best step": _dev_figure("dev_best", "eval_loss"),
    "loss per token on good answers": _dev_figure("dev_best", "eval_nll/good"),
    "margin on dev rows": _dev_figure("dev_best", "eval_rewards/margins"),
    "steps": _figure("steps"),
    "best step": _figure("best_step"),
    SECONDS: _figure("seconds"),
    "peak memory in GB": _figure("peak_memory_gb"),
    "version": lambda run: run.version,
}
"""Name -> how the result is read from a run."""
