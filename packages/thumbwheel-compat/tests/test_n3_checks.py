"""The checks of the n3 server's own tests and guides, one test each under its name: fifteen of
their package, eight of their API, five of their guides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch.utils.data import DataLoader
from transformers import AutoModel

from test_dialects import client_of, linked_base, post
from test_n3_python import FEEDBACKS, SCORES, quick, settings
from tests.models.tiny_models import tiny_tokenizer
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.compat import n3
from thumbwheel.compat.n3 import (
    FeedbackDataset,
    FeedbackExample,
    RewardModel,
    RewardModelConfig,
    RLHFTrainer,
    TrainingConfig,
    TrainingResult,
    prepare_feedback_dataset,
    prepare_ppo_dataset,
)
from thumbwheel.core.errors import ConfigError, Conflict, DataError
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.api.routers import dialect_router
from thumbwheel.server.application import api_application

TRAIN = "/api/policies/train_policy/desk"


def dataset(**options: Any) -> FeedbackDataset:
    return FeedbackDataset(FEEDBACKS, tiny_tokenizer(), max_length=64, **options)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))


# Their package


def test_dataset_creation() -> None:
    item = dataset()[0]
    assert len(dataset()) == 10
    assert set(item) == {"input_ids", "attention_mask", "score", "prompt", "response"}
    assert item["input_ids"].shape == item["attention_mask"].shape == (64,)


def test_score_normalization() -> None:
    rows = [post(number) for number in range(5)]
    scored = FeedbackDataset(rows, tiny_tokenizer())
    values = [scored[number]["score"].item() for number in range(5)]
    assert values == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert [row["score"] for row in rows] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])


def test_no_normalization() -> None:
    raw = dataset(normalize_scores=False)
    assert [raw[number]["score"].item() for number in range(10)] == pytest.approx(list(SCORES))


def test_prepare_feedback_dataset() -> None:
    train, validation = prepare_feedback_dataset(FEEDBACKS, tiny_tokenizer(), 64, True, 0.8)
    assert (len(train), len(validation)) == (8, 2)


def test_prepare_ppo_dataset() -> None:
    prompts = prepare_ppo_dataset(FEEDBACKS, tiny_tokenizer(), max_prompt_length=32)
    assert len(prompts) == 10 and prompts[0]["input_ids"].shape == (32,)


def put_together(base: Path, **changes: Any) -> RewardModel:
    config = replace(quick(base), **changes)
    return RewardModel(AutoModel.from_pretrained(base), config)


def test_reward_model_creation(tiny_model: Path) -> None:
    model = put_together(tiny_model)
    assert hasattr(model, "base_model") and hasattr(model, "reward_head")
    adapted = [name for name in model.state_dict() if "lora" in name]
    assert adapted and not [
        name for name in put_together(tiny_model, use_lora=False).state_dict() if "lora" in name
    ]


def test_reward_model_forward(tiny_model: Path) -> None:
    ids, mask = torch.randint(0, 90, (2, 64)), torch.ones(2, 64, dtype=torch.long)
    assert put_together(tiny_model)(ids, mask).shape == (2,)


def test_reward_model_training(tiny_model: Path) -> None:
    """Its own method, with DataLoaders: the errors of every epoch, and smaller ones in the end."""
    torch.manual_seed(0)
    train, validation = prepare_feedback_dataset(FEEDBACKS, tiny_tokenizer(), 64)
    model = put_together(tiny_model, num_epochs=8, learning_rate=0.01, warmup_steps=2)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    history = model.train_reward_model(
        DataLoader(train, batch_size=4, shuffle=True), DataLoader(validation, batch_size=4)
    )
    assert {name: len(values) for name, values in history.items()} == dict.fromkeys(
        ("train_loss", "val_loss", "train_mae", "val_mae"), 8
    )
    assert min(history["train_loss"][-3:]) < history["train_loss"][0] / 2
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("lora" in name for name in changed) and any("reward_head" in n for n in changed)
    assert all("lora" in name or "reward_head" in name for name in changed), "the base is frozen"

    # what it learned is what it says, and the same again
    item = train[0]
    ids, mask = item["input_ids"].unsqueeze(0), item["attention_mask"].unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(model(ids, mask), model(ids, mask)), "dropout is for the training alone"
    without = put_together(tiny_model).train_reward_model(DataLoader(train, batch_size=4))
    assert without["val_loss"] == [] and len(without["train_loss"]) == 1
    with pytest.raises(DataError, match="no batch"):
        put_together(tiny_model).train_reward_model(DataLoader(FeedbackDataset([])))


def test_reward_model_save_load(tiny_model: Path, tmp_path: Path) -> None:
    model = put_together(tiny_model, lora_dropout=0.1)
    model.train_reward_model(DataLoader(dataset(), batch_size=5))
    model.save_pretrained(tmp_path / "saved")
    again = RewardModel.load_pretrained(tmp_path / "saved", device="cpu")
    ids, mask = torch.randint(0, 90, (2, 64)), torch.ones(2, 64, dtype=torch.long)
    with torch.no_grad():
        assert torch.allclose(model(ids, mask), again(ids, mask), atol=1e-5)


def test_trainer_creation(tiny_model: Path) -> None:
    trainer = RLHFTrainer(settings(tiny_model))
    assert trainer.config == settings(tiny_model)
    assert trainer.tokenizer is None and trainer.reward_model is None


def test_estimate_training(tiny_model: Path) -> None:
    estimate = RLHFTrainer(settings(tiny_model)).estimate_training(FEEDBACKS)
    assert (estimate["feedback_count"], estimate["estimated_steps"]) == (10, 2)
    assert estimate["score_mean"] == pytest.approx(sum(SCORES) / 10)
    assert estimate["estimated_time_minutes"] > 0
    assert estimate["model_config"]["lora_r"] == 8


def test_prepare_models(tiny_model: Path) -> None:
    trainer = RLHFTrainer(settings(tiny_model))
    trainer.prepare_models()
    assert trainer.tokenizer.pad_token is not None


@pytest.mark.slow
def test_train_reward_model_from_feedback(tiny_model: Path, tmp_path: Path) -> None:
    trainer = RLHFTrainer(settings(tiny_model))
    trainer.prepare_models()
    model = trainer.train_reward_model_from_feedback(FEEDBACKS, tmp_path / "out")
    assert trainer.reward_model is model and model.validation["n"] == 2
    assert isinstance(model.score("What is the beta?", "It is so."), float)
    with pytest.raises(Conflict, match="it is trained"):
        model.train_reward_model(DataLoader(dataset(), batch_size=5))


def test_prepare_policy_model(tiny_model: Path) -> None:
    policy = RLHFTrainer(settings(tiny_model)).prepare_policy_model()
    logits, _, values = policy(torch.randint(0, 90, (2, 7)))
    assert hasattr(policy, "v_head") and logits.shape[:2] == values.shape == (2, 7)


@pytest.fixture(scope="module")
def trained(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingResult, Path]:
    """A whole training, and where its files lie."""
    output = tmp_path_factory.mktemp("whole") / "models" / "my_agent" / "v1"
    return RLHFTrainer(settings(tiny_model)).train(feedbacks=FEEDBACKS, output_dir=output), output


@pytest.mark.slow
def test_full_training(trained: tuple[TrainingResult, Path]) -> None:
    result, output = trained
    assert (result.feedback_count, result.training_steps) == (10, 2)
    assert Path(result.model_path) == output / "policy"
    assert (output / "policy" / "config.json").is_file()
    for name in ("base_model", "reward_head.pt", "config.json"):
        assert (output / "reward_model" / name).exists(), name


# Their API


@pytest.fixture(scope="module")
def api() -> FastAPI:
    return api_application([dialect_router(DIALECTS.names())])


@pytest.fixture
def client(api: FastAPI, empty_ws: Workspace) -> Iterator[TestClient]:
    with client_of(api, empty_ws) as client:
        yield client


def submitted(client: TestClient, count: int) -> None:
    for number in range(count):
        answer = client.post("/api/policies/feedback/desk", json=post(number))
        assert answer.status_code == 200, answer.text


def test_submit_feedback(client: TestClient) -> None:
    content = client.post("/api/policies/feedback/desk", json=post(0, score=0.9)).json()
    assert (content["agentId"], content["score"]) == ("desk", 0.9)
    assert content["id"] and content["createdAt"]


def test_submit_feedback_invalid_score(client: TestClient) -> None:
    for score in (1.5, -0.1, "good", None):
        answer = client.post("/api/policies/feedback/desk", json=post(0, score=score))
        assert answer.status_code == 422 and "score" in answer.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (post(0, response=""), "response"),
        (post(0, score=1.5), "score"),
        ({"response": "a", "score": 0.5, "runId": "r"}, "prompt"),
        ([post(0), post(1, score=2)], "score"),
        ([], None),
    ],
)
def test_a_refused_submission_names_its_field(
    client: TestClient, body: Any, field: str | None
) -> None:
    answer = client.post("/api/policies/feedback/desk", json=body)
    assert answer.status_code == 422 and "FeedbackSubmission" not in answer.text
    assert (field or "the body") in answer.json()["what"]


def test_a_body_that_is_no_json(client: TestClient) -> None:
    answer = client.post(
        "/api/feedback/desk", content=b"{nope", headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["what"] == "the body" and "it is not JSON" in answer.json()["why"]


def test_list_policies_empty(client: TestClient) -> None:
    answer = client.get("/api/policies/desk")
    assert (answer.status_code, answer.json()) == (200, [])


def test_train_policy_insufficient_feedback(client: TestClient) -> None:
    submitted(client, 5)
    answer = client.post(TRAIN, json={})
    assert answer.status_code == 400
    assert answer.json()["detail"] == "Insufficient feedback: 5 samples (minimum 10 required)"


def test_train_policy_dry_run(client: TestClient, empty_ws: Workspace, tiny_model: Path) -> None:
    linked_base(empty_ws, tiny_model)
    submitted(client, 15)
    order = {"dryRun": True, "maxSteps": 100, "baseModel": "small"}
    figures = client.post(TRAIN, json=order).json()
    assert (figures["status"], figures["feedbackCount"]) == ("dry_run", 15)
    assert figures["estimatedSteps"] == 100
    assert (round(figures["scoreMean"], 4), round(figures["scoreStd"], 4)) == (0.7, 0.1414)
    assert client.get("/api/policies/desk").json() == []


@pytest.fixture(scope="module")
def served_training(
    api: FastAPI, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Two trainings of one agent over their API, with more feedback before the second; the answers
    and the lists between."""
    from thumbwheel.core.config import Home, Sources

    home = Home(tmp_path_factory.mktemp("served") / "home")
    order = {"maxSteps": 1, "baseModel": "small"}
    with Workspace.open(home, Sources({}, "", {})) as ws, client_of(api, ws) as client:
        linked_base(ws, tiny_model)
        submitted(client, 10)
        first = client.post(TRAIN, json=order)
        listed = client.get("/api/policies/desk").json()
        for number in range(10, 12):
            assert client.post("/api/policies/feedback/desk", json=post(number)).is_success
        second = client.post(TRAIN, json=order)
        return {
            "first": first,
            "listed": listed,
            "second": second,
            "last": client.get("/api/policies/desk").json(),
        }


