"""A run in its own process: killed with its parent, interrupted, resumed, and in the end the same
curve as one that nothing disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import frozen
from tests.waiting import until
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError, StorageError, TrainingError
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent, VersionState
from thumbwheel.models.versions import adapter_folder, versions
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, require_same, resume, runs, train
from thumbwheel.training.types import RunState

OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "num_train_epochs": 4,
    "min_steps": 1,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "max_length": 128,
    "eval_steps": 5,
    "save_steps": 4,
    "probe_prompts": 2,
    "probe_tokens": 6,
    "early_stopping_patience": 50,
}
STEPS = 40
CHILD = """
import json, sys
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.datasets.build import find
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.training.train import find_run, resume, train
home, base, dataset, stopped, options = sys.argv[1:]
with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
    if stopped:
        result = resume(ws, find_run(ws, stopped))
    else:
        frozen = find(ws, "a", dataset)
        base = find_base(base, ws.home.cache)
        agent = Agent.named("a")
        result = train(ws, agent, "kto", base, dataset=frozen, options=json.loads(options))
sys.exit(130 if result.state == "stopped" else 0)
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    return tiny_base(tmp_path / "base")


def opened(tmp_path: Path) -> Workspace:
    return Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {}))


def curve(run: RunDir) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key != "step_seconds"}
        for line in run.read_metrics()
    ]


def parent(
    tmp_path: Path, base: Path, dataset: str, stopped: str, options: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """A process that trains, or goes on with the run `stopped`."""
    import json

    arguments = [str(tmp_path / "home"), str(base), dataset, stopped, json.dumps(options)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments])


