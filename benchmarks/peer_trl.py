"""One measured run of TRL 1.16: DPO, KTO, SFT, reward model or GRPO, `default` or `tuned`.

`default` is the method's Config as it comes: batches of 8, accumulated where an update has more
rows. `tuned` is one frozen configuration a method, the best that was found on CPUs: the smallest
micro-batch with accumulation (so that nothing is padded; KTO needs two rows for its baseline, GRPO
takes four answers), no gradient checkpointing, and weights and products in bf16 where the device
multiplies in it, else all in fp32. Where torchrun started several processes, they share the rows of
an update; the first one reports the time, and the memory of all.
"""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}

from typing import Any

import torch
import trl
from datasets import Dataset
from onerun import ALPHA, DEVICE, RANK, RATE, Clock, Spec, has_bf16, peak_bytes, report, same_start
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from variety import variety

TRAINERS = {"dpo": "DPO", "kto": "KTO", "sft": "SFT", "reward": "Reward", "grpo": "GRPO"}
MICRO = {"kto": 2, "grpo": 4}
DEFAULT_BATCH = 8
"""TRL's own per_device_train_batch_size."""


def options(spec: Spec) -> dict[str, Any]:
    """What the configuration is told beyond the method's own defaults."""
    answers = spec.a_step * (spec.group if spec.method == "grpo" else 1)
    batch = min(DEFAULT_BATCH, answers)
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": answers // batch,
    }
    if spec.kind == "tuned":
        micro = MICRO.get(spec.method, 1)
        arguments = {
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": answers // (micro * spec.processes),
            "gradient_checkpointing": False,
        }
    if spec.precision == "fp32" or (spec.kind == "tuned" and not has_bf16()):
        arguments["bf16"] = False
    if spec.cache == "warm":
        arguments["precompute_ref_log_probs"] = True
    if spec.method != "grpo":
        arguments["train_sampling_strategy"] = "sequential"
    if spec.method == "grpo":
        arguments |= {
            "num_generations": spec.group,
            "max_completion_length": spec.new_tokens,
            "shuffle_dataset": False,
        }
    return arguments


def weights(spec: Spec) -> torch.dtype:
    """The precision of the weights."""
    return (
        torch.bfloat16
        if spec.kind == "tuned" and spec.precision != "fp32" and has_bf16()
        else torch.float32
    )


def columns(spec: Spec) -> list[dict[str, Any]]:
    """The rows under TRL's names."""
    rows = spec.load()
    if spec.method == "grpo":
        return [{"prompt": row["prompt"]} for row in rows]
    if spec.method == "reward":
        return [
            {side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows
        ]
    return rows


def reward(completions: list[str], **_: Any) -> list[float]:
    """The same as ours is told."""
    return [variety(None, text, None) for text in completions]


def scored(spec: Spec, dataset: Any) -> int | None:
    """Tokens that carry a loss, over all rows."""
    names = {"dpo": ("chosen_ids", "rejected_ids"), "kto": ("completion_ids",)}.get(spec.method)
    if names:
        return sum(len(row[name]) for row in dataset for name in names)
    return (
        sum(label != -100 for row in dataset for label in row["labels"])
        if spec.method == "sft"
        else None
    )


def trainer_of(spec: Spec, clock: Clock) -> Any:
    """TRL's trainer."""
    name = TRAINERS[spec.method]
    arguments = getattr(trl, f"{name}Config")(
        output_dir=os.environ["BENCH_OUT"],
        max_steps=spec.steps,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=DEVICE == "cpu",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        disable_tqdm=True,
        **options(spec),
    )
    kind: dict[str, Any] = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    load, more = AutoModelForCausalLM.from_pretrained, {}
    if spec.method == "reward":
        kind |= {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
        load, more = AutoModelForSequenceClassification.from_pretrained, {"num_labels": 1}
    extra = {"reward_funcs": reward} if spec.method == "grpo" else {}
    return getattr(trl, f"{name}Trainer")(
        model=load(spec.model, dtype=weights(spec), **more),
        args=arguments,
        train_dataset=Dataset.from_list(columns(spec)),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[clock],
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, **kind),
        **extra,
    )


def main() -> None:
    """Run and print."""
    spec, clock = Spec.read(), Clock()
    trainer = trainer_of(spec, clock)
    if trainer.accelerator.num_processes != spec.processes:
        raise SystemExit(
            f"{trainer.accelerator.num_processes} processes run, and {spec.processes} were asked "
            "for"
        )
    same_start(trainer.model)
    trainer.train()
    together = trainer.accelerator.reduce(torch.tensor(float(peak_bytes()), dtype=torch.float64))
    if trainer.accelerator.is_main_process:
        report(clock.seconds, clock.losses, scored(spec, trainer.train_dataset), peak=int(together))


if __name__ == "__main__":
    main()
