"""The loop on a tiny model: resume in process, best checkpoint, early stopping, NaN, divergence,
collapse, callbacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training_rows import assembled, loop_of, plain_rows
from thumbwheel.core.errors import ConfigError
from thumbwheel.training.assemble import settings
from thumbwheel.training.checkpoint import Checkpoints, check
from thumbwheel.training.divergence import WINDOW, DivergenceMonitor
from thumbwheel.training.probe import Probe
from thumbwheel.training.reporting import reporters


def lines(folder: Path) -> list[dict[str, Any]]:
    metrics_lines = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    return [
        {key: value for key, value in line.items() if key != "step_seconds"}
        for line in metrics_lines
    ]


def run(
    base: Path,
    folder: Path,
    algorithm: str = "dpo",
    resume: int | None = None,
    stop_at: int | None = None,
    **changes: Any,
) -> Any:
    shape = {"sft": "chats", "dpo": "pairs", "kto": "labels"}[algorithm]
    folder.mkdir(exist_ok=True)
    assembly = assembled(
        algorithm,
        base,
        folder,
        plain_rows(shape, 24, 5),
        **{"eval_steps": 2, "save_steps": 3} | changes,
    )
    loop = loop_of(assembly, folder, interrupted=lambda: loop.state.global_step == stop_at)
    return loop.run(resume), loop


def test_a_resumed_run_goes_on_exactly(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"num_train_epochs": 2}
    whole, _ = run(tiny_model, tmp_path / "whole", **settings)
    first, _ = run(tiny_model, tmp_path / "parts", stop_at=7, **settings)
    assert first.interrupted and first.step == 7
    second, loop = run(tiny_model, tmp_path / "parts", resume=7, **settings)
    assert second == whole
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert loop.state.log_history == lines(tmp_path / "whole")


def test_checkpoints_have_hugging_face_names_and_few_are_kept(
    tiny_model: Path, tmp_path: Path
) -> None:
    ending, _ = run(tiny_model, tmp_path, num_train_epochs=3, load_best_model_at_end=True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    assert set(checkpoints.steps()) == {*checkpoints.steps()[-2:], ending.best}
    names = {path.name for path in checkpoints.folder_of(ending.best).iterdir()}
    assert names == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "loop.pt",
        "checkpoint.json",
    }
    best = min(
        (line for line in lines(tmp_path) if "eval_loss" in line and line["step"]),
        key=lambda line: line["eval_loss"],
    )
    assert ending.best == best["step"]


@pytest.mark.parametrize(("minutes", "saved_steps"), [(1e-9, [4, 5, 6]), (60, [6])])
def test_checkpoints_by_the_clock(
    tiny_model: Path, tmp_path: Path, minutes: float, saved_steps: list[int]
) -> None:
    run(
        tiny_model,
        tmp_path,
        eval_steps=100,
        save_steps=100,
        save_minutes=minutes,
        save_total_limit=3,
    )
    assert Checkpoints(tmp_path / "checkpoints", 3).steps() == saved_steps


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "optimizer.pt", "trainer_state.json", "checkpoint.json"]
)
def test_a_damaged_checkpoint_is_passed_over(
    tiny_model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny_model, tmp_path, eval_steps=100, save_steps=2)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    before, last = checkpoints.steps()[-2:]
    (checkpoints.folder_of(last) / name).write_bytes(b"junk")
    assert check(checkpoints.folder_of(last)) and check(checkpoints.folder_of(before)) is None
    assert checkpoints.newest_sound() == before
    (checkpoints.folder_of(before) / "adapter_model.safetensors").unlink()
    for step in checkpoints.steps():
        (checkpoints.folder_of(step) / "checkpoint.json").unlink(missing_ok=True)
    with pytest.raises(Exception, match="every checkpoint in it is damaged"):
        checkpoints.newest_sound()


def test_a_full_disk_keeps_the_older_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    """A file size limit makes the kernel refuse the write, as a full disk does."""
    import resource

    from thumbwheel.core.errors import StorageError

    _, loop = run(tiny_model, tmp_path, eval_steps=100, save_steps=100)
    saved = loop._checkpoints.steps()
    loop.state.global_step += 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            loop._save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert loop._checkpoints.steps() == saved
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        f"checkpoint-{step}" for step in saved
    ]
    assert check(loop._checkpoints.folder_of(saved[-1])) is None


def test_early_stopping(tiny_model: Path, tmp_path: Path) -> None:
    ending, _ = run(
        tiny_model,
        tmp_path,
        "sft",
        learning_rate=1e-9,
        num_train_epochs=9,
        eval_steps=1,
        early_stopping_patience=2,
    )
    assert ending.reason and "early stopping" in ending.reason
    assert ending.step < 54


def test_patience_is_a_part_of_the_epochs_and_no_count_of_single_steps(
    tiny_model: Path, tmp_path: Path
) -> None:
    """4 epochs of 4 steps are evaluated after every step. Four tenths of them must pass without a
    better one, and not four steps."""
    assembly = assembled(
        "kto",
        tiny_model,
        tmp_path,
        plain_rows("labels", 16, 12),
        learning_rate=1e-30,
        num_train_epochs=4,
        early_stopping_patience=4,
        eval_budget=1,
    )
    loop = loop_of(assembly, tmp_path)
    assert (loop.order.steps, loop.eval_steps) == (16, 1)
    ending = loop.run()
    assert (
        ending.reason == "early stopping: no better dev rewards/margins in 7 evaluations, 7 steps"
    )
    assert (ending.best, ending.step) == (1, 8)


def test_the_weights_at_the_end_of_the_schedule_are_kept(tiny_model: Path, tmp_path: Path) -> None:
    """Single evaluations of five rows that were a little better in between are chance."""
    ending, loop = run(tiny_model, tmp_path, num_train_epochs=3, eval_steps=1)
    margins = {
        line["step"]: line["eval_rewards/margins"]
        for line in lines(tmp_path)
        if "eval_loss" in line
    }
    assert max(margins, key=lambda step: margins[step]) != ending.step == 18
    assert ending.best == 18
    assert ending.gain is not None and ending.gain.best == pytest.approx(margins[18])
    assert loop.state.best_global_step == 18


def test_an_earlier_checkpoint_is_kept_where_it_was_better_beyond_noise(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First it learns how answers begin, then that they never end as those of the dev rows do."""
    rows = plain_rows("chats", 24, 40)
    for row in rows:
        row["completion"] = "the quick fox" if row["split"] == "train" else "the quick dog"
    assembly = assembled(
        "sft",
        tiny_model,
        tmp_path,
        rows,
        num_train_epochs=12,
        learning_rate=3e-2,
        metric_for_best_model="loss",
        eval_steps=6,
    )
    ending = loop_of(assembly, tmp_path).run()
    assert ending.step == 72
    assert ending.best is not None and ending.best < 72
    assert "better than the last one beyond noise" in capsys.readouterr().err


