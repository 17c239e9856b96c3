"""Exports in a tree by agent and version: `AGENT/VERSION/policy`, and beside it what the training came to, as training_results.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from thumbwheel.datasets.build import load_rows
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.rows import dataset_of
from thumbwheel.export import package
from thumbwheel.export.types import Export
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.training import rundir

RESULTS = "training_results.json"


def export(ws: Workspace, agent: str, version: str, format: str = "merged", root: Path | None = None, *more: Any) -> Export:
    """As package.export, into `AGENT/VERSION/policy` below `root` (default ./models), with the results of the run beside it."""
    one = versions.version(ws, agent, version)
    done = package.export(ws, agent, one.name, format, (root or Path("models")) / agent / one.name / "policy", *more)
    results = done.path.with_name(RESULTS)
    try:
        rundir.replace(results, json.dumps(_results(ws, one, done.path), indent=2) + "\n")
    except OSError as error:
        raise rundir.unwritable(results, error) from error
    return done


def _results(ws: Workspace, one: ModelVersion, policy: Path) -> dict[str, Any]:
    """What is known of the run: a figure that its method does not have is null, a history empty."""
    lines = rundir.RunDir(ws.home.runs / one.run_id).read_metrics() if one.run_id else []
    rewards = [line for line in lines if line.get("reward") is not None]
    final: Mapping[str, Any] = rewards[-1] if rewards else {}
    return {
        "model_path": str(policy),
        "reward_model_path": None,
        "feedback_count": _feedback(ws, one),
        "final_reward_mean": final.get("reward"),
        "final_reward_std": final.get("reward_std"),
        "training_steps": max((line.get("step") or 0 for line in lines), default=0),
        "reward_history": [line["reward"] for line in rewards],
        "kl_history": [line["kl"] for line in lines if line.get("kl") is not None],
        "loss_history": [line["loss"] for line in lines if line.get("loss") is not None],
    }


def _feedback(ws: Workspace, one: ModelVersion) -> int:
    """Distinct feedback that the rows of the run came from."""
    own = dataset_of(ws, one)
    rows = chain.from_iterable(load_rows(ws, own.id, split) for split in ("train", "dev")) if own else ()
    return len({known for row in rows for known in row.feedback_ids})
