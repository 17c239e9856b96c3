"""Rows of a server's PolicyVersion table, and the quick start of an agent's pipeline with the
method that it has by default."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tuned_version
from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat import TrainingPipeline
from thumbwheel.compat.n3 import PolicyVersion, list_policy_versions, version_tree
from thumbwheel.compat.script_home import open_home
from thumbwheel.core.errors import NotFound
from thumbwheel.models.versions import version as named
from thumbwheel.training import rundir
from thumbwheel.training.types import RunState, Status


@pytest.mark.slow
def test_trained_versions_are_policy_versions(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with opener(home, None, "warning")() as ws:
        versions = [tuned_version(ws, tiny_model, adapter, "desk") for _ in range(2)]
        run = rundir.RunDir(ws.home.runs / str(versions[0].run_id))
        run.path.mkdir(parents=True)
        lines = [
            {"step": step, "loss": 1.0, "reward": step / 10, "reward_std": 0.1}
            for step in (1, 2, 3)
        ]
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.write_status(Status(RunState.FINISHED, 3, result={"best_step": 2}))
        exported = version_tree.export(ws, named(ws, "desk", "v1"), "adapter", tmp_path / "models")
    newest, oldest = list_policy_versions("desk", home=home)
    assert (newest.version, newest.model_path, newest.reward_mean) == ("v2", None, None)
    assert oldest == PolicyVersion(
        versions[0].id, "desk", "v1", str(exported.path), 3, 0.2, 0.1, versions[0].recorded_at
    ), "v0 was never trained"
    assert oldest.to_dict()["created_at"] == versions[0].recorded_at.isoformat()
    with pytest.raises(NotFound):
        list_policy_versions("shop", home=home)


def write_traces(folder: Path, questions: int = 60) -> Path:
    """Trace files as the collector writes them: two runs of every question, one right and one
    wrong."""
    rng = random.Random(7)
    asked = ["".join(rng.choices("abcdefghijklmnop ", k=40)).strip() for _ in range(questions)]
    day = folder / "2026-01-05"
    day.mkdir(parents=True)
    for number in range(2 * questions):
        good = number % 2 == 0
        trace = {
            "trace_id": f"{number:012x}",
            "session_id": f"s{number}",
            "timestamp": "2026-01-05T08:30:00",
            "user_query": asked[number // 2],
            "final_response": "In the box." if good else "No idea.",
            "label": good,
            "reward_score": 1.0 if good else 0.0,
        }
        (day / f"{number:012x}.json").write_text(json.dumps(trace))
    return folder


@pytest.mark.parametrize(
    ("settings", "cases", "judged"),
    [
        (None, [], False),
        ({"reward_model": "rm1"}, [], True),
        ({"reward_functions": ["checker", "length=0.5"]}, [], True),
        ({"reward_functions": ["checker"]}, [], False),
        (
            None,
            [
                {"type": "case", "id": f"c{n}", "input": f"{n} + 2?", "reference": str(n + 2)}
                for n in range(30)
            ],
            True,
        ),
    ],
)
def test_what_could_judge_fresh_answers_is_looked_for(
    settings: dict[str, Any] | None, cases: list[dict[str, Any]], judged: bool, tmp_path: Path
) -> None:
    pipeline = TrainingPipeline(
        "isaa", "base", settings=settings, home=tmp_path / "home", output_dir=tmp_path / "out"
    )
    with open_home(pipeline.home) as ws:
        ingest(ws, "isaa", "flowagent", write_traces(tmp_path / "rl_traces"))
        if cases:
            (tmp_path / "cases.jsonl").write_text(
                "".join(json.dumps(case) + "\n" for case in cases)
            )
            ingest(ws, "isaa", "jsonl", tmp_path / "cases.jsonl")
        assert pipeline._can_judge(ws) is judged


def test_a_trace_that_cannot_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_traces(tmp_path / "rl_traces")
    (folder / "torn.json").write_text('{"trace_id": "t', encoding="utf-8")
    settings = {"reward_functions": ["length"]}
    pipeline = TrainingPipeline(
        "isaa",
        "no-base",
        settings=settings,
        traces=folder,
        home=tmp_path / "home",
        output_dir=tmp_path / "out",
    )
    assert not pipeline.run_full_pipeline()["success"]
    assert "1 line is left out, the first for this reason: " in capsys.readouterr().err


@pytest.mark.slow
def test_the_quick_start_works_on_traces_with_its_own_default(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    write_traces(tmp_path / "rl_traces")
    pipeline = TrainingPipeline(
        agent_name="isaa",
        base_model=str(tiny_model),
        method="grpo",
        traces="rl_traces",
        settings={"max_steps": 2},
    )
    results = pipeline.run_full_pipeline()
    assert results["method"] == results["training"]["method"] == "grpo_offline"
    assert results["dataset_size"] > 10 and results["training"]["total_steps"] == 2
    assert "nothing here could judge" in capsys.readouterr().err
    assert (
        results["success"] or "gate rejected" in results["error"] or "gain" in results["error"]
    ), results.get("error")
    assert json.loads((tmp_path / "rl_training/isaa/pipeline_results.json").read_text()) == results
