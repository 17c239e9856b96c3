"""One measured run of trl 1.12's experimental PPO, the last that TRL had: LoRA policy, full value
and reward models, full critic training.

Rows, their order, answer length and PPO epochs are those that ours is told; `num_mini_batches` 1 as
by default. `default` takes batches of 8 answers with accumulation and gradient checkpointing, in
bf16 autocast, as its configuration comes. `tuned` takes batches of 4, does without checkpointing,
and without bf16 where the device does not multiply in it.
"""

from __future__ import annotations

import os

os.environ |= {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

import time
from typing import Any

import torch
from datasets import Dataset
from onerun import ALPHA, DEVICE, RANK, RATE, Clock, Spec, has_bf16, report, same_start
from peft import LoraConfig
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer

MICRO = {"default": 8, "tuned": 4}


class UpdateClock(Clock):
    """This trainer says when a step ends and not when it begins."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The first step begins."""
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """One ends, the next begins."""
        super().on_step_end()
        self.on_step_begin()


def main() -> None:
    """Run and print."""
    spec, clock = Spec.read(), UpdateClock()
    tokenizer = AutoTokenizer.from_pretrained(spec.model, padding_side="left")
    dataset = Dataset.from_list(
        [{"input_ids": tokenizer(row["prompt"])["input_ids"]} for row in spec.load()]
    )
    precision = (
        {"bf16": False}
        if spec.precision == "fp32" or (spec.kind == "tuned" and not has_bf16())
        else {}
    )
    tuned = {"gradient_checkpointing": False} if spec.kind == "tuned" else {}
    arguments = PPOConfig(
        output_dir=os.environ["BENCH_OUT"],
        per_device_train_batch_size=MICRO[spec.kind],
        gradient_accumulation_steps=spec.a_step // MICRO[spec.kind],
        num_ppo_epochs=4,
        total_episodes=spec.a_step * spec.steps,
        response_length=spec.new_tokens,
        temperature=1.0,
        num_sample_generations=0,
        missing_eos_penalty=1.0,
        report_to=[],
        save_strategy="no",
        use_cpu=DEVICE == "cpu",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        disable_tqdm=True,
        **precision,
        **tuned,
    )
    scalar, whole = (
        {"num_labels": 1, "dtype": torch.float32},
        AutoModelForSequenceClassification.from_pretrained,
    )
    trainer = PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32),
        ref_model=None,
        reward_model=whole(spec.model, **scalar),
        value_model=whole(spec.model, **scalar),
        train_dataset=dataset,
        eval_dataset=dataset.select(range(2)),
        callbacks=[clock],
        peft_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.dataloader = trainer.accelerator.prepare(  # its own one shuffles
        DataLoader(dataset, batch_size=spec.a_step, collate_fn=trainer.data_collator)
    )
    same_start(trainer.policy_model)
    trainer.train()
    report(clock.seconds, clock.losses)


if __name__ == "__main__":
    main()
