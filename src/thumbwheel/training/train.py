"""The verbs of this stage: train a candidate, go on with a run that stopped, say beforehand what a
run would do.

Every run starts from the base, with the base as its reference. The run itself happens in a child
process (process.py); here is what surrounds it: the dataset, the base's version, the record in the
database, the candidate.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import thumbwheel
from thumbwheel.core import errors, ids, log
from thumbwheel.core.errors import (
    Conflict,
    DataError,
    InputError,
    NotFound,
    ThumbwheelError,
    TrainingError,
)
from thumbwheel.core.hardware import device, disk_free_gb, machine
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.build import build, find, load_rows
from thumbwheel.datasets.types import Dataset, DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import reward_models
from thumbwheel.models.base import locate, require_training
from thumbwheel.models.types import ModelVersion, require_untainted
from thumbwheel.models.versions import (
    adapter_folder,
    add_candidate,
    check_base,
    ensure_base,
    require_agent,
)
from thumbwheel.models.versions import version as find_version
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.rewards.label import rater_names, raters_of
from thumbwheel.training import store
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.estimate import estimate, trial
from thumbwheel.training.launch import launch
from thumbwheel.training.presets import with_preset
from thumbwheel.training.rate import with_rate
from thumbwheel.training.reward_model_record import register
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import (
    JUDGED,
    DryRun,
    Run,
    RunResult,
    RunState,
    Status,
    TrainConfig,
    TrainingSwitch,
)

SHOWN_RATERS = 3
UNNAMED = "unnamed"
"""The rater of feedback that names none."""
LOCKED = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")
"""Packages whose versions are stored with a run."""


@dataclass(frozen=True)
class Plan:
    """What a run will be, before anything is written."""

    agent: str
    agent_id: str
    algorithm: str
    config: TrainConfig
    dataset: Dataset
    rows: list[dict[str, Any]]
    base: str
    folder: Path
    fingerprint: str
    preset: str
    """What the preset set, in one line."""
    start: ModelVersion | None = None
    """The version whose adapter it starts from."""
    judged: Sequence[Mapping[str, Any]] = ()
    """Rows of the split `judged`, where the method weighs judgements."""


def train(
    ws: Workspace,
    agent: str,
    algorithm: str,
    base: str | None = None,
    *,
    dataset: str | None = None,
    options: Mapping[str, Any] | None = None,
    resume: str | None = None,
    run_id: str | None = None,
) -> RunResult:
    """Train a candidate, or a reward model, by `algorithm` over `base`, or go on with run `resume`.

    `run_id` is that of the new run, for a caller who notes it first. `dataset` is built from the
    feedback in force by default. A finished run has a candidate version. One that learned nothing
    has none; a stopped one (Ctrl-C) can be resumed. Raises the error of a failed run: TrainingError
    for one that stopped itself or died, StorageError for a full disk, DataError, ModelError,
    Conflict for a run in progress.
    """
    require_training()
    if not ws.settings(TrainingSwitch, "training").enabled:
        raise Conflict(
            "training",
            "it is switched off: training.enabled is false in the settings",
            "Switch it on, then train",
        )
    if resume is not None:
        return _resume(ws, agent, algorithm, resume, base, dataset, options)
    plan = _plan(ws, agent, algorithm, base, dataset, options)
    parent = _parent(ws, plan)
    run_id = run_id or ids.new("run")
    run = RunDir(ws.home.runs / run_id)
    run.create(_spec(ws, plan, run_id), [*plan.rows, *plan.judged])
    handle = run.lock()
    try:
        ws.db.write(lambda c: store.add(c, _record(plan, run_id)))
        log.say(plan.preset)
        log.say(
            f"run {run_id}: {algorithm} on {len(plan.rows)} rows of dataset {plan.dataset.id}; "
            f"log: {run.log}"
        )
        return _supervise(ws, agent, run, run_id, parent, handle)
    finally:
        os.close(handle)


def dry_run(
    ws: Workspace,
    agent: str,
    algorithm: str,
    base: str | None = None,
    *,
    dataset: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> DryRun:
    """What `train` would do: rows, tokens, steps, drops, and time and memory from a few real steps.
    Nothing is recorded."""
    require_training()
    plan = _plan(ws, agent, algorithm, base, dataset, options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunDir(Path(scratch))
        spec = _spec(ws, plan, "dry-run")
        spec["reference_cache"] = str(folder.path / "reference.db")
        folder.create(spec, plan.rows)
        status = trial(folder)
        if status.state is RunState.FAILED:
            raise _error(folder, "dry-run", status)
    past = [run for run in runs(ws, agent) if run.base_fingerprint == plan.fingerprint]
    estimated = estimate(
        algorithm, plan.config, plan.preset, (plan.dataset, plan.rows), status.result, past
    )
    free = disk_free_gb(ws.home.runs)
    if estimated.disk_gb > free:
        raise TrainingError(
            f"a run of {algorithm}",
            f"its checkpoints and adapter take about {estimated.disk_gb:.3g} GB, and {free:.3g} GB "
            f"are free in {ws.home.runs}",
            "Free some, or keep fewer checkpoints (save_total_limit, now "
            f"{plan.config.save_total_limit})",
        )
    return estimated


def runs(ws: Workspace, agent: str) -> list[Run]:
    """The runs of `agent`, oldest first."""
    require_agent(ws, agent)
    with ws.db.read() as connection:
        return store.by_agent(connection, agent)


def run_dir(ws: Workspace, run: Run) -> RunDir:
    """The folder of a recorded run."""
    return RunDir(ws.home.runs / run.id)


def _plan(
    ws: Workspace,
    agent: str,
    algorithm: str,
    base: str | None,
    dataset_name: str | None,
    options: Mapping[str, Any] | None,
) -> Plan:
    method = ALGORITHMS.get(algorithm)
    agent_id = require_agent(ws, agent)
    requested = ws.settings(method.Config, f"train.{algorithm}", options)
    config, preset = with_preset(requested, machine())

    # The base, and where its adapter starts.
    if base is None:
        raise InputError(
            "--base",
            "no base model was named",
            "Give a folder saved with save_pretrained, or a Hugging Face id",
        )
    device(config.device)
    name, folder = locate(base)
    check_base(ws, folder)
    fingerprint = _fingerprint(ws, folder)
    start, config = _start(ws, agent, config, fingerprint)

    # The dataset: a frozen one, or one of the feedback in force.
    shape = method.shape(config)
    if dataset_name:
        dataset = find(ws, agent, dataset_name)
        rules = DatasetConfig(**dataset.manifest.get("config", {}))
    else:
        rules = ws.settings(DatasetConfig, "dataset")
    judged = list(_judgements(ws, agent, rules)) if method.weighs_judgements(config) else []
    if not dataset_name:
        dataset = build(ws, agent, shape, rules)
    if dataset.shape != shape:
        raise DataError(
            f"dataset {dataset.id!r}",
            f"it has {dataset.shape}, and {algorithm} learns from {shape}",
            "Leave --dataset out to build one",
        )
    rows = list(_rows(ws, dataset))
    train_rows = [row for row in rows if row["split"] == "train"]
    if not train_rows:
        raise DataError(
            f"dataset {dataset.id!r}",
            "it has no training rows",
            f"See what is missing: thumbwheel dataset plan --agent {agent}",
        )

    # What follows from the rows and the base.
    config = with_rate(method.resolve_config(config, train_rows), method.rate, folder)
    if len(train_rows) < config.min_rows:
        raise DataError(
            f"dataset {dataset.id!r}",
            f"it has {len(train_rows)} training rows, and a run of {algorithm} begins with "
            f"{config.min_rows} or more",
            "Collect more feedback, or train all the same: --min-rows 1",
        )
    return Plan(
        agent,
        agent_id,
        algorithm,
        config,
        dataset,
        rows,
        name,
        folder,
        fingerprint,
        preset,
        start,
        judged,
    )


def _start(
    ws: Workspace, agent: str, config: TrainConfig, fingerprint: str
) -> tuple[ModelVersion | None, TrainConfig]:
    """(the version to start from, the settings with the rank and targets of its adapter); raises
    Conflict for one that cannot be."""
    if config.continue_from is None:
        return None, config
    start = find_version(ws, agent, config.continue_from)
    what = f"continue_from {config.continue_from!r}"
    adapter = adapter_folder(ws, start)
    if adapter is None:
        raise Conflict(
            what,
            "it is a base without an adapter",
            "Leave it out: every run starts from its base by default",
        )
    require_untainted(start.tainted, what, "Train anew from the base")
    if start.base_fingerprint != fingerprint:
        raise Conflict(
            what, f"it was trained over other weights ({start.base})", "Name that base with --base"
        )
    settings = _adapter_settings(adapter) | {"continue_from": start.name}
    return start, config.model_copy(update=settings)


def _adapter_settings(adapter: Path) -> dict[str, Any]:
    """Rank, scale and targets as the adapter's own metadata has them."""
    stored = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    if stored["peft_type"] != "LORA":
        raise Conflict(
            f"adapter {stored['peft_type']!r}",
            "it was fully fine-tuned, and only a LoRA adapter can be gone on with",
            "Leave continue_from out: every run starts from its base by default",
        )
    targets = stored["target_modules"]
    return {
        "lora_r": stored["r"],
        "lora_alpha": int(stored["lora_alpha"]),
        "use_rslora": stored["use_rslora"],
        "lora_targets": targets if isinstance(targets, str) else ",".join(targets),
    }


