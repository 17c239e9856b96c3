"""Settings of the n3 server mean in a training here what they mean there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from test_dialects import client_of, linked_base, post
from tests.models.tiny_models import tiny_base, tiny_tokenizer
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.compat.n3 import (
    DatasetConfig,
    RewardModel,
    RewardModelConfig,
    RLHFTrainer,
    TrainingConfig,
)
from thumbwheel.compat.n3.jobs import TrainPolicySpec
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.api.routers import dialect_router
from thumbwheel.server.application import api_application

ROWS = [
    {"prompt": f"Question {number}?", "response": f"Answer {number}.", "score": number / 30}
    for number in range(30)
]
LONG = "Please read all of this first. " * 12
"""Some 370 tokens of the tiny tokenizer, which has one for each letter."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def only_run(home: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the settings and the metrics of the only run of a home."""
    (folder,) = (home / "runs").iterdir()
    spec = json.loads((folder / "spec.json").read_text())
    return spec["config"], lines(folder / "metrics.jsonl")


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "warmup"), [(10, 8, 3, 2), (50, 2, 1, 7), (82, 2, 1, 14)]
)
def test_warm_up_is_a_number_of_steps(rows: int, batch: int, epochs: int, warmup: int) -> None:
    """Ten rows in batches of eight are two steps an epoch; 7 / 25 * 25 is more than 7 to a
    computer."""
    import torch

    from thumbwheel.training.algorithms.reward import RewardMethodConfig
    from thumbwheel.training.optimizer import prepare
    from thumbwheel.training.order import Order

    options = RewardModelConfig(
        batch_size=batch, num_epochs=epochs, warmup_steps=warmup, learning_rate=1.0
    ).options(rows)
    config = RewardMethodConfig(**options)
    trained = prepare(torch.nn.Linear(2, 1), config, Order.of(rows, config).steps)
    rates = []
    for _ in range(warmup + 1):
        rates.append(trained.scheduler.get_last_lr()[0])
        trained.optimizer.step()
        trained.scheduler.step()
    assert rates[:warmup] == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert rates[warmup] < 1


@pytest.mark.slow
def test_every_setting_of_both_stages_is_one_of_the_training(tiny_model: Path) -> None:
    judge = RewardModelConfig(
        str(tiny_model),
        lora_dropout=0.3,
        learning_rate=0.01,
        batch_size=8,
        num_epochs=2,
        warmup_steps=2,
        max_length=100,
    )
    config = TrainingConfig(
        str(tiny_model),
        lora_dropout=0.2,
        learning_rate=0.002,
        batch_size=4,
        mini_batch_size=2,
        gradient_accumulation_steps=2,
        ppo_epochs=3,
        init_kl_coef=0.1,
        target_kl=None,
        lam=0.9,
        cliprange=0.3,
        vf_coef=0.2,
        max_new_tokens=8,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        max_steps=1,
        dataset=DatasetConfig(max_length=100, max_prompt_length=48),
        reward_model_config=judge,
    )
    trainer = RLHFTrainer(config)
    trainer.train(ROWS, "out")
    reward, learned = only_run(Path("out/reward_model_training/home"))
    # 24 of the 30 rows are trained on, in three steps an epoch
    rates = [line["learning_rate"] for line in learned if "learning_rate" in line]
    assert len(rates) == 6
    assert rates[:2] == pytest.approx([0.005, 0.01]) and rates[2] < 0.01
    assert (reward["lora_dropout"], reward["max_length"]) == (0.3, 100)
    ppo, _ = only_run(Path("out/home"))
    expected = {
        "lora_dropout": 0.2,
        "learning_rate": 0.002,
        "batch_size": 8,
        "num_mini_batches": 2,
        "num_ppo_epochs": 3,
        "init_kl_coef": 0.1,
        "kl_target_per_token": None,
        "lam": 0.9,
        "cliprange": 0.3,
        "vf_coef": 0.2,
        "max_completion_length": 8,
        "max_length": 56,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "max_steps": 1,
    }
    assert {name: ppo[name] for name in expected} == expected

    # their file says with which dropout the reward model was trained, and it is read again
    written = json.loads(Path("out/reward_model/config.json").read_text())
    assert written["lora_dropout"] == 0.3
    (Path("out/reward_model") / "reward.json").unlink()
    again = RewardModel.load_pretrained("out/reward_model")
    assert again.config.lora_dropout == 0.3


@pytest.mark.slow
def test_a_longer_prompt_is_cut_to_its_end(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainingConfig(
        str(tiny_model),
        batch_size=2,
        max_steps=1,
        max_new_tokens=8,
        dataset=DatasetConfig(max_length=600, max_prompt_length=64),
    )
    config.reward_model_config.num_epochs = 1
    rows = [row | {"prompt": f"{LONG} {row['prompt']}"} for row in ROWS]
    result = RLHFTrainer(config).train(rows, "out")
    assert result.training_steps == 1
    assert "30 prompts cut to the last 64 tokens" in capsys.readouterr().err
    read = [
        line["input"] for line in lines(Path("out/feedback.thumbwheel.jsonl")) if "input" in line
    ]
    for row, prompt in zip(rows, read, strict=True):
        assert row["prompt"].endswith(prompt) and prompt.endswith("?")
        assert 40 < len(tiny_tokenizer()(prompt)["input_ids"]) <= 64


@pytest.fixture
def client(empty_ws: Workspace) -> Iterator[TestClient]:
    with client_of(api_application([dialect_router(DIALECTS.names())]), empty_ws) as client:
        yield client


@pytest.mark.slow
def test_a_client_may_send_long_texts(
    client: TestClient, empty_ws: Workspace, tmp_path: Path
) -> None:
    """No client can name how long a text may be, so ours are the limits."""
    linked_base(empty_ws, tiny_base(tmp_path / "base", max_position_embeddings=2048))
    for number in range(12):
        answer = "It is so. " * 20 + str(number)
        body = post(number, prompt=f"{LONG} Question {number}?", response=answer)
        assert client.post("/api/policies/feedback/desk", json=body).is_success
    order = {"maxSteps": 1, "baseModel": "small"}
    answer = client.post("/api/policies/train_policy/desk", json=order)
    assert answer.status_code == 200, answer.text
    assert answer.json()["feedbackCount"] == 12


def test_no_text_is_longer_than_the_base_reads() -> None:
    spec = TrainPolicySpec(agent="desk", base="small")
    assert spec.config().reward_model().max_length == 1024
    short = spec.config(256)
    assert short.reward_model().max_length == short.options(Path())["max_length"] == 256
