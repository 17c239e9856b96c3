"""Exports in a tree by agent and version, with what the training came to beside them."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Run
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import tree
from tiny_models import tuned_version


def test_the_results_of_the_run_lie_beside_the_policy(ws: Workspace, base: Path, adapter: Path, tmp_path: Path) -> None:
    version = tuned_version(ws, base, adapter)
    folder = ws.home.runs / str(version.run_id)
    folder.mkdir(parents=True)
    lines = [{"step": 1, "loss": 0.9, "reward": 0.1, "kl": 0.0}, {"step": 2, "loss": 0.7, "reward": 0.3, "reward_std": 0.2, "kl": 0.1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = tree.export(ws, "support", "latest", "adapter", tmp_path / "models")
    assert done.path == tmp_path / "models" / "support" / "v1" / "policy"
    assert (done.path / "adapter_model.safetensors").is_file()
    assert json.loads((done.path.parent / "training_results.json").read_text()) == {
        "model_path": str(done.path),
        "reward_model_path": None,
        "feedback_count": 5,
        "final_reward_mean": 0.3,
        "final_reward_std": 0.2,
        "training_steps": 2,
        "reward_history": [0.1, 0.3],
        "kl_history": [0.0, 0.1],
        "loss_history": [0.9, 0.7],
    }
    base_alone = tree.export(ws, "support", "v0", "merged", tmp_path / "models")
    results = json.loads((base_alone.path.parent / "training_results.json").read_text())
    assert (results["training_steps"], results["feedback_count"], results["loss_history"]) == (0, 0, [])


def test_a_ladder_has_no_tree(command_line: Run) -> None:
    code, _, said = command_line("export", "v1", "--agent", "a", "--ladder", "all", "--tree")
    assert code == 2
    assert "--tree are about one" in said
