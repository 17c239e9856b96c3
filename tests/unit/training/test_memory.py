"""Memory: what fits is measured, what does not is planned anew, and a real failure to allocate in
the middle changes no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.reversal import reversal_rows, terse_base
from tests.training_rows import QUICK, assembled, loop_of, plain_rows, settings
from thumbwheel.core.errors import TrainingError
from thumbwheel.engine.out_of_memory import out_of_memory
from thumbwheel.engine.tree import plan
from thumbwheel.training import fit_memory
from thumbwheel.training.assemble import Assembly
from thumbwheel.training.fit_memory import MemoryNeed, MemoryPoint, fitted, measure
from thumbwheel.training.memory import branch_by_branch, meter, refuse_weights, room_gb
from thumbwheel.training.rundir import RunDir

SQUEEZED = """
import json, sys
from pathlib import Path
from thumbwheel.training.memory import hold_to, meter
from tests.training_rows import assembled, loop_of, plain_rows

base, folder, options = sys.argv[1:]
made = assembled("dpo", Path(base), Path(folder), plain_rows("pairs", 24, 4), **json.loads(options))
made.runner.rehearse(made.train.items[:2])  # torch's own buffers
hold_to("cpu", meter("cpu").now() + 0.12)
loop_of(made, Path(folder)).run()
print(json.dumps(made.runner.budget.changes))
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 0.2 MB of activations a token."""
    return tiny_base(
        tmp_path_factory.mktemp("wide"),
        hidden_size=256,
        intermediate_size=2048,
        head_dim=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=3,
        initializer_range=0.05,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_an_allocation_that_fails_repeats_the_step_with_fewer_tokens(
    wide: Path, tmp_path: Path
) -> None:
    options = {"token_budget": 100_000, "batch_size": 24, "max_steps": 2, "eval_steps": 2}
    loop_of(
        assembled("dpo", wide, tmp_path / "free", plain_rows("pairs", 24, 4), **options),
        tmp_path / "free",
    ).run()
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [
        sys.executable,
        "-c",
        SQUEEZED,
        str(wide),
        str(tmp_path / "tight"),
        json.dumps(options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    changes = json.loads(done.stdout.splitlines()[-1])
    assert changes and all("out of memory" in change for change in changes)
    calm, lines = (RunDir(tmp_path / name).read_metrics() for name in ("free", "tight"))
    assert [line["step"] for line in lines] == [line["step"] for line in calm]
    assert any("token_budget" in line for line in lines) and not any(
        "token_budget" in line for line in calm
    )
    for after, before in zip(lines, calm, strict=True):
        for name in ("loss", "eval_loss", "grad_norm"):
            assert (name in after) is (name in before)
            assert after.get(name, 0.0) == pytest.approx(before.get(name, 0.0), rel=2e-4, abs=1e-6)


def test_what_is_out_of_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert (
        out_of_memory(caught.value)
        and out_of_memory(MemoryError())
        and out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    )
    assert not out_of_memory(RuntimeError("shapes do not match")) and not out_of_memory(
        ValueError("out of memory")
    )


def failing(
    assembly: Assembly, above: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, bool]]:
    """Let every forward pass of more than `above` rows fail as a GPU does, unless activations are
    computed twice; (rows, twice) of each."""
    import torch

    seen: list[tuple[int, bool]] = []
    whole = assembly.engine._score

    def score(batch: Any, *rest: Any) -> Any:
        seen.append((batch.n_rows, assembly.engine.checkpointing))
        if batch.n_rows > above and not assembly.engine.checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(batch, *rest)

    monkeypatch.setattr(assembly.engine, "_score", score)
    return seen


def gradients(assembly: Assembly) -> Any:
    import torch

    return torch.cat(
        [
            parameter.grad.flatten()
            for parameter in assembly.model.parameters()
            if parameter.requires_grad
        ]
    )


@pytest.mark.slow
def test_down_to_one_row_then_activations_twice_then_no_more(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 6), token_budget=4096)
    assembly.runner.train(assembly.train.items, 0, lambda loss: loss)
    calm, largest = gradients(assembly), max(item.rows("tree") for item in assembly.train.items)
    assembly.engine.zero_grad()
    seen = failing(assembly, largest - 1, monkeypatch)
    assembly.runner.train(assembly.train.items, 0, lambda loss: loss)
    assert (
        assembly.runner.budget.tokens == largest
        and assembly.engine.checkpointing
        and seen[-1] == (seen[-1][0], True)
    )
    assert torch.allclose(gradients(assembly), calm, atol=1e-6)
    monkeypatch.setattr(assembly.engine, "_score", lambda *_: torch.empty(1 << 60))
    with pytest.raises(TrainingError, match=r"one such row alone does not fit.*--quantization nf4"):
        assembly.runner.train(assembly.train.items, 0, lambda loss: loss)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_budget_that_it_came_down_to(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = plain_rows("pairs", 8, 2)
    changes: dict[str, Any] = {
        "token_budget": 4096,
        "num_train_epochs": 3,
        "save_steps": 2,
        "eval_steps": 2,
        "preset": "quick_test",
    }
    for name in ("whole", "halved"):
        (tmp_path / name).mkdir()
    whole = assembled("dpo", tiny_model, tmp_path / "whole", data, **changes)
    failing(whole, 100, monkeypatch)
    loop_of(whole, tmp_path / "whole").run()
    stopped = assembled("dpo", tiny_model, tmp_path / "halved", data, **changes)
    failing(stopped, 100, monkeypatch)
    loop_of(
        stopped, tmp_path / "halved", interrupted=iter([False, False, False, True]).__next__
    ).run()
    again = assembled("dpo", tiny_model, tmp_path / "halved", data, **changes)
    loop_of(again, tmp_path / "halved").run(4)
    assert again.runner.budget.tokens == stopped.runner.budget.tokens < 4096
    assert again.runner.budget.changes == whole.runner.budget.changes != []
    restored = [
        [
            {k: v for k, v in line.items() if k != "step_seconds"}
            for line in RunDir(tmp_path / name).read_metrics()
        ]
        for name in ("whole", "halved")
    ]
    assert restored[0] == restored[1]


@pytest.mark.slow
@pytest.mark.skipif(meter("cpu") is None, reason="memory cannot be measured here")
def test_what_a_token_costs_is_measured(wide: Path, tmp_path: Path) -> None:
    assembly = assembled(
        "dpo", wide, tmp_path, plain_rows("pairs", 60), batch_size=60, token_budget=1500
    )
    gauge = meter("cpu")
    assert gauge is not None
    need = measure(assembly, gauge, 100.0)
    gauge.reset()
    assembly.runner.rehearse(assembly.train.items)
    largest = max(
        batch.n_rows for batch in plan(assembly.train.items, 1500, assembly.engine.layout)
    )
    assert need.of(largest) == pytest.approx(gauge.peak(), rel=0.15)
    assert all(parameter.grad is None for parameter in assembly.model.parameters())


def squeeze(monkeypatch: pytest.MonkeyPatch, *needs: MemoryNeed) -> None:
    answers = iter(needs)
    monkeypatch.setattr(fit_memory, "measure", lambda assembly, gauge, room: next(answers))


@pytest.mark.skipif(meter("cpu") is None, reason="memory cannot be measured here")
def test_where_passes_cost_launches_as_many_tokens_are_computed_at_once_as_fit(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"token_budget": 64, "batch_size": 24, "memory_limit_gb": 4.0}
    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 40), **options)
    items, kind = assembly.train.items, assembly.engine.layout.kind
    sizes = sorted((item.rows(kind) for item in items), reverse=True)
    budget = assembly.runner.budget

    # a processor takes the setting as it is, but for an example that is larger
    fit_memory.fit(assembly)
    assert budget.tokens == 64

    # a GPU computes a whole step in one pass, whatever else this process holds
    monkeypatch.setattr(fit_memory, "RISES", ("cpu",))
    monkeypatch.setattr(fit_memory, "room_gb", lambda device, limit, ranks: limit)
    fit_memory.fit(assembly)
    assert budget.tokens == sum(sizes[:24]) and budget.changes == []
    step = items[:24]
    assert len(plan(step, budget.tokens, assembly.engine.layout)) == 1

    # or as much of it as fits, by what was measured under the raised budget
    budget.tokens = 64
    squeeze(monkeypatch, MemoryNeed(1.0, 2.0 / 500), MemoryNeed(1.0, 2.0 / 300))
    fit_memory.fit(assembly)
    assert (budget.tokens, budget.changes[0][:24]) == (408, "token_budget 680 -> 408:")


@pytest.mark.skipif(meter("cpu") is None, reason="memory cannot be measured here")
def test_units_that_fill_the_budget_are_as_large_as_the_device_computes_them(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is shared out among the threads of a processor, and a GPU has none."""
    options = {"token_budget": 4096, "batch_size": 24}
    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 24), **options)
    asked: list[int] = []

    def threads(rows: object, tokens: int) -> int:
        asked.append(tokens)
        return 1

    monkeypatch.setattr(assembly.engine, "threads", threads)
    together = fit_memory._parts(assembly)[-1]
    assert asked == [4096] and len(together) == 24


