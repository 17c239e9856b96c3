"""Training a recorded run again, and comparing what comes out with what came out then.

The second training has the same rows, settings, seed and base, in a folder of its own; nothing of
it is recorded, and it makes no version. On the same machine with the same packages the adapter is
the same, bit by bit. Elsewhere sums are rounded in another order, and small differences grow with
each step: then both curves and both adapters have to lie within a tolerance.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, StorageError, ThumbwheelError
from thumbwheel.core.hardware import device, machine
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import adapter_folder, version, versions
from thumbwheel.training import store
from thumbwheel.training.launch import launch
from thumbwheel.training.placement import require_ranks
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import environment, run_dir, run_error
from thumbwheel.training.types import (
    EnvironmentChange,
    Reproduction,
    Run,
    RunSpec,
    RunState,
    Sameness,
)

WEIGHTS = "adapter_model.safetensors"
TOLERANCE = 0.05
"""Largest relative distance of two adapters, or of two losses at one step, that counts as the same
result on another machine."""
HARDWARE = ("cpu", "cores", "threads", "avx2", "avx512", "bf16", "gpus")
"""Facts about a machine on which rounding depends."""
PASSING = frozenset({"preset", "machine", "platform"})
"""Entries of a recorded environment that are compared elsewhere, or change nothing."""


def reproduce(ws: Workspace, run: Run, tolerance: float = TOLERANCE) -> Reproduction:
    """Train `run` again and compare. Raises Conflict for a run that did not end, or if rows, base
    or settings are gone, naming everything that is missing."""
    if run.state not in (RunState.FINISHED, RunState.NOTHING_LEARNED):
        raise Conflict(
            f"run {run.id!r}",
            f"it is {run.state}, so there is no result to compare with",
            "Finish it first (train METHOD --resume), or name a finished run",
        )
    spec = _spec(ws, run)
    require_ranks(spec.config.get("ranks", 1), device(spec.config.get("device", "auto")))
    _require_present(ws, run, spec)
    differences = _differences(ws, run)
    for difference in differences:
        log.say(f"note: {difference.name} was {difference.then} and is {difference.now}")

    with tempfile.TemporaryDirectory(prefix="thumbwheel-again-") as scratch:
        again = RunDir(Path(scratch) / run.id)
        again.create(spec)
        handle = again.lock()
        try:
            status = launch(again, handle)
        finally:
            os.close(handle)
        if status.state is RunState.STOPPED:
            raise KeyboardInterrupt
        if status.state is RunState.FAILED:
            raise run_error(again, run.id, status)
        result = _compare(ws, run, again, status.state, tolerance)
    budget_then = (run.metrics or {}).get("token_budget")
    budget_now = status.result.get("token_budget")
    if budget_then != budget_now:
        differences.append(EnvironmentChange("tokens of a batch", budget_then, budget_now))
    return replace(result, differences=differences)


def _spec(ws: Workspace, run: Run) -> RunSpec:
    """Return the spec of the run, with the paths of this home and this base."""
    spec = run_dir(ws, run).spec()
    base = find_base(run.base, ws.home.cache)
    return replace(
        spec,
        folder=str(base.folder),
        blobs=str(Artifacts.of(ws).files),
        reference_cache=str(ws.home.cache / "reference.db"),
    )


def _require_present(ws: Workspace, run: Run, spec: RunSpec) -> None:
    """Raise Conflict if the run cannot be repeated, naming everything that is missing."""
    missing = []
    blobs = Artifacts.of(ws)
    for split, sha256 in spec.files.items():
        try:
            blobs.path(sha256)
        except StorageError as error:
            missing.append(f"the rows of split {split!r} ({error.why})")
    base = find_base(run.base, ws.home.cache)
    if base.fingerprint != run.base_fingerprint:
        missing.append(f"the weights of its base {run.base!r}, which have changed since")
    if spec.reward_model and not Path(spec.reward_model).is_dir():
        missing.append(f"its reward model {spec.reward_model!r}")
    start = spec.config.get("continue_from")
    if start is not None:
        try:  # in the cache again, should somebody have emptied it
            adapter_folder(ws, version(ws, run.agent, start))
        except ThumbwheelError as error:
            missing.append(f"the adapter of {start!r} that it started from ({error.why})")
    if (run.metrics or {}).get("tainted"):
        missing.append("data of a subject who was erased since")
    if missing:
        raise Conflict(
            f"run {run.id!r}",
            f"it cannot be repeated; missing: {'; '.join(missing)}",
            "Restore what is missing from a backup, or train a new run",
        )


def _differences(ws: Workspace, run: Run) -> list[EnvironmentChange]:
    """Return the differences between the packages and the machine of the run and those present
    now."""
    with ws.db.read() as connection:
        recorded = store.environment_of(connection, run.id)
    present = environment()
    machine_then = recorded.get("machine") or {}
    machine_now = json.loads(json.dumps(asdict(machine())))  # as it was recorded: lists, no tuples
    pairs = [
        (name, value, present.get(name))
        for name, value in sorted(recorded.items())
        if name not in PASSING
    ]
    pairs += [(name, machine_then.get(name), machine_now[name]) for name in HARDWARE]
    return [EnvironmentChange(name, then, now) for name, then, now in pairs if then != now]


def _compare(
    ws: Workspace, run: Run, again: RunDir, state: RunState, tolerance: float
) -> Reproduction:
    reasons = []
    if state is not run.state:
        reasons.append(f"it ended as {state}, and as {run.state} then")
    loss_distance = _loss_distance(run_dir(ws, run).read_metrics(), again.read_metrics())
    weights_distance, equal_bytes = None, state is run.state
    original = _original_weights(ws, run)
    if original is not None and again.adapter.is_dir():
        weights_distance = adapter_distance(original, again.adapter / WEIGHTS)
        equal_bytes = ids.file_hash(original) == ids.file_hash(again.adapter / WEIGHTS)
    for noun, distance in (("adapters", weights_distance), ("losses", loss_distance)):
        if distance is not None and distance > tolerance:
            reasons.append(f"the {noun} differ by {distance:.2g}, more than {tolerance:g}")
    sameness = Sameness.WITHIN_TOLERANCE
    if reasons:
        sameness = Sameness.DIFFERENT
    elif equal_bytes and not loss_distance:
        sameness = Sameness.BITWISE
    return Reproduction(
        run.id,
        sameness,
        [],
        weights_distance,
        loss_distance,
        tolerance,
        run.state,
        state,
        reasons,
    )


def _original_weights(ws: Workspace, run: Run) -> Path | None:
    """Return the path of the weights that the run produced: its version's, else those in its
    folder. None if they are gone."""
    for candidate in versions(ws, Agent.named(run.agent)):
        if candidate.run_id == run.id:
            folder = adapter_folder(ws, candidate)
            return folder / WEIGHTS if folder else None
    path = run_dir(ws, run).adapter / WEIGHTS
    return path if path.is_file() else None


def adapter_distance(first: Path, second: Path) -> float:
    """Return the norm of the difference of two adapters over the norm of the first; infinite if
    names or shapes of their tensors differ."""
    from safetensors.numpy import load_file

    tensors, others = load_file(first), load_file(second)
    if {name: tensor.shape for name, tensor in tensors.items()} != {
        name: tensor.shape for name, tensor in others.items()
    }:
        return float("inf")
    difference = norm = 0.0
    for name, tensor in tensors.items():
        wide = tensor.astype("float64")
        difference += float(((wide - others[name].astype("float64")) ** 2).sum())
        norm += float((wide**2).sum())
    return float((difference / norm) ** 0.5) if norm else float(difference > 0)


def _loss_distance(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> float | None:
    """Return the largest relative difference of the training losses at the same step, or None if
    they share no step."""
    losses_then = _losses(then)
    losses_now = _losses(now)
    distances = []
    for step in losses_then.keys() & losses_now.keys():
        scale = max(abs(losses_then[step]), 1e-6)
        distances.append(abs(losses_then[step] - losses_now[step]) / scale)
    return max(distances, default=None)


def _losses(lines: list[dict[str, Any]]) -> Mapping[int, float]:
    return {line["step"]: line["loss"] for line in lines if line.get("loss") is not None}