def wait_for(run: RunDir, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not any(line["step"] >= step for line in run.read_metrics()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def unlocked(run: RunDir) -> None:
    """Wait until nobody trains the run any more."""
    until(lambda: not is_locked(run))


def is_locked(run: RunDir) -> bool:
    try:
        os.close(run.lock())
    except Conflict:
        return True
    return False


def only_run(tmp_path: Path, before: set[str]) -> str:
    for _ in range(600):
        runs = {path.name for path in (tmp_path / "home" / "runs").glob("run_*")} - before
        if runs:
            return runs.pop()
        time.sleep(0.05)
    raise AssertionError("no run appeared")


@pytest.mark.slow
def test_killed_interrupted_and_resumed_is_the_same_curve(tmp_path: Path, tiny_model: Path) -> None:
    with opened(tmp_path) as ws:
        frozen(ws, "a", "labels", STEPS, 6)
        dataset = frozen(ws, "a", "labels", STEPS, 6)
        whole = train(
            ws,
            Agent.named("a"),
            "kto",
            find_base(str(tiny_model), ws.home.cache),
            dataset=dataset,
            options=OPTIONS,
        )
        smooth = RunDir(ws.home.runs / whole.run_id)
    assert whole.state is RunState.FINISHED and whole.metrics["steps"] == STEPS
    chance = random.Random()
    killed, stopped = chance.randint(5, 18), chance.randint(21, 32)

    slow = OPTIONS | {"callbacks": ["training_callbacks:Slow"]}
    with opened(tmp_path) as ws:
        first = _start_and_kill(tmp_path, tiny_model, dataset.id, slow, killed, {whole.run_id})
        run = RunDir(ws.home.runs / first)
        assert find_run(ws, first).state is RunState.RUNNING  # nobody lived to say otherwise

    going = parent(tmp_path, tiny_model, dataset.id, first, {})
    time.sleep(0.2)
    wait_for(run, stopped, going)
    with opened(tmp_path) as ws, pytest.raises(Conflict, match="another process"):
        resume(ws, find_run(ws, first))
    going.send_signal(signal.SIGINT)
    assert going.wait(60) == 130
    with opened(tmp_path) as ws:
        record = find_run(ws, first)
        assert (record.state, record.reason) == (RunState.STOPPED, "interrupted")
        step = record.metrics["steps"] if record.metrics else 0
        assert stopped <= step < STEPS and (run.checkpoints / f"checkpoint-{step}").is_dir()
        with pytest.raises(InputError, match="learning_rate"):
            require_same(record, "kto", options={"learning_rate": 5.0})
        last = resume(ws, find_run(ws, first))
        assert last.state is RunState.FINISHED
        assert curve(run) == curve(smooth), (
            f"killed after step {killed}, interrupted after {stopped}"
        )
        assert {"steps": last.metrics["steps"], "best": last.metrics["best_step"]} == {
            "steps": STEPS,
            "best": whole.metrics["best_step"],
        }
        with pytest.raises(Conflict, match="finished"):
            resume(ws, find_run(ws, first))
        _check_versions(ws, tiny_model)


def _start_and_kill(
    tmp_path: Path, base: Path, dataset: str, options: dict[str, Any], step: int, before: set[str]
) -> str:
    """Start a run, kill -9 its parent once `step` is done, and see that the child dies with it."""
    process = parent(tmp_path, base, dataset, "", options)
    name = only_run(tmp_path, before)
    run = RunDir(tmp_path / "home" / "runs" / name)
    wait_for(run, step, process)
    process.kill()
    process.wait()
    unlocked(run)
    return name


def _check_versions(ws: Workspace, base: Path) -> None:
    """v0 is the base, both runs left a candidate, equal to the last bit and loadable in plain PEFT
    with its tokenizer."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    v0, v1, v2 = versions(ws, Agent.named("a"))
    assert (v0.adapter, v0.state, v1.state, v1.parent_id) == (
        None,
        VersionState.APPROVED,
        VersionState.CANDIDATE,
        v0.id,
    )
    assert v1.adapter == v2.adapter
    folder = adapter_folder(ws, v2)
    assert folder is not None
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert torch.isfinite(model(torch.tensor([[5, 6]])).logits).all()
    assert {run.state for run in runs(ws, Agent.named("a"))} == {RunState.FINISHED}


@pytest.mark.slow
def test_a_crash_is_told_and_a_collapse_has_its_reason(tmp_path: Path, tiny_model: Path) -> None:
    with opened(tmp_path) as ws:
        dataset = frozen(ws, "a", "pairs", 24, 4)
        with pytest.raises(TrainingError, match="deliberate") as crash:
            train(
                ws,
                Agent.named("a"),
                "dpo",
                find_base(str(tiny_model), ws.home.cache),
                dataset=dataset,
                options=OPTIONS | {"callbacks": ["training_callbacks:Crash"]},
            )
        assert "log.txt" in crash.value.fix
        with pytest.raises(TrainingError, match="stopped itself"):
            train(
                ws,
                Agent.named("a"),
                "dpo",
                find_base(str(tiny_model), ws.home.cache),
                dataset=dataset,
                options=OPTIONS | {"learning_rate": 5.0, "eval_steps": 1},
            )
        assert [run.state for run in runs(ws, Agent.named("a"))] == [RunState.FAILED] * 2
        assert [version.name for version in versions(ws, Agent.named("a"))] == ["v0"]


@pytest.mark.slow
def test_a_full_disk_fails_the_run_which_then_goes_on(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as ws:
        dataset = frozen(ws, "a", "chats", 32, 4)
        options = OPTIONS | {"num_train_epochs": 1, "callbacks": ["training_callbacks:FullDisk"]}
        monkeypatch.setenv("FULL_DISK", "1")
        with pytest.raises(StorageError, match="cannot be written"):
            train(
                ws,
                Agent.named("a"),
                "sft",
                find_base(str(tiny_model), ws.home.cache),
                dataset=dataset,
                options=options,
            )
        monkeypatch.delenv("FULL_DISK")
        (failed,) = runs(ws, Agent.named("a"))
        assert failed.state is RunState.FAILED
        result = resume(ws, failed)
        assert (result.state, result.version) == (RunState.FINISHED, "v1")
        assert [
            line["step"] for line in curve(RunDir(ws.home.runs / failed.id)) if "loss" in line
        ] == list(range(1, 9))
