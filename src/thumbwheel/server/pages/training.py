"""The pages of training: runs with their curves, one run, and starting one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.config import build
from thumbwheel.core.errors import NotFound
from thumbwheel.core.figures import size
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.build import datasets
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import JobState
from thumbwheel.models import versions
from thumbwheel.models.gguf.header import is_gguf
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.report.report import changed
from thumbwheel.server.pages.operations import offered_fields
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.base_picker import AvailableBase, available_bases, proposed_base
from thumbwheel.training.data_plan import data_plan
from thumbwheel.training.live import RunProgress, evaluation_plan, progress_of
from thumbwheel.training.run_notes import NO_NOTE, files_of, needed_by, notes
from thumbwheel.training.train import run_of, runs
from thumbwheel.training.types import Run, RunNote, RunState, TrainConfig

METRICS = {
    "loss": "Loss",
    "rewards/margins": "Margin of good over bad",
    "rewards/accuracies": "Good above bad",
    "reward": "Reward",
    "kl": "KL from the base",
    "nll/good": "Loss per token on good answers",
}
"""Metric -> its title, in the order in which they are drawn where a run has them."""
OF_ONE_RUN = {"learning_rate": "Learning rate", "grad_norm": "Norm of the gradient"}
"""The same, on the page of a run alone."""
CHECKED = 8
"""Of the newest runs, how many are drawn before somebody chooses."""
TONES = {
    "running": "wait",
    "finished": "good",
    "nothing_learned": "",
    "stopped": "wait",
    "failed": "bad",
}
MAIN = (
    "preset",
    "learning_rate",
    "num_train_epochs",
    "min_steps",
    "max_steps",
    "beta",
    "lora_r",
    "max_length",
    "seed",
)
"""Settings of a method that most people look at."""


@dataclass(frozen=True)
class RunRow:
    """A run in a list, with the version that it gave."""

    run: Run
    version: ModelVersion | None
    running: RunningTraining | None
    """Where it is, while it trains."""
    note: RunNote

    @property
    def figures(self) -> Mapping[str, Any]:
        """What the run came to."""
        return self.run.metrics or {}

    @property
    def best(self) -> Mapping[str, Any]:
        """The figures of the dev rows at the step that was kept."""
        return self.figures.get("dev_best") or {}

    @property
    def base(self) -> Mapping[str, Any]:
        """The same of the base."""
        return self.figures.get("dev_base") or {}


def load_runs(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's runs, newest first, and the versions that they produced."""
    agent = asked.agent
    rows = run_rows(asked.ws, agent, [*reversed(runs(asked.ws, agent))])
    tags: dict[str, None] = {}
    for row in rows:
        tags.update(dict.fromkeys(row.note.tags))
    tag = asked.query.get("tag")
    return {
        "rows": [row for row in rows if tag is None or tag in row.note.tags],
        "tag": tag,
        "all_tags": sorted(tags),
        "checked": CHECKED,
        "metrics": list(METRICS.items()),
        "tones": TONES,
        "may_run": asked.principal.may("run", agent.slug),
    }


def run_rows(ws: Workspace, agent: Agent, listed: Sequence[Run]) -> list[RunRow]:
    """Return the runs as rows, each with its version and, while it trains, its progress."""
    results, note_by_run = _versions_by_run(ws, agent), notes(ws, agent)
    rows = []
    for run in listed:
        note = note_by_run.get(run.id, NO_NOTE)
        rows.append(RunRow(run, results.get(run.id), _running(ws, agent, run), note))
    return rows


def load_run(asked: PageRequest) -> Mapping[str, Any]:
    """Load one run: its curves, its settings and the version that it produced."""
    agent = asked.agent
    run = run_of(asked.ws, agent, asked.parts["run"])
    return {
        "title": f"{run.algorithm} {run.id}",
        "run": run,
        "row": run_rows(asked.ws, agent, [run])[0],
        "plan": evaluation_plan(asked.ws, run),
        "changed": changed(run.algorithm, run.config),
        "metrics": list((METRICS | OF_ONE_RUN).items()),
        "tones": TONES,
        "may_run": asked.principal.may("run", agent.slug),
        "may_edit": asked.principal.may("edit", agent.slug),
        "needed_by": needed_by(asked.ws, run),
        "files": files_of(asked.ws, run),
    }


