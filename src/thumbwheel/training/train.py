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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import errors, ids, log
from thumbwheel.core.errors import (
    Conflict,
    DataError,
    InputError,
    NotFound,
    ThumbwheelError,
    TrainingError,
)
from thumbwheel.core.hardware import disk_free_gb, machine
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.build import build, split_rows
from thumbwheel.datasets.types import Dataset, DatasetConfig
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.jobs import current
from thumbwheel.jobs.types import JobsConfig
from thumbwheel.models import reward_models
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.base import Base, name_of, require_training
from thumbwheel.models.blob_location import bucket_of
from thumbwheel.models.bucket import Bucket
from thumbwheel.models.stored_bases import keep_base
from thumbwheel.models.template_settings import TemplateSettings, template_settings
from thumbwheel.models.types import Agent, ModelVersion, require_untainted
from thumbwheel.models.versions import (
    adapter_folder,
    add_candidate,
    check_base,
    ensure_base,
    versions,
)
from thumbwheel.models.versions import version as find_version
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.rewards.label import rater_names, raters_of
from thumbwheel.sdk.version import __version__
from thumbwheel.training import store
from thumbwheel.training.activity import activity
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import settings
from thumbwheel.training.base_defaults import with_base_defaults
from thumbwheel.training.beat import beating
from thumbwheel.training.checkpoint import Checkpoints
from thumbwheel.training.estimate import estimate, trial
from thumbwheel.training.killed_runs import host_of, is_elsewhere
from thumbwheel.training.launch import launch
from thumbwheel.training.launchers import LAUNCHERS
from thumbwheel.training.placement import Placement, PlacementConfig, PlacementLostError
from thumbwheel.training.presets import with_preset
from thumbwheel.training.reward_model_record import register
from thumbwheel.training.rundir import RunDir, open_rows
from thumbwheel.training.spec_of_host import fetch_rows, reward_model_folder, spec_of_this_host
from thumbwheel.training.stored_checkpoints import StoredCheckpoints, forget_stored, restore
from thumbwheel.training.types import (
    JUDGED,
    JUDGED_SHAPE,
    DryRun,
    Run,
    RunResult,
    RunSpec,
    RunState,
    Status,
    TrainConfig,
    TrainingSwitch,
)

SHOWN_RATERS = 3
LEARNED_FROM = ("train", "dev")
"""Splits that a run reads; the gate's file is never opened here."""
UNNAMED = "unnamed"
"""The rater of feedback that names none."""
RESUMED_WITH = frozenset({"ranks"})
"""Settings that a run may resume with that it was not started with."""
LOCKED = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")
"""Packages whose versions are stored with a run."""


@dataclass(frozen=True)
class Judgements:
    """Recorded answers that tell how reliable the raters, or a reward model, are."""

    dataset: Dataset
    split: str
    """The split of the dataset that holds the answers."""
    raters: Mapping[str, Sequence[str]]
    """Row id -> who judged that answer; rows without any do not count."""


@dataclass(frozen=True)
class RunPlan:
    """What a run will be, before anything is written."""

    agent: Agent
    algorithm: str
    config: TrainConfig
    dataset: Dataset
    judgements: Judgements | None
    """Where the method asks for them."""
    base: Base
    preset: str
    """What the preset set, in one line."""
    start: ModelVersion | None = None
    """The version whose adapter it starts from."""