def test_what_does_not_fit_is_planned_anew_and_said(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = plain_rows("pairs", 40)

    def make(config):
        return assembled(
            "dpo",
            tiny_model,
            tmp_path,
            data,
            **config.model_dump(include={"max_length", "memory_limit_gb"}),
        )

    config = settings("dpo", QUICK | {"memory_limit_gb": 1.0})
    whole = make(config)
    largest, longest = (
        max(item.rows("tree") for item in whole.train.items),
        max(item.longest for item in whole.train.items),
    )
    squeeze(monkeypatch, MemoryNeed(0.1, 1e-6))
    assert fitted(make, config).runner.budget.changes == []
    squeeze(monkeypatch, MemoryNeed(0.1, 0.83 / 500))
    assembly = fitted(make, config)
    assert assembly.runner.budget.tokens == 500
    assert assembly.runner.budget.changes == [
        "token_budget 1536 -> 500: 2.65 GB are needed, 1.00 GB are there"
    ]
    squeeze(monkeypatch, MemoryNeed(0.1, 0.83 / (largest - 1)), MemoryNeed(0.1, 0.83 / 2000))
    assembly = fitted(make, config)
    assert assembly.engine.checkpointing and assembly.runner.budget.tokens == 1536
    monkeypatch.setattr(fit_memory, "SHORTEST", 16)
    squeeze(monkeypatch, *[MemoryNeed(0.1, 0.83 / (largest * 2 // 3))] * 2, MemoryNeed(0.1, 1e-6))
    assembly = fitted(make, config)
    assert (
        assembly.config.max_length <= longest * 2 // 3
        and max(item.longest for item in assembly.train.items) <= assembly.config.max_length
    )
    assert "longer rows do not fit" in assembly.runner.budget.changes[0]
    squeeze(monkeypatch, *[MemoryNeed(2.0, 1e-6)] * 2)
    with pytest.raises(TrainingError, match="not even much shorter ones would fit"):
        fitted(make, config)
    assert "2.65 GB are needed" in capsys.readouterr().err


def test_a_resumed_run_keeps_the_length_that_it_came_down_to(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = plain_rows("pairs", 12)

    def make(config):
        return assembled(
            "dpo",
            tiny_model,
            tmp_path,
            data,
            **config.model_dump(include={"max_length", "memory_limit_gb"}),
        )

    config = settings("dpo", QUICK | {"memory_limit_gb": 1.0, "max_length": 64})
    squeeze(monkeypatch, *[MemoryNeed(0.1, 0.83 / 10)] * 2)
    with pytest.raises(
        TrainingError, match=r"shorter rows would make it another run.*resume again"
    ):
        fitted(make, config, shorten=False)
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    assert run.fitted() == {}
    run.write_fitted({"max_length": 48})
    assert run.fitted() == {"max_length": 48}


def test_a_base_beyond_the_memory_is_not_even_loaded() -> None:
    refuse_weights(1_000_000, "float32", "cpu", 0.01)
    with pytest.raises(
        TrainingError, match=r"it takes 0\.4 GB, and there are 0\.3 GB.*smaller base"
    ):
        refuse_weights(100_000_000, "float32", "cpu", 0.3)
    refuse_weights(100_000_000, "nf4", "cpu", 0.3)
    room = room_gb("cpu", None, 1)
    assert room is not None and room_gb("cpu", 1e9, 1) == pytest.approx(room, rel=0.2)
    assert room_gb("cpu", 0.3, 3) == pytest.approx(0.1)
    with pytest.raises(TrainingError, match="each of 4 ranks") as refused:
        refuse_weights(30_000_000, "float32", "cpu", 0.3, 4)
    assert "fewer ranks" in refused.value.fix


ONLINE: dict[str, Any] = {
    "batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 12,
    "max_length": 40,
    "max_steps": 3,
    "eval_steps": 3,
    "reward_workers": 1,
    "learning_rate": 5e-3,
    "temperature": 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [("grpo", {"beta": 0.1, "num_iterations": 2}), ("ppo", {"critic_warmup_steps": 1})],
)
def test_answers_to_one_prompt_are_computed_apart_where_together_they_do_not_fit(
    method: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = terse_base(tmp_path / "terse")
    lines = {}
    for name in ("calm", "tight"):
        (tmp_path / name).mkdir()
        assembly = assembled(method, base, tmp_path / name, reversal_rows(8, 2), **ONLINE | more)
        single = assembly.runner.budget.largest(
            branch_by_branch(assembly.runner.examples(assembly.train.items))
        )
        if name == "tight":
            failing(assembly, single, monkeypatch)
        loop_of(assembly, tmp_path / name).run()
        assembly.runner.close()
        assert (
            assembly.runner.budget.divided is (name == "tight")
            and not assembly.engine.checkpointing
        )
        lines[name] = RunDir(tmp_path / name).read_metrics()
    for calm, tight in zip(lines["calm"], lines["tight"], strict=True):
        for key, value in calm.items():
            if key not in ("step_seconds", "num_tokens"):
                assert tight[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@pytest.mark.slow
def test_a_rehearsal_of_a_method_that_answers_computes_every_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled(
        "grpo", terse_base(tmp_path / "terse"), tmp_path, reversal_rows(8, 2), **ONLINE
    )
    seen = failing(assembly, 10_000, monkeypatch)
    assembly.runner.rehearse(assembly.runner.examples(assembly.train.items[:1]))
    assert (
        seen[0][0]
        == assembly.runner.budget.largest(assembly.runner.examples(assembly.train.items[:1]))
        > 4 * 12
    )
    gauge = meter("cpu")
    assert (
        gauge is not None and measure(assembly, gauge, 100.0).token >= 0
    )  # prompts of one length are two points all the same
    assembly.runner.close()


@pytest.mark.slow
def test_answers_that_do_not_fit_are_refused_and_no_prompt_is_dropped_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = terse_base(tmp_path / "terse")
    assembly: list[Assembly] = []

    def make(config: Any) -> Assembly:
        assembly.append(
            assembled(
                "grpo", base, tmp_path, reversal_rows(8, 2), **ONLINE | {"memory_limit_gb": 1.0}
            )
        )
        return assembly[-1]

    squeeze(monkeypatch, *[MemoryNeed(2.0, 1e-6)] * 3)
    with pytest.raises(TrainingError, match="Lower max_completion_length"):
        fitted(make, settings("grpo", ONLINE | {"memory_limit_gb": 1.0}))
    assert (
        len(assembly) == 1
        and assembly[0].runner.budget.divided
        and assembly[0].engine.checkpointing
    )


@pytest.mark.slow
def test_a_group_that_cannot_even_be_rehearsed_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled(
        "grpo", terse_base(tmp_path / "terse"), tmp_path, reversal_rows(8, 2), **ONLINE
    )
    single = assembly.runner.budget.largest(
        branch_by_branch(assembly.runner.examples(assembly.train.items))
    )
    seen = failing(assembly, single, monkeypatch)
    fit_memory.fit(assembly)
    assembly.runner.close()
    assert (
        assembly.runner.budget.divided
        and not assembly.engine.checkpointing
        and max(count for count, _ in seen) > single
    )


@pytest.mark.slow
def test_what_smaller_parts_foretell_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled(
        "grpo",
        terse_base(tmp_path / "terse"),
        tmp_path,
        reversal_rows(8, 2),
        **ONLINE | {"num_generations": 16},
    )
    seen = failing(assembly, 10_000, monkeypatch)
    monkeypatch.setattr(
        fit_memory,
        "_peak",
        lambda assembly, gauge, units: (
            assembly.runner.rehearse(units) or MemoryPoint(seen[-1][0], 0.01 * seen[-1][0])
        ),
    )
    gauge = meter("cpu")
    assert gauge is not None
    need = measure(assembly, gauge, 1.0)
    assembly.runner.close()
    assert need.token == pytest.approx(0.01) and max(count for count, _ in seen) < 100 < 16 * 12


@pytest.mark.slow
def test_rows_that_fit_alone_are_not_refused_because_several_did_not(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled("dpo", tiny_model, tmp_path, plain_rows("pairs", 20), token_budget=4096)
    largest = max(item.rows("tree") for item in assembly.train.items)
    failing(assembly, largest, monkeypatch)
    fit_memory.fit(assembly)
    assert assembly.runner.budget.tokens == largest and not assembly.engine.checkpointing
    assert assembly.runner.budget.changes == [
        f"token_budget 4096 -> {largest}: more than {largest} tokens at once ran out of memory"
    ]