def test_a_number_that_is_none_stops_before_the_adapter_is_touched(
    tiny_model: Path, tmp_path: Path
) -> None:
    import torch

    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 24, 5))
    loop = loop_of(assembly, tmp_path)
    next(parameter for parameter in assembly.model.parameters() if parameter.requires_grad).data[
        0, 0
    ] = float("inf")
    before = [
        parameter.detach().clone()
        for parameter in assembly.model.parameters()
        if parameter.requires_grad
    ]
    ending = loop.run()
    assert ending.wrong and "no number" in ending.wrong and "step 1" in ending.wrong
    after = [parameter for parameter in assembly.model.parameters() if parameter.requires_grad]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base that has learned to answer with a JSON object and to stop."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.models.tiny_models import tiny_base

    folder = tiny_base(tmp_path_factory.mktemp("knowing"), initializer_range=0.05)
    assembly = assembled("sft", folder, tmp_path_factory.mktemp("taught"), json_rows("chats", 32))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(60):
        loss = 0.0
        for example in assembly.train.items[step % 4 * 8 : step % 4 * 8 + 8]:
            ids = torch.tensor([[*example.prompt, *example.branches[0].ids]])
            loss = (
                loss
                + model(
                    ids, labels=ids.clone().index_fill_(1, torch.arange(len(example.prompt)), -100)
                ).loss
                / 8
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def json_rows(shape: str, train: int, dev: int = 0) -> list[dict[str, Any]]:
    rows = plain_rows(shape, train, dev)
    for number, row in enumerate(rows):
        row["completion"] = json.dumps({"k": ("fox", "dog")[number % 2]})
        row["label"] = number % 2 == 0
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "collapses"), [(1e-3, False), (2.0, True)])
def test_a_collapse_is_seen_and_stopped_with_the_reason(
    knowing: Path, tmp_path: Path, rate: float, collapses: bool
) -> None:
    changes = {
        "learning_rate": rate,
        "num_train_epochs": 3,
        "eval_steps": 2,
        "early_stopping_patience": None,
    }
    assembly = assembled("kto", knowing, tmp_path, json_rows("labels", 32, 6), **changes)
    probe = Probe.of(
        assembly.model, assembly.builder, assembly.dev.items, assembly.method.good_roles, 6, 30
    )
    loop = loop_of(assembly, tmp_path, probe=probe)
    ending = loop.run()
    start = lines(tmp_path)[0]
    assert start["eval_format_rate"] == start["eval_eos_rate"] == 1.0
    assert bool(ending.wrong) is collapses, ending
    if collapses:
        assert "collapsed" in str(ending.wrong) or "unlikely" in str(ending.wrong)
        assert loop._checkpoints.steps() == ([ending.best] if ending.best else [])
    else:
        assert ending.step == 24 and lines(tmp_path)[-1]["eval_format_rate"] == 1.0