def _rows(ws: Workspace, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Training and dev rows; the gate's file is never opened here."""
    for split in ("train", "dev"):
        for row in load_rows(ws, dataset.id, split):
            yield asdict(row)


def _judgements(ws: Workspace, agent: str, rules: DatasetConfig) -> Iterator[dict[str, Any]]:
    """The recorded answers of the training split that somebody judged, good and bad ones, with who
    judged them."""
    try:
        labels = build(ws, agent, "labels", rules)
    except DataError:  # as where answers are of one kind only, and nothing tells their raters apart
        return
    judged = [row for row in load_rows(ws, labels.id, "train") if row.origin != "correction"]
    feedback_ids: set[str] = set().union(*(row.feedback_ids for row in judged))
    with ws.db.read() as connection:
        rater_of = raters_of(connection, feedback_ids)
    for row in judged:
        raters = {rater_of.get(feedback_id, UNNAMED) for feedback_id in row.feedback_ids}
        yield asdict(row) | {"split": JUDGED, "raters": sorted(raters)}


def _fingerprint(ws: Workspace, folder: Path) -> str:
    from thumbwheel.engine.base_check import remembered_fingerprint

    return remembered_fingerprint(folder, ws.home.cache)


def _spec(ws: Workspace, plan: Plan, run_id: str) -> dict[str, Any]:
    config = plan.config.model_dump(mode="json")
    if "reward_settings" in config:
        config["reward_settings"] = resolve_paths(ws, plan.agent, config["reward_settings"])
    return {
        "run_id": run_id,
        "agent": plan.agent,
        "algorithm": plan.algorithm,
        "base": plan.base,
        "folder": str(plan.folder),
        "config": config,
        "reference_cache": str(ws.home.cache / "reference.db"),
        "start": str(adapter_folder(ws, plan.start)) if plan.start else None,
        "reward_model": _reward_model(ws, plan.agent, plan.config.model_dump()),
        "checkers": resolve_paths(ws, plan.agent, ledger.settings(ws, plan.agent).checkers),
    }


def _reward_model(ws: Workspace, agent: str, settings: Mapping[str, Any]) -> str | None:
    """Where the reward model lies that `settings` name: one of the agent's in the cache, or a
    folder as it is."""
    named = settings.get("reward_model")
    if named is None or Path(named).expanduser().is_dir():
        return named and str(Path(named).expanduser().resolve())
    return str(reward_models.folder(ws, reward_models.find(ws, agent, named)))


def _parent(ws: Workspace, plan: Plan) -> ModelVersion | None:
    """The version that the candidate is over; what judges gives none, and its base is no version of
    the agent."""
    if ALGORITHMS.get(plan.algorithm).produces_reward_model:
        return None
    return plan.start or ensure_base(ws, plan.agent, plan.base, plan.fingerprint)


def _record(plan: Plan, run_id: str) -> dict[str, Any]:
    return {
        "id": run_id,
        "agent_id": plan.agent_id,
        "algorithm": plan.algorithm,
        "dataset_id": plan.dataset.id,
        "base": plan.base,
        "base_fingerprint": plan.fingerprint,
        "config": plan.config.model_dump(mode="json"),
        "environment": environment() | {"preset": plan.preset, "machine": asdict(machine())},
        "seed": plan.config.seed,
    }


def environment() -> dict[str, Any]:
    """What a rerun has to have in order to give the same numbers."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "thumbwheel": thumbwheel.__version__,
    }
    for package in LOCKED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _resume(
    ws: Workspace,
    agent: str,
    algorithm: str,
    run_id: str,
    base: str | None,
    dataset: str | None,
    options: Mapping[str, Any] | None,
) -> RunResult:
    recorded = runs(ws, agent)
    matches = [run for run in recorded if ids.stands_for(run_id, run.id)]
    ids.require_single(run_id, [run.id for run in matches])
    if not matches:
        names = [run.id for run in recorded]
        fix = f"Known: {', '.join(names) or 'none'}.{nearest(run_id, names)}"
        raise NotFound(f"run {run_id!r} of agent {agent!r}", "there is no such run", fix)
    run = matches[0]
    _require_same(run, algorithm, base, dataset, options)
    if run.state in (RunState.FINISHED, RunState.NOTHING_LEARNED):
        raise Conflict(f"run {run.id!r}", "it is finished", "Start a new run, without --resume")
    folder = run_dir(ws, run)
    handle = folder.lock()
    try:
        spec = folder.spec()
        check_base(ws, Path(spec.folder))
        if _fingerprint(ws, Path(spec.folder)) != run.base_fingerprint:
            raise Conflict(
                f"run {run.id!r}",
                f"the weights of its base {run.base!r} have changed since",
                "Start a new run",
            )
        parent = None
        if not ALGORITHMS.get(algorithm).produces_reward_model:
            start = spec.config.get("continue_from")
            if start:
                parent = find_version(ws, agent, start)
            else:
                parent = ensure_base(ws, agent, run.base, str(run.base_fingerprint))
            # In the cache again, should somebody have emptied it.
            adapter_folder(ws, parent)
            _reward_model(ws, agent, spec.config)
        ws.db.write(lambda connection: store.restart(connection, run.id))
        return _supervise(ws, agent, folder, run.id, parent, handle)
    finally:
        os.close(handle)


def _require_same(
    run: Run,
    algorithm: str,
    base: str | None,
    dataset: str | None,
    options: Mapping[str, Any] | None,
) -> None:
    """A resumed run is the run that was started: raise InputError for anything else that is asked
    of it."""
    if base and Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())
    asked: dict[str, Any] = {"algorithm": algorithm, "base": base, "dataset": dataset}
    stored: dict[str, Any] = {
        "algorithm": run.algorithm,
        "base": run.base,
        "dataset": run.dataset_id,
    }
    for name, value in (options or {}).items():
        asked[name] = list(value) if isinstance(value, tuple) else value
        stored[name] = run.config.get(name)
    for name, value in asked.items():
        if value is not None and value != stored[name]:
            raise InputError(
                f"{name} {value!r} for run {run.id!r}",
                f"it was started with {stored[name]!r} and resumes as it was",
                "Leave it out, or start a new run",
            )


def _supervise(
    ws: Workspace, agent: str, run: RunDir, run_id: str, parent: ModelVersion | None, handle: int
) -> RunResult:
    """Run the child to its end and record how it ended."""
    status = launch(run, handle)
    state, reason, metrics = status.state, status.reason, dict(status.result)
    ws.db.write(lambda connection: store.end(connection, run_id, state, reason, metrics))
    if state is RunState.FAILED:
        raise _error(run, run_id, status)
    _say_who_errs(ws, agent, metrics.get("rater_error_rates") or {})
    if state in (RunState.STOPPED, RunState.NOTHING_LEARNED):
        return RunResult(run_id, state, reason, metrics)
    if parent is None:
        reward_model = register(ws, agent, run_id, find_run(ws, run_id).dataset_id, run.adapter)
        return RunResult(run_id, state, reason, metrics, reward_model=reward_model.name)
    candidate = add_candidate(ws, parent, run_id, run.adapter)
    return RunResult(run_id, state, reason, metrics, candidate.id, candidate.name)


def _say_who_errs(ws: Workspace, agent: str, error_rates: Mapping[str, float]) -> None:
    """The raters who press the wrong thumb most often, by estimate. Runs keep ids only, so that an
    erased rater's name is nowhere left."""
    if not error_rates:
        return
    with ws.db.read() as connection:
        names = rater_names(connection, agent)
    least_reliable = sorted(error_rates, key=lambda rater: -error_rates[rater])[:SHOWN_RATERS]
    shown = ", ".join(
        f"{names.get(rater, rater)} {error_rates[rater]:.0%}" for rater in least_reliable
    )
    log.say(
        "estimated share of wrong thumbs (high also for raters who know better than the base): "
        f"{shown}"
    )


def _error(run: RunDir, run_id: str, status: Status) -> ThumbwheelError:
    if status.error is None:
        fix = f"Read {str(run.log)!r}; go on from its last checkpoint with --resume {run_id}"
        return TrainingError(f"run {run_id!r}", str(status.reason), fix)
    kind: type[ThumbwheelError] = getattr(errors, status.error["class"], TrainingError)
    return kind(status.error["what"], status.error["why"], status.error["fix"])


def find_run(ws: Workspace, run_id: str) -> Run:
    """The run with this id; raises NotFound."""
    with ws.db.read() as connection:
        matches = store.by_id(connection, run_id)
    ids.require_single(run_id, [run.id for run in matches])
    if not matches:
        raise NotFound(
            f"run {run_id!r}",
            "there is no such run",
            "Runs are named in the lineage: thumbwheel models show",
        )
    return matches[0]