@pytest.mark.slow
def test_train_policy_actual_training(served_training: dict[str, Any]) -> None:
    answer = served_training["first"]
    assert answer.status_code == 200, answer.text
    policy = answer.json()
    assert (policy["status"], policy["version"], policy["feedbackCount"]) == ("trained", "v1", 10)
    assert Path(policy["modelPath"]).parts[-4:] == ("models", "desk", "v1", "policy")
    assert policy["trainingSteps"] == 1


@pytest.mark.slow
def test_list_policies_with_data(served_training: dict[str, Any]) -> None:
    (policy,) = served_training["listed"]
    assert policy["version"] == "v1" and policy["agentId"] == "desk"
    assert policy["metrics"]["feedbackCount"] == 10
    assert policy["trainedOn"] == policy["metrics"]


@pytest.mark.slow
def test_complete_rlhf_workflow(served_training: dict[str, Any]) -> None:
    assert served_training["second"].json()["feedbackCount"] == 12
    assert [policy["version"] for policy in served_training["last"]] == ["v2", "v1"]


# Their guides


def test_package_exports() -> None:
    for name in (
        "RLHFTrainer",
        "TrainingConfig",
        "TrainingResult",
        "DatasetConfig",
        "RewardModel",
        "RewardModelConfig",
        "train_reward_model",
        "FeedbackDataset",
        "prepare_feedback_dataset",
        "prepare_ppo_dataset",
    ):
        assert getattr(n3, name), name


