"""Presets: the rules by which earlier systems sized their settings, what auto takes, and what wins
over a preset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.command_line import Run
from thumbwheel.core.config import Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.hardware import Gpu, Machine
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.presets import (
    NEUTRAL,
    PRESETS,
    ROW,
    choose,
    preset_settings,
    tier,
    with_preset,
)
from thumbwheel.training.types import TrainConfig


def pc(
    ram: float = 32.0, gpu: float | None = None, kind: str = "cuda", cpu: str = "some CPU"
) -> Machine:
    gpus = () if gpu is None else (Gpu(kind, "some GPU", gpu),)  # type: ignore[arg-type]
    return Machine(cpu, 8, 16, True, False, False, ram, ram, gpus)


@pytest.mark.parametrize(
    ("ram", "rows", "model", "rank", "alpha", "generations"),
    [
        (128, 4, "3B", 16, 32, 8),
        (64, 4, "3B", 16, 32, 8),
        (32, 2, "1.5B", 16, 32, 6),
        (16, 1, "0.5B", 8, 16, 4),
        (8, 1, "0.5B", 4, 8, 2),
    ],
)
def test_sizes_by_memory(
    ram: float, rows: int, model: str, rank: int, alpha: int, generations: int
) -> None:
    assert (tier(pc(ram)).rows, tier(pc(ram)).model) == (rows, model)
    asked = {
        "token_budget": 2 * ROW * rows,
        "lora_r": rank,
        "lora_alpha": alpha,
        "num_generations": generations,
    }
    assert preset_settings("cpu", pc(ram)) == ("cpu", {"device": "cpu"} | asked)


@pytest.mark.parametrize(
    ("memory", "rows", "model", "rank"),
    [(80, 8, "7B", 32), (24, 8, "7B", 32), (16, 4, "3B", 16), (8, 2, "1.5B", 16)],
)
def test_sizes_by_memory_of_the_gpu(memory: float, rows: int, model: str, rank: int) -> None:
    memory_tier = tier(pc(8, gpu=memory))
    assert (memory_tier.rows, memory_tier.model, memory_tier.rank) == (rows, model, rank)


def test_the_ryzen_preset() -> None:
    ryzen = pc(40.0, cpu="AMD Ryzen 9 5950X 16-Core Processor")
    assert choose(ryzen) == "ryzen"
    assert preset_settings("ryzen", ryzen)[1] == {
        "device": "cpu",
        "token_budget": 4 * ROW,
        "lora_r": 16,
        "lora_alpha": 32,
        "num_generations": 6,
    }


@pytest.mark.parametrize(
    ("name", "machine", "values"),
    [
        (
            "small_gpu",
            pc(32, gpu=10),
            {"token_budget": 2 * ROW, "gradient_checkpointing": True, "quantization": "nf4"},
        ),
        ("default", pc(32, gpu=24), {"token_budget": 8 * ROW}),
        (
            "high_quality",
            pc(32, gpu=24),
            {"token_budget": 8 * ROW, "num_train_epochs": 5.0, "lora_r": 32, "lora_alpha": 64},
        ),
        ("quick_test", pc(32), {"max_steps": 50, "batch_size": 4, "probe_prompts": 4}),
        ("apple_silicon", pc(16, gpu=12, kind="mps"), {"token_budget": 2 * ROW, "device": "mps"}),
    ],
)
def test_what_the_other_presets_set(name: str, machine: Machine, values: dict[str, Any]) -> None:
    assert preset_settings(name, machine) == (name, values)


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (pc(), "cpu"),
        (pc(16, cpu="AMD Ryzen 9 5900X"), "cpu"),
        (pc(64, gpu=10), "small_gpu"),
        (pc(64, gpu=16), "default"),
        (pc(64, gpu=24, kind="rocm"), "default"),
        (pc(16, gpu=12, kind="mps"), "apple_silicon"),
        (Machine("?", None, 4, None, None, None, None, None, None), "cpu"),
    ],
)
def test_auto_looks_at_the_machine_and_changes_no_result(machine: Machine, name: str) -> None:
    chosen, values = preset_settings("auto", machine)
    assert chosen == name and set(values) <= NEUTRAL


def test_the_setting_knows_every_preset() -> None:
    assert set(get_args(TrainConfig.model_fields["preset"].annotation)) == {"auto", *PRESETS}


@pytest.mark.parametrize("method", ALGORITHMS.names())
@pytest.mark.parametrize("name", ["auto", *PRESETS])
def test_every_preset_suits_every_method(method: str, name: str) -> None:
    config, line = with_preset(ALGORITHMS.get(method).Config(preset=name), pc(64, gpu=24))
    assert line.startswith("preset ")
    stored = type(config)(**config.model_dump())
    assert with_preset(stored, pc(8))[0] == stored, (
        "what a run was started with stays, on any machine"
    )


def test_what_is_given_wins_over_a_preset() -> None:
    config = Sources(
        {"train": {"dpo": {"preset": "high_quality", "lora_r": 8}}},
        "",
        {"THUMBWHEEL_TRAIN__DPO__TOKEN_BUDGET": "512"},
    ).load(ALGORITHMS.get("dpo").Config, "train.dpo", {"lora_alpha": 4})
    merged, line = with_preset(config, pc(64, gpu=24))
    assert (merged.lora_r, merged.lora_alpha, merged.token_budget, merged.num_train_epochs) == (
        8,
        4,
        512,
        5.0,
    )
    assert line == "preset high_quality: num_train_epochs 5.0"
    with pytest.raises(ConfigError, match="preset"):
        Sources({}, "", {}).load(
            ALGORITHMS.get("dpo").Config, "train.dpo", {"preset": "hihg_quality"}
        )


def test_the_command_says_what_is_here_and_what_is_chosen(
    command_line: Run, tmp_path: Path
) -> None:
    code, out, _ = command_line("hardware", "--json")
    output = json.loads(out)
    assert code == 0 and set(output["presets"]) == {"auto", *PRESETS} and output["auto"] in PRESETS
    assert (
        output["machine"]["disk_free_gb"] > 0
        and output["machine"]["ram_gb"] >= output["machine"]["available_gb"] > 0
    )
    _, out, _ = command_line("hardware")
    assert "AVX2" in out and "apple_silicon" in out
    assert not (tmp_path / "home").exists(), "looking at the machine makes no home"