@dataclass(frozen=True)
class RunningTraining:
    """A training that goes on."""

    progress: RunProgress
    job_id: str | None
    """None where a command trains, or a turn of the loop."""


def _running(ws: Workspace, agent: Agent, run: Run) -> RunningTraining | None:
    """Return the progress of a run; None if it has ended."""
    if run.state is not RunState.RUNNING:
        return None
    started, _ = queue.jobs(ws, states=[JobState.RUNNING], agents=[agent.slug])
    jobs = [job.id for job in started if job.notes.get("run") == run.id]
    return RunningTraining(progress_of(ws, run), jobs[0] if jobs else None)


def load_training(asked: PageRequest) -> Mapping[str, Any]:
    """Load the form that starts a training run: a method, its data and its settings. Raises
    NotFound for an unknown method."""
    ws, agent = asked.ws, asked.agent
    plan = data_plan(ws, agent.slug, ws.settings(DatasetConfig, "dataset"))
    names = ALGORITHMS.names()
    method = asked.query.get("method") or plan.recommended or names[0]
    if method not in names:
        fix = f"Known: {', '.join(names)}.{nearest(method, names)}"
        raise NotFound(f"method {method!r}", "there is none of that name", fix)
    algorithm = ALGORITHMS.get(method)
    config = ws.settings(algorithm.Config, f"train.{method}")
    bases = offered_bases(ws, available_bases())
    base = next(iter(bases), "")
    template = run_of(ws, agent, asked.query["run"]) if "run" in asked.query else None
    if template is not None:
        config = _settings_of(template, algorithm.Config)
        base = _name_of_base(ws, template.base)
    fields, more_fields = offered_fields(f"train {method}", algorithm.Config, config, MAIN)
    readiness = {name: plan.methods[name].readiness for name in plan.methods}
    return {
        "title": "Train",
        "method": method,
        "methods": names,
        "readiness": readiness,
        "recommended": plan.recommended,
        "why": plan.why,
        "template": template,
        "base": base,
        "bases": bases,
        "datasets": [
            dataset
            for dataset in reversed(datasets(ws, agent.slug))
            if dataset.shape == algorithm.shape(config)
        ],
        "fields": fields,
        "more_fields": more_fields,
    }


def _versions_by_run(ws: Workspace, agent: Agent) -> dict[str, ModelVersion]:
    by_run = {}
    for version in versions.versions(ws, agent):
        if version.run_id is not None:
            by_run[version.run_id] = version
    return by_run


def _settings_of(run: Run, cls: type[TrainConfig]) -> TrainConfig:
    """Return the settings of an earlier run, limited to the fields of this config class."""
    settings = {name: value for name, value in run.config.items() if name in cls.model_fields}
    return build(cls, settings, f"the settings of {run.id}")


def _name_of_base(ws: Workspace, base: str) -> str:
    """Return the name that a request uses for the base of an earlier run, which stores its real
    path."""
    for name in _folders_of_bases(ws):
        if str((ws.home.bases / name).resolve()) == base:
            return name
    return base


def offered_bases(ws: Workspace, available: Sequence[AvailableBase]) -> dict[str, str]:
    """Return base -> what is known of it: those of the home, then the `available` ones that are
    here, the one to propose first."""
    offered = dict.fromkeys(_base_names(ws), "of this home")
    bases = [base for base in available if base.is_here]
    proposed = proposed_base(bases)
    for base in sorted(bases, key=lambda base: base is not proposed):
        offered.setdefault(base.name, _base_words(base))
    return offered


def _base_words(base: AvailableBase) -> str:
    """Return where a base is, its size and licence, and whether it is too large here."""
    words = [str(base.origin), size(1e9 * base.size_gb)]
    if base.parameters is not None:
        words.append(f"{base.parameters / 1e6:,.0f} M parameters")
    if base.license is not None:
        words.append(base.license)
    if base.fits is False:
        words.append("large for this machine")
    return ", ".join(words)


def _base_names(ws: Workspace) -> list[str]:
    """Return the names of the bases that a request may use, besides any Hugging Face id."""
    folders = _folders_of_bases(ws)
    return [*folders, *sorted(versions.bases(ws) - set(folders))]


def _folders_of_bases(ws: Workspace) -> list[str]:
    if not ws.home.bases.is_dir():
        return []
    names = [path.name for path in ws.home.bases.iterdir() if path.is_dir() or is_gguf(path)]
    return sorted(names)