def test_saved_datasets_are_loaded_without_normalising_again(tmp_path: Path) -> None:
    n3.save_dataset(dataset(), tmp_path / "rows.json")
    content = json.loads((tmp_path / "rows.json").read_text())
    assert set(content) == {"examples", "max_length"}
    assert set(content["examples"][0]) == {"prompt", "response", "score", "run_id", "notes"}
    loaded = n3.load_dataset(tmp_path / "rows.json", tiny_tokenizer())
    assert [loaded.score(n) for n in range(10)] == [dataset().score(n) for n in range(10)]
    assert FeedbackExample("q", "a", 1.0).text == "q\n\na"


@pytest.mark.parametrize(
    "preset",
    [
        {"max_steps": 50, "batch_size": 4, "learning_rate": 1e-4},
        {"base_model": "gpt2-medium", "max_steps": 5000, "batch_size": 16, "lora_r": 16},
        {"lora_r": 4, "batch_size": 4, "mini_batch_size": 2, "gradient_accumulation_steps": 4},
        {"base_model": "gpt2-large", "use_lora": False, "batch_size": 32},
    ],
)
def test_presets_of_the_guide(preset: dict[str, Any], tmp_path: Path) -> None:
    """Each is a setting of ours, and what it computes at once is what theirs does."""
    options = TrainingConfig(**preset).options(tmp_path)
    accumulation = preset.get("gradient_accumulation_steps", 1)
    assert options["batch_size"] == preset["batch_size"] * accumulation
    assert options["tuning"] == ("full" if preset.get("use_lora") is False else "lora")
    assert RewardModelConfig().options(100)["max_length"] == 512