def test_divergence_and_collapse_are_told_apart() -> None:
    watch = DivergenceMonitor(collapse_nll=1.0)
    watch.start({"loss": 0.7, "nll/good": 2.0, "eos_rate": 1.0, "format_rate": 0.9})
    assert (
        watch.evaluation({"loss": 0.6, "nll/good": 2.9, "eos_rate": 0.75, "format_rate": 0.6})
        is None
    )
    assert "format of good answers" in str(
        watch.evaluation({"loss": 0.5, "nll/good": 2.0, "eos_rate": 1.0, "format_rate": 0.4})
    )
    assert "come to an end" in str(
        watch.evaluation({"loss": 0.5, "nll/good": 2.0, "eos_rate": 0.5, "format_rate": 0.9})
    )
    assert "unlikely" in str(
        watch.evaluation({"loss": 0.5, "nll/good": 3.1, "eos_rate": 1.0, "format_rate": 0.9})
    )
    assert [watch.step(0.7, 1.0) for _ in range(WINDOW)] == [None] * WINDOW
    reasons = [watch.step(9.0, 1.0) for _ in range(WINDOW)]
    assert reasons[0] is None and "diverged" in str(reasons[-1])


def test_a_base_that_never_ends_is_no_collapse() -> None:
    watch = DivergenceMonitor(1.0)
    watch.start({"loss": 0.7, "nll/good": 2.0, "eos_rate": 0.0})
    assert watch.evaluation({"loss": 0.7, "nll/good": 2.0, "eos_rate": 0.0}) is None


def test_callbacks_hear_the_events_and_may_stop(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import TrainerCallback, TrainerControl, TrainerState

    class Listener(TrainerCallback):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_train_begin(
            self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
        ) -> None:
            self.heard.append(f"begin {state.max_steps} {args.learning_rate}")

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
        ) -> None:
            self.heard.append(f"evaluate {state.global_step} {'eval_loss' in metrics}")

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.heard.append(f"save {state.global_step}")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = state.global_step == 3
            return control

    assembly = assembled(
        "sft", tiny_model, tmp_path, plain_rows("chats", 24, 5), eval_steps=2, save_steps=100
    )
    listener = Listener()
    ending = loop_of(assembly, tmp_path, callbacks=[listener]).run()
    assert ending.reason == "a callback stopped the training"
    assert listener.heard == [
        "begin 6 0.001",
        "evaluate 0 True",
        "evaluate 2 True",
        "save 2",
        "save 3",
    ]


