"""GRPO equals TRL 1.16 over 20 updates: losses, gradients, metrics and the adapter, on the same
answers with the same rewards.

The adapter starts at random, each batch is gone through more than once and the base is the
reference: policy, old policy and reference are three different models.
"""

from __future__ import annotations

import os

os.environ |= {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "CI": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_parity_trl import recorder

from tests.training_rows import assembled, loop_of, plain_rows, shake
from thumbwheel.engine.rollout import Rollout, RolloutSource, Sampling

PROMPTS, ANSWERS, LONGEST, UPDATES = 3, 4, 12, 20
SHARED = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}


class Recorded(RolloutSource):
    """A source of answers that were thought out beforehand; the text of each is its reward."""

    def __init__(self, eos: int, seed: int = 3) -> None:
        self._eos, self._chance, self.batches = eos, random.Random(seed), []

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling, ended: Any = None
    ) -> list[list[Rollout]]:
        self.batches.append(
            [[self._answer(alike=number == 0) for _ in range(n)] for number in range(len(prompts))]
        )
        return self.batches[-1]

    def _answer(self, alike: bool) -> Rollout:
        cut = self._chance.random() < 0.25
        ids = [
            self._chance.randrange(5, 300)
            for _ in range(LONGEST if cut else self._chance.randrange(1, LONGEST - 1))
        ]
        worth = 0.5 if alike else self._chance.choice([0.0, 0.25, 1.0])
        return Rollout(
            (*ids, *([] if cut else [self._eos])), None, "length" if cut else "stop", str(worth)
        )


def ours(base: Path, folder: Path, **changes: Any) -> tuple[Any, list[str], list[Any]]:
    """(what happened, the prompts in the order in which they were taken, the answers of every
    step)."""
    steps = UPDATES // changes["num_iterations"]
    settings = SHARED | {
        "batch_size": PROMPTS,
        "num_generations": ANSWERS,
        "max_completion_length": LONGEST,
        "max_length": 512,
        "token_budget": 200,
        "max_steps": steps,
        "warmup_ratio": 0.0,
        "reward_functions": ("reward_functions:spoken",),
        "reward_workers": 1,
    }
    assembly = assembled(
        "grpo", base, folder, plain_rows("prompts", PROMPTS * steps), **settings | changes
    )
    shake(assembly.model)
    assembly.runner.source = Recorded(assembly.builder.tokenizer.eos_token_id)
    heard = recorder()
    loop = loop_of(assembly, folder, callbacks=[heard])
    order = [
        assembly.builder.render(assembly.train.items[number].row["prompt"])
        for batch in loop.order.batches()
        for number in batch
    ]
    loop.run()
    assembly.runner.close()
    return heard, order, assembly.runner.source.batches


def trl(base: Path, folder: Path, order: list[str], sampled: list[Any], **changes: Any) -> Any:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    answers = iter(sampled)

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        flat = [rollout for group in next(answers) for rollout in group]
        ids = [trainer.processing_class(text)["input_ids"] for text in prompts]
        return {
            "prompt_ids": ids,
            "completion_ids": [list(rollout.ids) for rollout in flat],
            "logprobs": None,
            "worth": [float(rollout.text) for rollout in flat],
        }

    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=UPDATES,
        per_device_train_batch_size=PROMPTS * ANSWERS,
        num_generations=ANSWERS,
        max_completion_length=LONGEST,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        optim="adamw_torch",
        warmup_steps=0,
        logging_nan_inf_filter=False,
        **SHARED | changes,
    )
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        reward_funcs=lambda worth, **_: worth,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": order}),
        processing_class=AutoTokenizer.from_pretrained(base),
        rollout_func=rollouts,
        peft_config=LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
        ),
    )
    shake(trainer.model)
    heard = recorder()
    trainer.add_callback(heard)
    trainer.train()
    return heard


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"loss_type": "dapo", "num_iterations": 2},
        {
            "loss_type": "grpo",
            "beta": 0.1,
            "num_iterations": 4,
            "epsilon": 0.1,
            "epsilon_high": 0.3,
        },
        {
            "loss_type": "dr_grpo",
            "beta": 0.04,
            "num_iterations": 2,
            "scale_rewards": "none",
            "mask_truncated_completions": True,
        },
        {
            "loss_type": "grpo",
            "num_iterations": 2,
            "importance_sampling_level": "sequence",
            "epsilon": 0.01,
            "scale_rewards": "batch",
        },
        {"loss_type": "dapo", "beta": 0.2, "num_iterations": 1, "mask_truncated_completions": True},
    ],
    ids=[
        "dapo",
        "grpo with KL, clipped apart",
        "dr_grpo, unscaled, cut ones masked",
        "answer ratios, scaled by batch",
        "one update",
    ],
)
def test_grpo(tiny_model: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    ours_metrics, order, sampled = ours(tiny_model, tmp_path, **changes)
    other = trl(tiny_model, tmp_path, order, sampled, **changes)
    each = changes["num_iterations"]
    assert len(ours_metrics.gradients) == len(other.gradients) == len(other.losses) == UPDATES
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0}
    for update, loss in enumerate(ours_metrics.losses):
        worst["loss"] = max(
            worst["loss"], abs(loss - sum(other.losses[each * update : each * (update + 1)]) / each)
        )
    for left, right in zip(ours_metrics.gradients, other.gradients, strict=True):
        assert left.keys() == right.keys()
        for name, gradient in left.items():
            worst["gradient"] = max(
                worst["gradient"],
                float((gradient - right[name]).norm() / (right[name].norm() + 1e-6)),
            )
    for name, value in ours_metrics.final.items():
        worst["parameter"] = max(
            worst["parameter"], float((value - other.final[name]).norm() / other.final[name].norm())
        )
    print({name: f"{value:.1e}" for name, value in worst.items()})
    assert worst["loss"] < 5e-6 and worst["gradient"] < 1e-4 and worst["parameter"] < 1e-5
    compare_metrics(ours_metrics.logs, other.logs, changes)


def compare_metrics(
    ours_metrics: list[dict[str, float]], other: list[dict[str, float]], changes: dict[str, Any]
) -> None:
    """Those of the loss only where every answer is scored: without KL, ours leaves out the groups
    that teach nothing."""
    each, whole = changes["num_iterations"], changes.get("beta", 0.0) > 0
    names = ["reward", "reward_std", "completions/mean_length", "completions/clipped_ratio"]
    names += (
        ["frac_reward_zero_std"] if changes.get("scale_rewards") != "batch" else []
    )  # TRL asks whether the whole batch is alike there
    names += (
        [
            "kl",
            "entropy",
            "clip_ratio/low_mean",
            "clip_ratio/high_mean",
            "clip_ratio/region_mean",
            "grad_norm",
        ]
        if whole
        else []
    )
    for update, line in enumerate(ours_metrics):
        trl = other[each * update : each * (update + 1)]
        for name in names:
            values = [
                float(metrics_of_step[name]) for metrics_of_step in trl if name in metrics_of_step
            ]
            assert line[name] == pytest.approx(sum(values) / len(values), rel=1e-3, abs=2e-4), name