def test_mixed_precision(tmp_path: Path) -> None:
    config = TrainingConfig(device="cuda", batch_size=32, mixed_precision="fp16")
    assert config.options(tmp_path)["dtype"] == "bfloat16"
    assert TrainingConfig().options(tmp_path)["dtype"] == "auto"
    with pytest.raises(ConfigError, match="fp8"):
        TrainingConfig(mixed_precision="fp8").options(tmp_path)


def test_a_reward_model_of_ones_own(tiny_model: Path) -> None:
    class CustomRewardModel(RewardModel):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return super().forward(input_ids, attention_mask) * 2.0 - 1.0

    ids, mask = torch.randint(0, 90, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    plain = put_together(tiny_model)
    custom = CustomRewardModel(AutoModel.from_pretrained(tiny_model), quick(tiny_model))
    custom.load_state_dict(plain.state_dict())
    plain.eval()
    custom.eval()
    with torch.no_grad():
        assert torch.allclose(custom(ids, mask), plain(ids, mask) * 2.0 - 1.0, atol=1e-6)


@pytest.mark.slow
def test_a_reward_model_is_used_again(
    trained: tuple[TrainingResult, Path], tiny_model: Path, tmp_path: Path
) -> None:
    _, output = trained
    result = RLHFTrainer(settings(tiny_model)).train(
        FEEDBACKS, tmp_path / "again", reward_model_path=output / "reward_model"
    )
    assert not (tmp_path / "again" / "reward_model_training").exists(), "none was trained"
    assert result.reward_model_path is None, "a result names what it made, as theirs does"
    assert result.training_steps == 2
    judge = tmp_path / "again" / "reward_model" / "reward_head.pt"
    assert (
        torch.load(judge, weights_only=True).keys()
        == torch.load(output / "reward_model" / "reward_head.pt", weights_only=True).keys()
    )


@pytest.mark.slow
def test_the_history_is_written_as_json(trained: tuple[TrainingResult, Path]) -> None:
    result, output = trained
    content = json.loads((output / "training_results.json").read_text())
    assert content == result.to_dict()
    for name in ("reward_history", "kl_history", "loss_history"):
        assert len(content[name]) == 2, name
    assert TrainingResult.load(output / "training_results.json") == result
