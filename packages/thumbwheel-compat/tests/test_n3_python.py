"""Scripts of the n3 server's RLHF package: what they do with datasets, a reward model and the
trainer, on the ten samples of theirs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_tokenizer
from thumbwheel.compat.n3 import (
    DatasetConfig,
    FeedbackDataset,
    FeedbackExample,
    PPODataset,
    RewardModel,
    RewardModelConfig,
    RewardModelHead,
    RLHFTrainer,
    TrainingConfig,
    TrainingResult,
    prepare_feedback_dataset,
    prepare_ppo_dataset,
    train_reward_model,
)
from thumbwheel.core.errors import Conflict

SCORES = (0.9, 1.0, 0.3, 0.95, 1.0, 0.9, 0.2, 0.8, 1.0, 0.7)
NAMES = ("alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta", "iota", "kappa")
FEEDBACKS = [
    {
        "prompt": f"What is the {name}?",
        "response": f"It is {name[::-1]}.",
        "score": score,
        "run_id": f"run_{number}",
        "notes": "so",
    }
    for number, (name, score) in enumerate(zip(NAMES, SCORES, strict=True))
]


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))


class TestDatasets:
    def test_items_are_tensors_with_their_keys(self, tokenizer) -> None:
        import torch
        from torch.utils.data import DataLoader

        dataset = FeedbackDataset(
            [FeedbackExample(**feedback) for feedback in FEEDBACKS], tokenizer, max_length=128
        )
        item = dataset[0]
        assert len(dataset) == 10
        assert set(item) == {"input_ids", "attention_mask", "score", "prompt", "response"}
        assert item["input_ids"].shape == item["attention_mask"].shape == (128,)
        assert isinstance(item["score"], torch.Tensor)
        batch = next(iter(DataLoader(dataset, batch_size=4)))
        assert batch["input_ids"].shape == (4, 128) and batch["score"].shape == (4,)
        values = [dataset[number]["score"].item() for number in range(10)]
        assert (min(values), max(values)) == (-1.0, 1.0)
        raw = FeedbackDataset(FEEDBACKS, tokenizer, max_length=128, normalize_scores=False)
        assert [raw[n]["score"].item() for n in range(10)] == pytest.approx(list(SCORES))

    def test_an_example_can_be_changed(self) -> None:
        example = FeedbackExample("q", "a", 0.5, "r1")
        example.score = 0.7
        assert FeedbackDataset([example]).examples[0].score == 0.7

    @pytest.mark.parametrize(("share", "sizes"), [(0.8, (8, 2)), (0.5, (5, 5)), (1, (10, 0))])
    def test_shares_are_exact_and_balanced(
        self, share: float, sizes: tuple[int, int], tokenizer
    ) -> None:
        train, validation = prepare_feedback_dataset(
            FEEDBACKS, tokenizer, max_length=128, train_split=share
        )
        assert (len(train), len(validation)) == sizes
        if len(validation) == 2:
            low, high = sorted(example.score for example in validation.examples)
            assert low < 0.9 <= high
        turned = prepare_feedback_dataset(FEEDBACKS[::-1], tokenizer, train_split=share)[1]
        assert {e.prompt for e in turned.examples} == {e.prompt for e in validation.examples}

    def test_rows_of_one_prompt_stay_together_and_a_single_row_is_trained_on(self) -> None:
        rows = [{**FEEDBACKS[n // 3], "response": str(n)} for n in range(12)]
        train, validation = prepare_feedback_dataset(rows, train_split=0.9)
        assert (len(train), len(validation)) == (12, 0), "no prompt has two rows or fewer"
        train, validation = prepare_feedback_dataset(rows)
        assert (len(train), len(validation)) == (9, 3)
        assert len({example.prompt for example in validation.examples}) == 1
        assert len(prepare_feedback_dataset(FEEDBACKS[:1])[0]) == 1

    def test_prompts_of_ppo(self, tokenizer) -> None:
        prompts = prepare_ppo_dataset(FEEDBACKS, tokenizer, max_prompt_length=64)
        assert len(prompts) == 10
        assert prompts[0]["input_ids"].shape == prompts[0]["attention_mask"].shape == (64,)
        assert prompts[0]["prompt"] == FEEDBACKS[0]["prompt"]
        examples = [FeedbackExample(**feedback) for feedback in FEEDBACKS]
        assert len(PPODataset(examples, tokenizer, 64)) == 10


def quick(base: Path) -> RewardModelConfig:
    return RewardModelConfig(
        base_model=str(base), use_lora=True, batch_size=2, num_epochs=1, device="cpu"
    )


class TestRewardModel:
    def test_one_that_is_put_together(self, tiny_model: Path, tmp_path: Path) -> None:
        import torch
        from transformers import AutoModel

        model = RewardModel(AutoModel.from_pretrained(tiny_model), quick(tiny_model))
        assert hasattr(model, "base_model") and hasattr(model, "reward_head")
        ids, mask = torch.randint(0, 90, (2, 64)), torch.ones(2, 64, dtype=torch.long)
        assert model(ids, mask).shape == (2,)
        with pytest.raises(Conflict, match="not been trained"):
            model.score("q", "a")
        with torch.no_grad():
            model.eval()
            model.save_pretrained(tmp_path / "saved")
            again = RewardModel.load_pretrained(tmp_path / "saved", device="cpu")
            assert torch.allclose(model(ids, mask), again(ids, mask), atol=1e-5)

    def test_the_head_reads_the_last_token_that_counts(self) -> None:
        import torch

        head = RewardModelHead(4, dropout=0.0)
        states = torch.randn(2, 5, 4)
        mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        expected = torch.stack([head.linear(states[0, 2]), head.linear(states[1, 4])]).squeeze(-1)
        assert torch.allclose(head(states, mask), expected)
        assert head(states).shape == (2,)

    @pytest.mark.slow
    def test_short_examples_do_not_shorten_what_it_reads(self, tiny_model: Path, tokenizer) -> None:
        train, validation = prepare_feedback_dataset(FEEDBACKS, tokenizer, max_length=32)
        model = train_reward_model(train, validation, quick(tiny_model), tokenizer)
        assert math.isfinite(model.score("What is the beta?", "x" * 200))

    @pytest.mark.slow
    def test_training_saving_and_loading(self, tiny_model: Path, tokenizer, tmp_path: Path) -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoModel

        train, validation = prepare_feedback_dataset(
            FEEDBACKS, tokenizer, max_length=128, train_split=0.8
        )
        model = train_reward_model(train, validation, quick(tiny_model), tokenizer)
        item = train[0]
        ids, mask = item["input_ids"].unsqueeze(0), item["attention_mask"].unsqueeze(0)
        with torch.no_grad():
            reward = model(ids, mask)
        assert reward.shape == (1,) and model.validation["n"] == 2
        saved = tmp_path / "reward_model"
        model.save_pretrained(saved)
        for name in ("base_model", "reward_head.pt", "config.json", "reward.json"):
            assert (saved / name).exists(), name
        loaded = RewardModel.load_pretrained(saved, device="cpu")
        with torch.no_grad():
            assert torch.allclose(reward, loaded(ids, mask), atol=1e-3)
        assert loaded.score("What is the beta?", "It is so.") == pytest.approx(
            model.score("What is the beta?", "It is so."), abs=1e-5
        )

        # their three files alone are the same model
        state = torch.load(saved / "reward_head.pt", weights_only=True)
        trunk = PeftModel.from_pretrained(
            AutoModel.from_pretrained(tiny_model), saved / "base_model"
        )
        head = RewardModelHead(json.loads((saved / "config.json").read_text())["hidden_size"])
        head.load_state_dict(state)
        with torch.no_grad():
            states = trunk.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
            assert torch.allclose(head.eval()(states, mask), reward, atol=1e-3)
        (saved / "reward.json").unlink()
        from_theirs = RewardModel.load_pretrained(saved, device="cpu")
        with torch.no_grad():
            assert torch.allclose(from_theirs(ids, mask), reward, atol=1e-3)


def settings(base: Path) -> TrainingConfig:
    return TrainingConfig(
        base_model=str(base),
        use_lora=True,
        learning_rate=1e-5,
        batch_size=2,
        max_steps=2,
        max_new_tokens=8,
        train_reward_model_first=True,
        dataset=DatasetConfig(max_length=128, max_prompt_length=64),
        reward_model_config=quick(base),
        device="cpu",
    )


class TestTrainer:
    def test_the_tokenizer_and_the_policy(self, tiny_model: Path) -> None:
        import torch

        trainer = RLHFTrainer(settings(tiny_model))
        assert trainer.config == settings(tiny_model) and trainer.tokenizer is None
        trainer.prepare_models()
        assert trainer.tokenizer.pad_token is not None
        policy = trainer.prepare_policy_model()
        assert hasattr(policy, "v_head")
        ids = torch.randint(0, 90, (2, 7))
        logits, _, values = policy(ids)
        assert logits.shape[:2] == values.shape == (2, 7)
        assert policy.generate(input_ids=ids, max_new_tokens=2).shape[1] >= 8

    def test_an_estimate_is_made_of_numbers(self, tiny_model: Path) -> None:
        config = settings(tiny_model)
        config.learning_rate = None
        estimate = RLHFTrainer(config).estimate_training(FEEDBACKS)
        assert (estimate["feedback_count"], estimate["estimated_steps"]) == (10, 2)
        assert estimate["estimated_time_minutes"] > 0
        assert estimate["model_config"]["learning_rate"] > 0
        longer = settings(tiny_model)
        longer.max_steps = 2000
        more = RLHFTrainer(longer).estimate_training(FEEDBACKS)
        assert more["estimated_time_minutes"] > estimate["estimated_time_minutes"]

    def test_settings_of_the_reward_model_can_be_changed_later(self) -> None:
        config = TrainingConfig(base_model="small", lora_r=4)
        config.reward_model_config.num_epochs = 2
        judge = config.reward_model()
        assert (judge.base_model, judge.lora_r, judge.num_epochs) == ("small", 4, 2)

    @pytest.mark.slow
    def test_the_reward_model_reads_the_longest_answer_of_the_policy(
        self, tiny_model: Path
    ) -> None:
        config = settings(tiny_model)
        config.dataset, config.max_new_tokens = DatasetConfig(48, max_prompt_length=64), 64
        config.reward_model_config.max_length = 48
        trainer = RLHFTrainer(config)
        model = trainer.train_reward_model_from_feedback(FEEDBACKS)
        answer = "x" * 60
        assert len(tiny_tokenizer()(answer)["input_ids"]) > 48
        assert math.isfinite(model.score("What is the beta?", answer))

    @pytest.mark.slow
    def test_ten_samples_are_a_whole_training_in_their_tree(
        self, tiny_model: Path, tmp_path: Path
    ) -> None:
        output = tmp_path / "models" / "my_agent" / "v1"
        result = RLHFTrainer(settings(tiny_model)).train(feedbacks=FEEDBACKS, output_dir=output)
        assert result.feedback_count == 10 and result.training_steps == 2
        assert Path(result.model_path) == output / "policy"
        assert (output / "policy" / "config.json").is_file()
        for name in ("base_model", "reward_head.pt", "config.json"):
            assert (output / "reward_model" / name).exists()
        assert TrainingResult.load(output / "training_results.json") == result
        assert len(result.reward_history) == 2

    def test_a_policy_folder_of_somebody_else_stays(self, tiny_model: Path, tmp_path: Path) -> None:
        (tmp_path / "out" / "policy").mkdir(parents=True)
        (tmp_path / "out" / "policy" / "notes.txt").write_text("mine")
        with pytest.raises(Conflict, match="no training here wrote"):
            RLHFTrainer(settings(tiny_model)).train(FEEDBACKS, tmp_path / "out")