def train(
    ws: Workspace,
    agent: Agent,
    algorithm: str,
    base: Base,
    *,
    dataset: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
    run_id: str | None = None,
) -> RunResult:
    """Train a candidate, or a reward model, by `algorithm` over `base`.

    `run_id` is the id of the new run, for a caller who notes it first. `dataset` is built from the
    feedback in force by default. A finished run has a candidate version or a reward model. One that
    learned nothing has none; a stopped one (Ctrl-C) can be resumed. Raises the error of a failed
    run: TrainingError for one that stopped itself or died, StorageError for a full disk, DataError,
    ModelError, Conflict for a run in progress.
    """
    _require_enabled(ws)
    plan = _plan(ws, agent, algorithm, base, dataset, options)
    parent = _parent(ws, plan)
    keep_base(ws, plan.base)
    run_id = run_id or ids.new("run")
    folder = RunDir(ws.home.runs / run_id)
    spec = _spec(ws, plan, run_id)
    folder.create(spec)
    handle = folder.lock()
    try:
        record = _record(plan, run_id, spec) | {"folder": folder_id(ws.home)}
        ws.db.write(lambda connection: store.add(connection, record), of_agent(agent.id))
        log.say(plan.preset)
        n_rows = sum(plan.dataset.counts[split] for split in LEARNED_FROM)
        log.say(
            f"run {run_id}: {algorithm} on {n_rows} rows of dataset {plan.dataset.id}; "
            f"log: {folder.log}"
        )
        log.say(_from_the_base(plan.config))
        return _supervise(ws, find_run(ws, run_id), parent, handle, fence=0)
    finally:
        os.close(handle)


def _from_the_base(config: TrainConfig) -> str:
    """Return one line with the settings that follow from the base or were set."""
    replayed = ""
    if config.replay_weight:
        replayed = (
            f"; the model is held to the base on general questions, beside the rows "
            f"(replay weight {config.replay_weight:g})"
        )
    return f"learning rate {config.peak_rate:g}{replayed}"


def _require_enabled(ws: Workspace) -> None:
    """Raise MissingExtra if training is not installed, Conflict if it is disabled."""
    require_training()
    if not ws.settings(TrainingSwitch, "training").enabled:
        raise Conflict(
            "training",
            "it is switched off: training.enabled is false in the settings",
            "Switch it on, then train",
        )


