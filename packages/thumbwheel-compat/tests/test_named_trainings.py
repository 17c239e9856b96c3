"""Trainings that docs/40-migrating.md names, run as they stand there on a tiny base: what a line
sets is a setting of its run. Each takes one step, by the environment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from test_migrating import WORDS
from tests.command_line import Run

pytestmark = pytest.mark.slow

Named = Callable[..., Any]
AGENT = "filer"
QUICK = {
    "MAX_STEPS": "1",
    "MIN_ROWS": "2",
    "MAX_COMPLETION_LENGTH": "8",
    "NUM_GENERATIONS": "2",
    "REQUIRE_GAIN": "false",
    "REPLAY_WEIGHT": "0",
}
METHODS = ("sft", "dpo", "kto", "grpo", "grpo_offline", "reward", "ppo")
LINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "train dpo --agent filer --base BASE --save-total-limit 2",
        {"save_total_limit": 2},
    ),
    (
        "train dpo --agent A --base BASE --memory-limit-gb 12 --gradient-checkpointing",
        {"memory_limit_gb": 12.0, "gradient_checkpointing": True},
    ),
    ("train dpo --agent A --base BASE --beta 0.2", {"beta": 0.2}),
    ("train dpo --agent A --base BASE --preset auto", {"preset": "auto", "lora_r": 16}),
    ("train kto --agent A --base BASE --preset auto", {"preset": "auto", "lora_r": 16}),
    ("train dpo --agent prioritizer --base BASE --max-length 1280", {"max_length": 1280}),
    ("train sft --agent A --base BASE", {"max_length": 1024}),
    ("train grpo_offline --agent A --base BASE", {"beta": 0.0}),
)
JUDGED: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "train ppo --agent A --base BASE --reward-model rm1 --init-kl-coef 0.2 --lam 0.95 "
        "--cliprange 0.2 --vf-coef 0.1 --token-budget 512",
        {"init_kl_coef": 0.2, "lam": 0.95, "cliprange": 0.2, "vf_coef": 0.1, "token_budget": 512},
    ),
    (
        "train ppo --agent A --base BASE --batch-size 8 --dtype bfloat16 --lora-targets all-linear",
        {"batch_size": 8, "dtype": "bfloat16", "lora_targets": "all-linear"},
    ),
    ("train ppo --agent A --base BASE --reward-model rm1 --save-steps 10", {"save_steps": 10}),
    (
        "train ppo --agent A --base BASE --reward-model rm1 --report-to tensorboard",
        {"report_to": ["tensorboard"]},
    ),
    ("train grpo --agent A --base BASE --preset ryzen", {"lora_r": 16, "lora_alpha": 32}),
    ("train grpo --agent A --base BASE --curriculum", {"curriculum": True}),
)


def world() -> list[dict[str, Any]]:
    """Return two answers to each of thirty questions, one scored high and one low."""
    lines: list[dict[str, Any]] = []
    for number in range(60):
        good = number % 2 == 0
        trace = {"type": "trace", "id": f"t{number}", "input": f"Where is case {number // 2}?"}
        score = {"type": "feedback", "kind": "score", "value": 0.9 if good else 0.2, "rater": "ann"}
        lines.append(trace | {"output": "In the folder." if good else "No idea."})
        lines.append(score | {"target": {"trace": f"t{number}"}, "scale": {"min": 0, "max": 1}})
    return lines


@pytest.fixture
def named(
    command_line: Run, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Named:
    """Return a function that runs a command of the page and returns its JSON."""
    for method in METHODS:
        for name, value in QUICK.items():
            monkeypatch.setenv(f"THUMBWHEEL_TRAIN__{method.upper()}__{name}", value)
    for name in ("MAX_COMPLETION_LENGTH", "NUM_GENERATIONS"):
        for method in ("sft", "dpo", "kto", "grpo_offline", "reward"):
            monkeypatch.delenv(f"THUMBWHEEL_TRAIN__{method.upper()}__{name}")
    for method in ("grpo", "ppo", "reward"):
        monkeypatch.delenv(f"THUMBWHEEL_TRAIN__{method.upper()}__REPLAY_WEIGHT")
    (tmp_path / "world.jsonl").write_text("".join(json.dumps(row) + "\n" for row in world()))
    assert command_line("import", "jsonl", "world.jsonl", "--agent", AGENT)[0] == 0

    def run(command: str, **names: str) -> Any:
        assert f"thumbwheel {command}" in WORDS, f"the page does not name {command}"
        values = {"A": AGENT, "prioritizer": AGENT, "BASE": str(tiny_model)} | names
        arguments = [values.get(part, part) for part in shlex.split(command)]
        code, out, err = command_line(*arguments, "--json")
        assert code == 0, (command, err)
        return json.loads(out)

    return run


def config_of(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    spec = json.loads((folder / "home/runs" / result["run_id"] / "spec.json").read_text())
    config: dict[str, Any] = spec["config"]
    return config


def test_lines_over_recorded_answers(named: Named, tmp_path: Path) -> None:
    for command, expected in LINES:
        result = named(command)
        config = config_of(tmp_path, result)
        assert {name: config[name] for name in expected} == expected, command
        assert result["version"], command
        assert result["metrics"]["steps"] == 1

    (tmp_path / "bench.yaml").write_text(
        "id: basics\ntasks:\n"
        "  - {id: greet, prompt: Greet Ada., checks: [{type: not_contains, text: zzzz}]}\n"
        "  - {id: short, prompt: Be short., checks: [{type: char_count_lte, n: 100000}]}\n"
    )
    evaluate = "evaluate VERSION --agent A --suite benchmark --benchmark FILE"
    measured = named(evaluate, VERSION="v1", FILE="bench.yaml")
    assert "benchmark" in json.dumps(measured)


def test_lines_over_a_reward_model(
    named: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (
        "train reward --agent A --base BASE --loss-type regression --max-grad-norm 1 "
        "--warmup-ratio 0.1"
    )
    trained = named(command)
    assert trained["reward_model"] == "rm1"
    config = config_of(tmp_path, trained)
    expected = {"loss_type": "regression", "max_grad_norm": 1.0, "warmup_ratio": 0.1}
    assert {name: config[name] for name in expected} == expected

    (listed,) = named("reward-model list --agent A")
    assert listed["name"] == "rm1"
    shown = named("reward-model show rm1 --agent A")
    assert shown["name"] == "rm1" and "mae" in json.dumps(shown)
    scored = named(
        "reward-model score rm1 --agent A --prompt TEXT --answer TEXT", TEXT="In the folder."
    )
    assert isinstance(scored["score"] if isinstance(scored, dict) else scored[0]["score"], float)

    # where a line names no judge, the settings do
    for method in ("ppo", "grpo"):
        monkeypatch.setenv(f"THUMBWHEEL_TRAIN__{method.upper()}__REWARD_MODEL", "rm1")
    for command, expected in JUDGED:
        if command.endswith("tensorboard") and find_spec("tensorboard") is None:
            continue
        result = named(command)
        config = config_of(tmp_path, result)
        assert {name: config[name] for name in expected} == expected, command
        assert config["reward_model"], command
    measured = named("evaluate VERSION --agent A --suite reward --reward-model rm1", VERSION="v1")
    assert measured


def test_a_classifying_reward_model_says_how_sure_it_is(named: Named) -> None:
    trained = named("train reward --agent A --base BASE --loss-type classification")
    shown = named("reward-model show rm1 --agent A")
    assert trained["reward_model"] == "rm1" and "accuracy" in json.dumps(shown)
