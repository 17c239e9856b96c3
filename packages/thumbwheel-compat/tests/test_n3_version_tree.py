"""Exports in a tree by agent and version, with what the training came to beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.models.tiny_models import tuned_version
from thumbwheel.compat.n3 import version_tree
from thumbwheel.compat.n3.reward_files import HEAD
from thumbwheel.core.errors import Conflict
from thumbwheel.db.schema import runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import version as named
from thumbwheel.report.written_reports import REPORTS
from thumbwheel.training import rundir
from thumbwheel.training.types import RunState, Status


@pytest.mark.slow
def test_the_results_of_the_run_lie_beside_the_policy(
    empty_ws: Workspace, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    version = tuned_version(empty_ws, tiny_model, adapter)
    folder = empty_ws.home.runs / str(version.run_id)
    folder.mkdir(parents=True)
    lines = [
        {"step": 1, "loss": 0.9, "reward": 0.1, "kl": 0.0},
        {"step": 2, "loss": 0.7, "reward": 0.3, "reward_std": 0.2, "kl": 0.1},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = version_tree.export(
        empty_ws, named(empty_ws, "support", "latest"), "adapter", tmp_path / "models"
    )
    assert done.path == tmp_path / "models" / "support" / "v1" / "policy"
    assert (done.path / "adapter_model.safetensors").is_file()
    assert json.loads((done.path.parent / "training_results.json").read_text()) == {
        "model_path": str(done.path),
        "reward_model_path": None,
        "feedback_count": 3,
        "final_reward_mean": 0.3,
        "final_reward_std": 0.2,
        "training_steps": 2,
        "reward_history": [0.1, 0.3],
        "kl_history": [0.0, 0.1],
        "loss_history": [0.9, 0.7],
    }
    base_alone = version_tree.export(
        empty_ws, named(empty_ws, "support", "v0"), "merged", tmp_path / "models"
    )
    results = json.loads((base_alone.path.parent / "training_results.json").read_text())
    assert (results["training_steps"], results["feedback_count"], results["loss_history"]) == (
        0,
        0,
        [],
    )


def test_the_results_are_those_of_the_checkpoint_that_was_exported(
    empty_ws: Workspace, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    version = tuned_version(empty_ws, tiny_model, adapter)
    folder = empty_ws.home.runs / str(version.run_id)
    folder.mkdir(parents=True)
    lines = [
        {"step": 0, "eval_loss": -0.1, "eval_reward": 0.1},
        {"step": 1, "loss": 0.9, "reward": 0.2, "kl": 0.0},
        {"step": 1, "eval_loss": -0.6, "eval_reward": 0.6, "eval_reward_std": 0.05},
        {"step": 2, "loss": 0.2, "reward": 0.9, "reward_std": 0.3, "kl": 5.0},
        {"step": 2, "eval_loss": -0.3, "eval_reward": 0.3},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rundir.RunDir(folder).write_status(Status(RunState.FINISHED, 2, result={"best_step": 1}))
    results = version_tree.results_of(empty_ws, version)
    assert (
        results["training_steps"],
        results["final_reward_mean"],
        results["final_reward_std"],
    ) == (1, 0.6, 0.05)
    assert (results["reward_history"], results["kl_history"], results["loss_history"]) == (
        [0.2],
        [0.0],
        [0.9],
    )
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines if "loss" in line)
    )
    assert version_tree.results_of(empty_ws, version)["final_reward_mean"] == 0.2, (
        "the last batch up to that step, where nothing was held out"
    )


@pytest.mark.slow
def test_the_reward_model_of_the_run_lies_beside_the_policy(
    empty_ws: Workspace, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    tuned_version(empty_ws, tiny_model, adapter)
    judge = tmp_path / "judge"
    judge.mkdir()
    for file in ("reward.json", HEAD):  # with a head of theirs, so that none is made
        (judge / file).write_text("{}")

    def judged_by(name: str) -> None:
        empty_ws.db.write(lambda c: c.execute(runs.update().values(config={"reward_model": name})))

    judged_by(str(judge))
    done = version_tree.export(
        empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "models"
    )
    beside = tmp_path / "models" / "support" / "v1" / "reward_model"
    assert {path.name for path in beside.iterdir()} == {"reward.json", HEAD}
    assert json.loads((done.path.parent / "training_results.json").read_text())[
        "reward_model_path"
    ] == str(beside)
    # so that an erasure finds it
    noted = [json.loads(line) for line in (empty_ws.home.path / REPORTS).read_text().splitlines()]
    assert noted == [{"version": named(empty_ws, "support", "v1").id, "folder": str(beside)}]
    with pytest.raises(Conflict, match="already"):
        version_tree.export(
            empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "models"
        )
    judged_by("rm7")
    done = version_tree.export(
        empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "others"
    )
    assert (
        json.loads((done.path.parent / "training_results.json").read_text())["reward_model_path"]
        is None
    ), "it is gone"


def test_a_ladder_has_no_tree(command_line: Run) -> None:
    code, _, output = command_line("export", "v1", "--agent", "a", "--ladder", "all", "--tree")
    assert code == 2
    assert "--tree are about one" in output