def dry_run(
    ws: Workspace,
    agent: Agent,
    algorithm: str,
    base: Base,
    *,
    dataset: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
) -> DryRun:
    """Return what `train` would do: rows, tokens, steps, drops, and time and memory from a few real
    steps. Nothing is recorded. Raises TrainingError if the run does not fit on the disk."""
    require_training()
    plan = _plan(ws, agent, algorithm, base, dataset, options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunDir(Path(scratch))
        spec = _spec(ws, plan, "dry-run")
        spec = replace(spec, reference_cache=str(folder.path / "reference.db"))
        folder.create(spec)
        status = trial(folder)
        if status.state is RunState.FAILED:
            raise run_error(folder, "dry-run", status)
    past = [run for run in runs(ws, agent) if run.base_fingerprint == base.fingerprint]
    rows = [split_rows(ws, plan.dataset, split) for split in LEARNED_FROM]
    estimated = estimate(
        algorithm, plan.config, plan.preset, plan.dataset, rows, status.result, past
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


def runs(ws: Workspace, agent: Agent) -> list[Run]:
    """Return the runs of `agent`, oldest first."""
    with ws.db.read() as connection:
        return store.by_agent(connection, agent.id)


def run_dir(ws: Workspace, run: Run) -> RunDir:
    """Return the folder of a recorded run."""
    return RunDir(ws.home.runs / run.id)


def activity_of(ws: Workspace, run: Run) -> str | None:
    """Return what a run does now, in words, such as `step 12 of 60`; None if it has ended or has
    said nothing yet."""
    if run.has_ended:
        return None
    folder = run_dir(ws, run)
    current = activity(folder)
    if current is not None:
        return current.in_words()
    status, step = folder.status(), folder.last_step()
    planned = (status.result if status else {}).get("planned_steps")
    return f"step {step} of {planned}" if planned else None


def metrics_of(ws: Workspace, run: Run) -> list[dict[str, Any]]:
    """Return the metrics of a run so far: a line for each step and each evaluation."""
    return run_dir(ws, run).read_metrics()


def metrics_after(
    ws: Workspace, run: Run, number: int, limit: int
) -> list[tuple[int, dict[str, Any]]]:
    """Return up to `limit` pairs (number, line) of the metrics of a run after the line `number`;
    the first line is 1."""
    lines = run_dir(ws, run).read_metrics(skip=number)[:limit]
    return list(enumerate(lines, number + 1))


def _plan(
    ws: Workspace,
    agent: Agent,
    algorithm: str,
    base: Base,
    dataset: Dataset | None,
    options: Mapping[str, Any] | None,
) -> RunPlan:
    method = ALGORITHMS.get(algorithm)
    requested = ws.settings(method.Config, f"train.{algorithm}", options)
    config, preset = with_preset(requested, machine())
    placement = _placement(ws)
    if not LAUNCHERS.get(placement.settings.launcher).computes_here:
        # whoever computes it knows its device
        config = config.model_copy(update={"device": requested.device})

    # The base, and where its adapter starts.
    _require_place(ws, config)
    check_base(ws, base.folder)
    start, config = _start(ws, agent, config, base)

    # The dataset: a frozen one, or one of the feedback in force.
    shape = method.shape(config)
    if dataset:
        rules = DatasetConfig(**dataset.manifest.get("config", {}))
    else:
        rules = ws.settings(DatasetConfig, "dataset")
    judged_split = method.judged_split(config)
    judgements = _judgements(ws, agent.slug, rules, judged_split) if judged_split else None
    if not dataset:
        dataset = build(ws, agent.slug, shape, rules)
    if dataset.shape != shape:
        raise DataError(
            f"dataset {dataset.id!r}",
            f"it has {dataset.shape}, and {algorithm} learns from {shape}",
            "Leave --dataset out to build one",
        )
    train_rows = split_rows(ws, dataset, "train")
    if not len(train_rows):
        raise DataError(
            f"dataset {dataset.id!r}",
            "it has no training rows",
            f"See what is missing: thumbwheel dataset plan --agent {agent.slug}",
        )

    # What follows from the rows and the base.
    config = with_base_defaults(method.resolve_config(config, train_rows), method, base.folder)
    if len(train_rows) < config.min_rows:
        raise DataError(
            f"dataset {dataset.id!r}",
            f"it has {len(train_rows)} training rows, and a run of {algorithm} begins with "
            f"{config.min_rows} or more",
            "Collect more feedback, or train anyway: --min-rows 1",
        )
    return RunPlan(agent, algorithm, config, dataset, judgements, base, preset, start)


def _require_place(ws: Workspace, config: TrainConfig) -> None:
    """Raise ConfigError or MissingExtra if the ranks of a run cannot be placed."""
    placement = _placement(ws)
    launcher = LAUNCHERS.get(placement.settings.launcher)
    launcher.require(config.ranks, config.device, placement)


def _placement(ws: Workspace, fence: int = 0) -> Placement:
    lease = ws.settings(JobsConfig, "jobs").lease_seconds
    return Placement(ws.settings(PlacementConfig, "placement"), fence, lease)


def _start(
    ws: Workspace, agent: Agent, config: TrainConfig, base: Base
) -> tuple[ModelVersion | None, TrainConfig]:
    """Return (the version to start from, or None; the settings with the rank and targets of its
    adapter). Raises Conflict for a version that cannot be continued."""
    if config.continue_from is None:
        return None, config
    start = find_version(ws, agent.slug, config.continue_from)
    what = f"continue_from {config.continue_from!r}"
    adapter = adapter_folder(ws, start)
    if adapter is None:
        raise Conflict(
            what,
            "it is a base without an adapter",
            "Leave it out: every run starts from its base by default",
        )
    require_untainted(start.tainted, what, "Train anew from the base")
    if start.base_fingerprint != base.fingerprint:
        raise Conflict(
            what, f"it was trained over other weights ({start.base})", "Name that base with --base"
        )
    settings = _adapter_settings(adapter) | {"continue_from": start.name}
    return start, config.model_copy(update=settings)


def _adapter_settings(adapter: Path) -> dict[str, Any]:
    """Return rank, scale and targets from the adapter's own metadata. Raises Conflict if it is not
    LoRA."""
    stored = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    if stored["peft_type"] != "LORA":
        raise Conflict(
            f"adapter {stored['peft_type']!r}",
            "it was fully fine-tuned, and only a LoRA adapter can be continued",
            "Leave continue_from out: every run starts from its base by default",
        )
    targets = stored["target_modules"]
    return {
        "lora_r": stored["r"],
        "lora_alpha": int(stored["lora_alpha"]),
        "use_rslora": stored["use_rslora"],
        "lora_targets": targets if isinstance(targets, str) else ",".join(targets),
    }


def _judgements(ws: Workspace, agent: str, rules: DatasetConfig, split: str) -> Judgements | None:
    """Return the recorded answers of `split` that somebody judged, good and bad, and who judged
    them, or None if the dataset cannot be built, as with answers of one kind only."""
    try:
        labels = build(ws, agent, JUDGED_SHAPE, rules)
    except DataError:  # as where answers are of one kind only
        return None
    feedback_of = {}
    for row in split_rows(ws, labels, split):
        if row["origin"] != "correction":
            feedback_of[row["row_id"]] = row["feedback_ids"]
    feedback_ids: set[str] = set().union(*feedback_of.values())
    with ws.db.read() as connection:
        rater_of = raters_of(connection, feedback_ids)
    raters = {}
    for row_id, ids_of_row in feedback_of.items():
        raters[row_id] = sorted({rater_of.get(feedback, UNNAMED) for feedback in ids_of_row})
    return Judgements(labels, split, raters)


def _spec(ws: Workspace, plan: RunPlan, run_id: str) -> RunSpec:
    agent, base = plan.agent.slug, plan.base
    config = plan.config.model_dump(mode="json")
    if "reward_settings" in config:
        config["reward_settings"] = resolve_paths(ws, agent, config["reward_settings"])
    files = {split: plan.dataset.manifest["files"][split] for split in LEARNED_FROM}
    if plan.judgements:
        judged = plan.judgements
        files[JUDGED] = judged.dataset.manifest["files"][judged.split]
    return RunSpec(
        run_id=run_id,
        agent=agent,
        algorithm=plan.algorithm,
        base=base.name,
        folder=str(base.folder),
        base_fingerprint=base.fingerprint,
        config=config,
        blobs=str(Artifacts.of(ws).files),
        shape=plan.dataset.shape,
        files=files,
        reference_cache=str(ws.home.cache / "reference.db"),
        reward_model=reward_model_folder(ws, agent, plan.config.model_dump()),
        start=str(adapter_folder(ws, plan.start)) if plan.start else None,
        checkers=resolve_paths(ws, agent, ledger.settings(ws, agent).checkers),
        raters=plan.judgements.raters if plan.judgements else {},
        judged_dataset=plan.judgements.dataset.id if plan.judgements else None,
        template=_template(ws, agent, plan.dataset).model_dump(mode="json"),
    )


def _template(ws: Workspace, agent: str, dataset: Dataset) -> TemplateSettings:
    """Return the settings of the chat template with a day, so that a dataset gives the same tokens
    whenever it is trained on."""
    settings = template_settings(ws, agent)
    day = settings.day or dataset.recorded_at.date()
    return settings.model_copy(update={"day": day})


def _parent(ws: Workspace, plan: RunPlan) -> ModelVersion | None:
    """Return the version that the candidate is trained over, or None for a method that produces a
    reward model, whose base is no version of the agent."""
    if ALGORITHMS.get(plan.algorithm).produces_reward_model:
        return None
    base = plan.base
    return plan.start or ensure_base(ws, plan.agent.slug, base.name, base.fingerprint)


def _record(plan: RunPlan, run_id: str, spec: RunSpec) -> dict[str, Any]:
    judge = spec.reward_model
    return {
        "id": run_id,
        "agent_id": plan.agent.id,
        "algorithm": plan.algorithm,
        "dataset_id": plan.dataset.id,
        "base": plan.base.name,
        "base_fingerprint": plan.base.fingerprint,
        "config": plan.config.model_dump(mode="json"),
        "environment": environment() | {"preset": plan.preset, "machine": asdict(machine())},
        "seed": plan.config.seed,
        "learned_from": {
            "judged_dataset": spec.judged_dataset,
            # the folder of a reward model has its id as its name
            "reward_model": Path(judge).name if judge else None,
        },
    }


def environment() -> dict[str, Any]:
    """Return the platform and package versions that a rerun needs to give the same numbers."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "thumbwheel": __version__,
    }
    for package in LOCKED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def run_of(ws: Workspace, agent: Agent, run_id: str) -> Run:
    """Return the run of `agent` with this id. Raises NotFound with the ids that exist."""
    recorded = runs(ws, agent)
    matches = [run for run in recorded if ids.stands_for(run_id, run.id)]
    ids.require_single(run_id, [run.id for run in matches])
    if not matches:
        names = [run.id for run in recorded]
        fix = f"Known: {', '.join(names) or 'none'}.{nearest(run_id, names)}"
        raise NotFound(f"run {run_id!r} of agent {agent.slug!r}", "there is no such run", fix)
    return matches[0]


def resume(ws: Workspace, run: Run, options: Mapping[str, Any] | None = None) -> RunResult:
    """Resume a run that was stopped or failed, from its newest checkpoint, with those of `options`
    that change no result (RESUMED_WITH).

    Returns and raises as `train` does, and Conflict for a run that is finished, tainted or in
    progress.
    """
    _require_enabled(ws)
    if run.state in (RunState.FINISHED, RunState.NOTHING_LEARNED):
        raise Conflict(f"run {run.id!r}", "it is finished", "Start a new run, without --resume")
    is_tainted = bool((run.metrics or {}).get("tainted"))
    require_untainted(is_tainted, f"run {run.id!r}", "Start a new run, without --resume")
    return _go_on(ws, run, options)


def _go_on(ws: Workspace, run: Run, options: Mapping[str, Any] | None = None) -> RunResult:
    """Go on with a run from its newest checkpoint: the one in its folder, or in the bucket if the
    run was begun on another host."""
    from thumbwheel.engine.base_check import remembered_fingerprint

    folder = run_dir(ws, run)
    bucket = _bucket_to_resume_from(ws, run) if is_elsewhere(ws, run) else None
    if bucket is not None:
        folder.path.mkdir(parents=True, exist_ok=True)
    elif not folder.path.is_dir():
        raise Conflict(f"run {run.id!r}", "its folder is gone", "Start a new run, without --resume")
    handle = folder.lock()
    try:
        if bucket is not None:
            restore(ws, bucket, run)
            folder.create(spec_of_this_host(ws, run, folder.spec()))
        asked = {} if options is None else options
        changed = {name: value for name, value in asked.items() if name in RESUMED_WITH}
        spec = folder.spec()
        spec = replace(spec, config={**spec.config, **changed})
        config = settings(spec.algorithm, spec.config)
        _require_place(ws, config)
        if bucket_of(ws) is not None:
            fetch_rows(ws, spec)
        open_rows(spec)
        check_base(ws, Path(spec.folder))
        if remembered_fingerprint(Path(spec.folder), ws.home.cache) != run.base_fingerprint:
            raise Conflict(
                f"run {run.id!r}",
                f"the weights of its base {run.base!r} have changed since",
                "Start a new run",
            )
        parent = _parent_of(ws, run)
        if parent is not None:
            # In the cache again, should somebody have emptied it.
            adapter_folder(ws, parent)
            reward_model_folder(ws, run.agent, spec.config)
        folder.create(spec)
        fence = ws.db.write(
            lambda connection: store.restart(connection, run.id, folder_id(ws.home)),
            of_agent(Agent.named(run.agent).id),
        )
        return _supervise(ws, run, parent, handle, fence)
    finally:
        os.close(handle)


def _bucket_to_resume_from(ws: Workspace, run: Run) -> Bucket:
    """Return the bucket with the checkpoints of a run that was begun on another host.

    Raises Conflict if blobs are no objects of a bucket, and if that host may still train the run:
    only the job that began it, which has taken over from there, knows better.
    """
    bucket = bucket_of(ws)
    if bucket is None:
        raise Conflict(
            f"run {run.id!r}",
            f"its checkpoints are in the folder of {host_of(ws, run)}",
            "Go on with it there, or start a new run, without --resume; with blobs in a bucket "
            "every host could go on with it",
        )
    if run.state is RunState.RUNNING and run.id not in current.notes().values():
        raise Conflict(
            f"run {run.id!r}",
            "another host trains it, or died while it did",
            "Wait for it; the job that trains it goes on by itself on another host",
        )
    return bucket


def _parent_of(ws: Workspace, run: Run) -> ModelVersion | None:
    """Return the parent as `_parent` does, for a run that was begun."""
    if ALGORITHMS.get(run.algorithm).produces_reward_model:
        return None
    if start := run.config.get("continue_from"):
        return find_version(ws, run.agent, start)
    return ensure_base(ws, run.agent, run.base, str(run.base_fingerprint))


def result_of(ws: Workspace, run: Run) -> RunResult:
    """Return the result of a finished run; if the run was killed before its version was recorded,
    record it now. The adapter of a run of another host is made again, from the last checkpoint."""
    if run.state is RunState.FINISHED and is_elsewhere(ws, run) and not _is_recorded(ws, run):
        return _go_on(ws, run)
    return _result(ws, run, _parent_of(ws, run), run.state, run.reason, run.metrics or {})


def _is_recorded(ws: Workspace, run: Run) -> bool:
    """Return whether what a finished run made is recorded: a version or a reward model."""
    agent = Agent.named(run.agent)
    made_by = [version.run_id for version in versions(ws, agent)]
    made_by += [record.run_id for record in reward_models.reward_models(ws, run.agent)]
    return run.id in made_by


def require_same(
    run: Run,
    algorithm: str,
    base: str | None = None,
    dataset: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Raise InputError for any setting that differs from those with which the resumed run was
    started."""
    base = name_of(base) if base else None
    dataset_id = dataset.id if dataset else None
    asked: dict[str, Any] = {"algorithm": algorithm, "base": base, "dataset": dataset_id}
    stored: dict[str, Any] = {
        "algorithm": run.algorithm,
        "base": run.base,
        "dataset": run.dataset_id,
    }
    for name, value in (options or {}).items():
        if name in RESUMED_WITH:
            continue
        asked[name] = list(value) if isinstance(value, tuple) else value
        stored[name] = run.config.get(name)
    for name, value in asked.items():
        if value is not None and value != stored[name]:
            raise InputError(
                f"{name} {value!r} for run {run.id!r}",
                f"it was started with {stored[name]!r}, and resumes with the same",
                "Leave it out, or start a new run",
            )


def _supervise(
    ws: Workspace, run: Run, parent: ModelVersion | None, handle: int, fence: int
) -> RunResult:
    """Run the child to its end, record how it ended and return the result. Where blobs are in a
    bucket, its checkpoints go there too.

    Raises the error of a failed run, and Fenced if another process took the run over.
    """
    folder = run_dir(ws, run)
    placement = _placement(ws, fence)
    crashes = ws.settings(JobsConfig, "jobs").crashes
    while True:
        step = _newest_step(folder)
        try:
            status = _attempt(ws, run, handle, placement)
            break
        except PlacementLostError as loss:
            # it counts how often nothing was gained
            losses = 1 if _newest_step(folder) > step else placement.losses + 1
            if losses >= crashes:
                why = f"it lost its place {losses} times in a row: {loss}"
                status = Status(RunState.FAILED, folder.last_step(), why)
                break
            log.say(f"run {run.id} lost its place and goes on from its last checkpoint: {loss}")
        # whoever still computes it for this process has no fence any more
        fence = _renew_fence(ws, run, fence)
        placement = replace(placement, fence=fence, losses=losses)
    state, reason, metrics = status.state, status.reason, dict(status.result)

    def end(connection: sa.Connection) -> None:
        store.require_fence(connection, run.id, fence)
        store.end(connection, run.id, state, reason, metrics)

    ws.db.write(end, of_agent(Agent.named(run.agent).id))
    if state is RunState.FAILED:
        raise run_error(folder, run.id, status)
    _say_who_errs(ws, run.agent, metrics.get("rater_error_rates") or {})
    return _result(ws, run, parent, state, reason, metrics)


def _renew_fence(ws: Workspace, run: Run, fence: int) -> int:
    """Return a new fence of a run that has this one. Raises Fenced."""

    def work(connection: sa.Connection) -> int:
        store.require_fence(connection, run.id, fence)
        return store.restart(connection, run.id, folder_id(ws.home))

    return ws.db.write(work, of_agent(Agent.named(run.agent).id))


def _attempt(ws: Workspace, run: Run, handle: int, placement: Placement) -> Status:
    """Launch the run once and return how it ended. Raises PlacementLostError."""
    bucket = bucket_of(ws)
    uploads = StoredCheckpoints(ws, bucket, run.id, placement.fence) if bucket else nullcontext()
    with beating(ws, run.id), uploads:
        return launch(run_dir(ws, run), handle, placement)


def _newest_step(folder: RunDir) -> int:
    """Return the step of the newest checkpoint, 0 if there is none."""
    return max(Checkpoints(folder.checkpoints, 1).steps(), default=0)


def _result(
    ws: Workspace,
    run: Run,
    parent: ModelVersion | None,
    state: RunState,
    reason: str | None,
    metrics: Mapping[str, Any],
) -> RunResult:
    """Return the result of a run; record the version or the reward model of a finished one."""
    result = RunResult(run.id, state, reason, metrics)
    adapter = run_dir(ws, run).adapter
    if state is RunState.FINISHED and parent is None:
        reward_model = register(ws, run, adapter)
        result = replace(result, reward_model=reward_model.name)
    elif state is RunState.FINISHED and parent is not None:
        candidate = add_candidate(ws, parent, run.id, adapter)
        result = replace(result, version_id=candidate.id, version=candidate.name)
    if state in (RunState.FINISHED, RunState.NOTHING_LEARNED):
        forget_stored(ws, bucket_of(ws), run.id)
    return result


def _say_who_errs(ws: Workspace, agent: str, error_rates: Mapping[str, float]) -> None:
    """Log the raters who press the wrong thumb most often, by estimate. Runs store rater ids only,
    so an erased rater's name does not remain in them."""
    if not error_rates:
        return
    with ws.db.read() as connection:
        names = rater_names(connection, Agent.named(agent))
    least_reliable = sorted(error_rates, key=lambda rater: -error_rates[rater])[:SHOWN_RATERS]
    shown = ", ".join(
        f"{names.get(rater, rater)} {error_rates[rater]:.0%}" for rater in least_reliable
    )
    log.say(
        "estimated share of wrong thumbs (high also for raters who know better than the base): "
        f"{shown}"
    )


def run_error(run: RunDir, run_id: str, status: Status) -> ThumbwheelError:
    """Return the error to raise for a run that failed."""
    if status.error is None:
        fix = f"Read {str(run.log)!r}; go on from its last checkpoint with --resume {run_id}"
        return TrainingError(f"run {run_id!r}", str(status.reason), fix)
    kind: type[ThumbwheelError] = getattr(errors, status.error["class"], TrainingError)
    return kind(status.error["what"], status.error["why"], status.error["fix"])


def find_run(ws: Workspace, run_id: str) -> Run:
    """Return the run with this id. Raises NotFound."""
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
