"""Exports in a tree by agent and version: `AGENT/VERSION/policy`, and beside it the reward model
that judged the run (`reward_model/`) and the results of the training (training_results.json).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.compat.n3.reward_files import HEAD, add_their_files
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.core.files import replace, unwritable
from thumbwheel.datasets.build import find, load_rows
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.rows import dataset_of
from thumbwheel.export import package
from thumbwheel.export.types import Export
from thumbwheel.models import reward_models
from thumbwheel.models.types import ModelVersion
from thumbwheel.report.written_reports import note_copy
from thumbwheel.training import rundir
from thumbwheel.training.train import find_run
from thumbwheel.training.types import Run

RESULTS = "training_results.json"
REWARD_MODEL = "reward_model"


def export(
    ws: Workspace,
    version: ModelVersion,
    format: str = "merged",
    root: Path | None = None,
    *arguments: Any,
) -> Export:
    """Export like package.export, which gets `arguments`, into `AGENT/VERSION/policy` below `root`
    (default ./models), with the reward model and the results of the run beside it.

    Raises Conflict if there is a reward model already, or if the one that judged the run is
    tainted.
    """
    folder = (root or Path("models")) / version.agent / version.name
    judge = _judge(ws, version)
    if judge is not None and (folder / REWARD_MODEL).exists():
        raise Conflict(
            f"folder {str(folder / REWARD_MODEL)!r}",
            "it already exists",
            "Move it away, or name another --to",
        )
    finished = package.export(ws, version, format, folder / "policy", *arguments)
    reward_model = finished.path.with_name(REWARD_MODEL) if judge else None
    results = finished.path.with_name(RESULTS)
    try:
        if judge is not None and reward_model is not None:
            note_copy(ws, version.id, reward_model)
            shutil.copytree(judge, reward_model)
            if not (reward_model / HEAD).exists():
                add_their_files(reward_model)
        paths = {
            "model_path": str(finished.path),
            "reward_model_path": reward_model and str(reward_model),
        }
        figures = paths | results_of(ws, version)
        replace(results, json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise unwritable(f"file {str(results)!r}", error) from error
    return finished


def _judge(ws: Workspace, version: ModelVersion) -> Path | None:
    """Return the folder of the reward model that judged the run of this version; None if there was
    none, or it is gone."""
    if version.run_id is None:
        return None
    name = find_run(ws, version.run_id).config.get("reward_model")
    if name is None:
        return None
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    try:
        return reward_models.folder(ws, reward_models.find(ws, version.agent, name))
    except NotFound:
        return None


def results_of(ws: Workspace, version: ModelVersion) -> dict[str, Any]:
    """Return the figures of the run up to the version's checkpoint. A figure that the method does
    not have is None, a history empty.

    The final reward is the mean over answers to held-out prompts if the run measured it, else over
    the last batch.
    """
    run = rundir.RunDir(ws.home.runs / version.run_id) if version.run_id else None
    lines = run.read_metrics() if run else []
    status = run.status() if run else None
    best = (status.result or {}).get("best_step") if status else None
    last = max((line.get("step") or 0 for line in lines), default=0)
    step = last if best is None else best
    until = [line for line in lines if (line.get("step") or 0) <= step]
    rewards = [line for line in until if line.get("reward") is not None]
    held_out = [
        line for line in until if line.get("step") == step and line.get("eval_reward") is not None
    ]
    final: Mapping[str, Any] = rewards[-1] if rewards else {}
    if held_out:
        final = {
            "reward": held_out[-1]["eval_reward"],
            "reward_std": held_out[-1].get("eval_reward_std"),
        }
    return {
        "feedback_count": _feedback(ws, version),
        "final_reward_mean": final.get("reward"),
        "final_reward_std": final.get("reward_std"),
        "training_steps": step,
        "reward_history": [line["reward"] for line in rewards],
        "kl_history": [line["kl"] for line in until if line.get("kl") is not None],
        "loss_history": [line["loss"] for line in until if line.get("loss") is not None],
    }


def _feedback(ws: Workspace, model_version: ModelVersion) -> int:
    """Count the feedback items that were trained on: by the reward model that judged the run if
    there is one, else by the run itself."""
    dataset = dataset_of(ws, model_version)
    judge = _judge_run(ws, model_version)
    if judge is not None:
        dataset = find(ws, model_version.agent, judge.dataset_id)
    if dataset is None:
        return 0
    feedback_ids: set[str] = set()
    for row in load_rows(ws, dataset.id, "train"):
        feedback_ids.update(row.feedback_ids)
    return len(feedback_ids)


def _judge_run(ws: Workspace, model_version: ModelVersion) -> Run | None:
    """Return the run that trained the reward model of this version's run; None if it is not in this
    home."""
    if model_version.run_id is None:
        return None
    name = find_run(ws, model_version.run_id).config.get("reward_model")
    if name is None:
        return None
    for record in reward_models.reward_models(ws, model_version.agent):
        if name in (record.name, record.id, str(reward_models.folder(ws, record))):
            return find_run(ws, record.run_id)
    return None