def test_tensorboard_shows_the_metrics_of_the_run(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    assembly = assembled(
        "sft", tiny_model, tmp_path, plain_rows("chats", 24, 5), eval_steps=3, save_steps=100
    )
    loop_of(assembly, tmp_path, callbacks=reporters(["tensorboard"], tmp_path), name="run_1").run()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    written = lines(tmp_path)
    shown = {event.step: event.value for event in events.Scalars("train/loss")}
    assert shown == pytest.approx(
        {line["step"]: line["loss"] for line in written if "loss" in line}, rel=1e-5
    )
    shown = {event.step: event.value for event in events.Scalars("eval/loss")}
    assert shown == pytest.approx(
        {line["step"]: line["eval_loss"] for line in written if "eval_loss" in line}, rel=1e-5
    )
    (about,) = events.Tensors("args/text_summary")
    assert b'"run_name": "run_1"' in about.tensor_proto.string_val[0]


def test_a_dashboard_that_is_unknown_or_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tensorbord"):
        settings("sft", {"report_to": ["tensorbord"]})
    with pytest.raises(ConfigError, match="pip install wandb"):
        reporters(["wandb"], tmp_path)


def test_what_a_resumed_run_passed_over_is_gone(tiny_model: Path, tmp_path: Path) -> None:
    """Else damaged files of higher numbers would count as the newest, and the new ones would go."""
    run(tiny_model, tmp_path, eval_steps=100, save_steps=1, save_total_limit=2)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    before, newest = checkpoints.steps()[-2:]
    (checkpoints.folder_of(newest) / "optimizer.pt").write_bytes(b"damaged")
    assert checkpoints.newest_sound() == before
    run(
        tiny_model,
        tmp_path,
        resume=before,
        stop_at=before + 1,
        eval_steps=100,
        save_steps=1,
        save_total_limit=1,
    )
    assert checkpoints.newest_sound() == before + 1


def test_a_metric_of_another_method_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Use one of: loss, nll/good"):
        run(tiny_model, tmp_path, "sft", metric_for_best_model="rewards/margins")


def test_dev_labels_of_one_kind_give_no_margin_and_the_loss_decides(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = plain_rows("labels", 24, 6)
    for row in rows:
        row["label"] = row["label"] or row["split"] == "dev"
    settings: dict[str, Any] = {
        "eval_steps": 2,
        "metric_for_best_model": "rewards/margins",
        "early_stopping_patience": None,
    }
    assembly = assembled("kto", tiny_model, tmp_path, rows, **settings)
    loop = loop_of(assembly, tmp_path, interrupted=lambda: loop.state.global_step == 3)
    loop.run()
    assert "no rewards/margins" in capsys.readouterr().err
    loop = loop_of(assembled("kto", tiny_model, tmp_path, rows, **settings), tmp_path)
    ending = loop.run(3)
    losses = {
        line["step"]: line["eval_loss"]
        for line in lines(tmp_path)
        if "eval_loss" in line and line["step"]
    }
    assert len(losses) > 2 and losses[ending.best] == min(losses.values())


def test_an_evaluation_that_is_unfit_is_never_the_best(tiny_model: Path, tmp_path: Path) -> None:
    """Also after a resume; where none was fit the run has failed."""
    from dataclasses import replace

    def ended(
        folder: Path, fit: set[int], stop_at: int | None = None, resume: int | None = None
    ) -> Any:
        folder.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "eval_steps": 2,
            "save_steps": 2,
            "early_stopping_patience": None,
            "num_train_epochs": 2,
        }
        assembly = assembled("sft", tiny_model, folder, plain_rows("chats", 24, 5), **settings)
        loop = loop_of(assembly, folder, interrupted=lambda: loop.state.global_step == stop_at)
        evaluate = assembly.runner.evaluate

        def doubtful(items: Any) -> Any:
            return replace(
                evaluate(items),
                unfit=None if loop.state.global_step in fit else "they lost their manners",
            )

        assembly.runner.evaluate = doubtful  # type: ignore[method-assign]
        return loop.run(resume)

    ending = ended(tmp_path / "some", {4})
    assert (ending.step, ending.best, ending.wrong) == (12, 4, None)
    failed = ended(tmp_path / "none", set())
    assert (failed.step, failed.best, failed.wrong) == (12, None, "they lost their manners")
    part = ended(tmp_path / "parts", set(), stop_at=12)
    assert part.interrupted and not part.wrong  # Ctrl-C is no failure
    assert ended(tmp_path / "parts", set(), resume=12) == failed
