"""The verbs and the command: what they refuse, what a dry run says, what is recorded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.training_rows import QUICK, frozen
from thumbwheel.core import ids
from thumbwheel.core.errors import (
    ConfigError,
    Conflict,
    DataError,
    InputError,
    MissingExtra,
    ModelError,
    NotFound,
    StorageError,
)
from thumbwheel.core.present import Note
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.row_stats import ScoreStatistics
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.base import Base
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent, versions
from thumbwheel.training import store
from thumbwheel.training.commands import dry_run_page
from thumbwheel.training.launch import Tail, _note
from thumbwheel.training.rundir import RunDir, open_rows
from thumbwheel.training.train import dry_run, environment, resume, run_of, runs, train
from thumbwheel.training.types import DryRun, RunSpec, RunState, Status


def nothing_left(ws: Workspace) -> None:
    assert runs(ws, Agent.named("a")) == [] and versions(ws, Agent.named("a")) == []
    assert list(ws.home.runs.iterdir()) == []


@pytest.mark.slow
def test_dry_run_counts_and_keeps_nothing(empty_ws: Workspace, tiny_model: Path) -> None:
    dataset = frozen(empty_ws, "a", "pairs", 30, 4)
    estimated = dry_run(
        empty_ws,
        Agent.named("a"),
        "dpo",
        find_base(str(tiny_model), empty_ws.home.cache),
        dataset=dataset,
        options=QUICK,
    )
    assert (
        estimated.rows,
        estimated.dev_rows,
        estimated.steps,
        estimated.matched_modules,
        estimated.probed_steps,
    ) == (
        30,
        4,
        8,
        14,
        3,
    )
    assert estimated.tokens > estimated.scored_tokens > 60
    assert estimated.trainable_parameters == 4096
    assert estimated.minutes > 0 and estimated.past_runs == 0 and estimated.disk_gb > 0
    parts = {name: size for name, size in estimated.memory_gb.items() if name != "peak"}
    assert (
        sum(parts.values()) == pytest.approx(estimated.memory_gb["peak"], abs=0.01)
        and parts["weights"] > 0 < parts["activations"]
    )
    assert (estimated.held_out_rows, estimated.detectable_gain, estimated.changes) == (0, None, [])
    nothing_left(empty_ws)


@pytest.mark.parametrize(
    ("base_name", "why"),
    [
        ("./nowhere", "there is no such folder"),
        (
            "no-such-owner/no-such-model",
            "no such folder here, it is not in the Hugging Face cache, and the hub was not asked "
            "because HF_HUB_OFFLINE is set",
        ),
        ("a b c", "no such folder"),
    ],
)
def test_an_unknown_base(
    empty_ws: Workspace, base_name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=why):
        find_base(base_name, empty_ws.home.cache)


def test_the_reason_of_the_hub_is_not_cut_within_a_word(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, local_files_only: bool = False, **__: object) -> str:
        raise OSError("not cached" if local_files_only else "unreachable " * 40)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelError, match=r"give it \((unreachable )+\.\.\.\)"):
        find_base("no-such-owner/no-such-model", empty_ws.home.cache)


def test_an_empty_folder_is_no_base(empty_ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        find_base(str(tmp_path / "empty"), empty_ws.home.cache)


def test_what_the_data_cannot_support(empty_ws: Workspace, tiny_model: Path) -> None:
    pairs, empty = frozen(empty_ws, "a", "pairs", 4), frozen(empty_ws, "a", "pairs", 0, 2)
    one_class = frozen(empty_ws, "a", "labels", 5, label=True)
    with pytest.raises(DataError, match="it has pairs, and kto learns from labels"):
        train(
            empty_ws,
            Agent.named("a"),
            "kto",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=pairs,
        )
    with pytest.raises(DataError, match="no training rows"):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=empty,
        )
    with pytest.raises(DataError, match="all of them are good"):
        train(
            empty_ws,
            Agent.named("a"),
            "kto",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=one_class,
        )
    with pytest.raises(
        DataError,
        match=r"it has 4 training rows, and a run of dpo begins with 10 or more.*--min-rows 1",
    ):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=pairs,
        )
    with pytest.raises(DataError, match="a run of dpo begins with 5 or more"):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            dataset=pairs,
            options={"min_rows": 5},
        )
    with pytest.raises(DataError):  # nothing is recorded to build from
        train(empty_ws, Agent.named("a"), "dpo", find_base(str(tiny_model), empty_ws.home.cache))
    nothing_left(empty_ws)


def test_what_was_asked_wrongly(empty_ws: Workspace, tiny_model: Path) -> None:
    ensure_agent(empty_ws, "a")
    with pytest.raises(InputError, match="no base model was named"):
        find_base(None, empty_ws.home.cache)
    with pytest.raises(NotFound, match=r"algorithm 'dop'.*Did you mean 'dpo'"):
        train(empty_ws, Agent.named("a"), "dop", find_base(str(tiny_model), empty_ws.home.cache))
    with pytest.raises(ConfigError, match=r"learning_rat.*Did you mean 'learning_rate'"):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            options={"learning_rat": 1},
        )
    with pytest.raises(ConfigError, match="batch_size"):
        train(
            empty_ws,
            Agent.named("a"),
            "dpo",
            find_base(str(tiny_model), empty_ws.home.cache),
            options={"batch_size": 0},
        )
    with pytest.raises(NotFound, match=r"run '\.\./\.\./etc'"):
        run_of(empty_ws, Agent.named("a"), "../../etc")
    nothing_left(empty_ws)


def test_training_without_torch_names_the_extra(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "thumbwheel.models.base.find_spec", lambda name: None if name == "torch" else object()
    )
    with pytest.raises(MissingExtra, match=r"thumbwheel\[train\]"):
        train(empty_ws, Agent.named("a"), "dpo", Base("x", Path("x"), "f"))
    with pytest.raises(MissingExtra, match=r"thumbwheel\[train\]"):
        find_base("x", empty_ws.home.cache)


def spec_of(folder: Path) -> RunDir:
    run = RunDir(folder / "run_x")
    texts = ("run_id", "agent", "algorithm", "base", "folder", "base_fingerprint", "blobs")
    run.create(
        RunSpec(
            **dict.fromkeys(texts, "x"), reference_cache="x", config={}, shape="chats", files={}
        )
    )
    return run


def test_a_run_has_one_process(tmp_path: Path) -> None:
    run = spec_of(tmp_path)
    handle = run.lock()
    with pytest.raises(Conflict, match="another process is training it"):
        run.lock()
    os.close(handle)
    os.close(run.lock())


def test_a_run_reads_the_files_of_its_dataset_and_refuses_changed_ones(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    dataset = frozen(empty_ws, "a", "chats", 3, 2, completion="ü\u2028")
    run = spec_of(tmp_path)
    files = {split: dataset.manifest["files"][split] for split in ("train", "dev")}
    spec = replace(run.spec(), blobs=str(empty_ws.home.blobs), files=files)
    rows = open_rows(spec)
    assert {split: len(of_split) for split, of_split in rows.items()} == {"train": 3, "dev": 2}
    for _ in range(2):  # as often as needed
        expected = [asdict(row) for row in load_rows(empty_ws, dataset.id, "train")]
        assert list(rows["train"]) == expected and expected[0]["completion"] == "ü\u2028"

    path = Artifacts.of(empty_ws).path(files["dev"])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(StorageError, match=r"differ from those that the run started with.*new run"):
        open_rows(spec)
    path.unlink()
    with pytest.raises(StorageError, match=r"differ from those that the run started with.*new run"):
        open_rows(spec)


def test_a_run_over_erased_data_does_not_go_on(empty_ws: Workspace) -> None:
    dataset = frozen(empty_ws, "a", "chats", 3)
    values = {
        "agent_id": ids.derived("agt", "a"),
        "algorithm": "sft",
        "dataset_id": dataset.id,
        "base": "b",
        "base_fingerprint": None,
        "config": {},
        "environment": {},
        "seed": 1,
    }
    empty_ws.db.write(lambda connection: store.add(connection, {"id": "run_1", **values}))
    reason = "data that it was trained on was erased"
    tainted = {"tainted": True}
    empty_ws.db.write(lambda c: store.end(c, "run_1", RunState.FAILED, reason, tainted))
    with pytest.raises(Conflict, match=r"tainted.*Start a new run"):
        resume(empty_ws, run_of(empty_ws, Agent.named("a"), "run_1"))


def test_the_spec_of_a_run_moves_with_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run = spec_of(home / "runs")
    run.create(replace(run.spec(), blobs=str(home / "blobs"), folder="/models/small"))
    assert str(home) not in (run.path / "spec.json").read_text()
    home.rename(tmp_path / "moved")
    spec = RunDir(tmp_path / "moved" / "runs" / "run_x").spec()
    assert (spec.blobs, spec.folder) == (str(tmp_path / "moved" / "blobs"), "/models/small")


def test_a_damaged_spec(tmp_path: Path) -> None:
    run = spec_of(tmp_path)
    (run.path / "spec.json").write_text("{")
    with pytest.raises(StorageError, match="spec cannot be read"):
        run.spec()


def test_metrics_after_a_kill(tmp_path: Path) -> None:
    run = spec_of(tmp_path)
    tail = Tail(run.metrics)
    assert tail.new() == []
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in tail.new()] == [1, 2]
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
    run.forget_metrics_after(1)
    assert run.metrics.read_text() == '{"step": 1}\n'
    assert [line["step"] for line in tail.new()] == [1]
    with run.metrics.open("a") as out:
        out.write('{"step": 2}\n')
    assert [line["step"] for line in tail.new()] == [2]


def test_status_and_note(tmp_path: Path) -> None:
    run = spec_of(tmp_path)
    assert run.status() is None
    run.write_status(Status(RunState.FAILED, 3, "why", {"class": "DataError"}, {"x": 1}))
    assert run.status() == Status(RunState.FAILED, 3, "why", {"class": "DataError"}, {"x": 1})
    line = {
        "step": 1,
        "loss": 0.5,
        "rewards/margins": 0.25,
        "rewards/accuracies": 1.0,
        "nll/good": None,
    }
    assert _note(line) == "loss 0.500  margin 0.250  accuracy 1.000"
    assert _note({"step": 1, "eval_loss": 0.5}) == "dev: loss 0.500"


def test_the_environment_is_locked_in() -> None:
    versions = environment()
    assert (
        versions["torch"] and versions["transformers"] and versions["peft"] and versions["python"]
    )


@pytest.mark.slow
def test_the_command(empty_ws: Workspace, tiny_model: Path) -> None:
    from tests.opened_home import invoked
    from thumbwheel.loop.cycle_commands import train as group

    dataset = frozen(empty_ws, "a", "chats", 12, 2)
    options = ("--batch-size", "4", "--lora-r", "2", "--num-train-epochs", "2", "--min-steps", "1")
    named = ("--agent", "a", "--base", str(tiny_model), "--dataset", dataset.id)
    arguments = ("sft", *named, *options)
    outcome = invoked(empty_ws, group, *arguments, "--dry-run", "--json")
    plan: dict[str, Any] = json.loads(outcome.stdout)
    assert plan["steps"] == 6 and plan["trainable_parameters"] == 2048
    shown = invoked(empty_ws, group, *arguments, "--dry-run")
    assert "nothing was trained" in shown.stdout and "matched modules" in shown.stdout
    scores = asdict(ScoreStatistics.of([1.0, 4.0], [1.0, 5.0]))
    of_scores = TypeAdapter(DryRun).validate_python(plan | {"scores": scores})
    notes = [part.text for part in dry_run_page(of_scores) if isinstance(part, Note)]
    in_words = "scores: 2 numbers, mean 2.5, deviation 1.5, 1 to 4 on a scale of 1 to 5"
    assert in_words in notes
    with pytest.raises(ModelError):
        invoked(empty_ws, group, "sft", "--agent", "a", "--base", "./nowhere")
    told_help = invoked(empty_ws, group, "dpo", "--help", columns=200).stdout
    assert (
        "--label-smoothing" in told_help
        and "--learning-rate" in told_help
        and "default: 0.1" in told_help
    )
