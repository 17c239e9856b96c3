"""TRL 1.16 on the same rows: `trl-default` is each method's configuration as it comes, `trl-docs`
what its documentation advises.

`python trl_trainer.py SPEC.json`, in an environment of its own. The advice for adapters is that of
the guide "LoRA Without Regret" (rank 256 for sft and 1 for grpo, all linear layers, ten times the
rate of full fine-tuning) and, for a reward model, of its example script (rank 32, rate 1e-4); for
dpo and kto ten times their own default rates. Nothing is held out, and the last weights are kept,
as TRL does without an evaluation set.
"""

from __future__ import annotations

import os

os.environ |= {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

from typing import Any

import trl
from datasets import Dataset
from peft import LoraConfig
from trl.experimental import kto

from learners.learner import Spec, load, report

METHODS = {
    "sft": (trl.SFTConfig, trl.SFTTrainer),
    "dpo": (trl.DPOConfig, trl.DPOTrainer),
    "kto": (kto.KTOConfig, kto.KTOTrainer),
    "reward": (trl.RewardConfig, trl.RewardTrainer),
    "grpo": (trl.GRPOConfig, trl.GRPOTrainer),
}
SHAPES = {"sft": "chats", "dpo": "pairs", "kto": "labels", "reward": "pairs", "grpo": "checked"}
RATES = {"sft": 2e-4, "dpo": 1e-5, "kto": 1e-5, "reward": 1e-4, "grpo": 1e-5}
"""Of the documentation's recipes, for adapters."""
RANKS = {"sft": (256, 16), "dpo": (256, 16), "kto": (256, 16), "reward": (32, 16), "grpo": (1, 32)}
"""(rank, alpha) of the same."""


def main() -> None:
    """Train and save; `learner` is `trl-default sft`, `trl-docs kto` and so on."""
    spec = Spec.read()
    recipe, method = spec.learner.split()
    config, trainer_class = METHODS[method]
    model, tokenizer = load(spec.base, scores=method == "reward")
    settings: dict[str, Any] = {}
    adapter: dict[str, Any] = {}
    if recipe == "trl-docs":
        settings["learning_rate"] = RATES[method]
        rank, alpha = RANKS[method]
        adapter = {"r": rank, "lora_alpha": alpha, "target_modules": "all-linear"}
    parts: dict[str, Any] = {"processing_class": tokenizer}
    if method == "reward":
        adapter["modules_to_save"] = ["score"]
    if method == "grpo":
        settings["max_completion_length"] = spec.max_new_tokens
        parts["reward_funcs"] = is_right
    arguments = config(
        output_dir=spec.out,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        seed=spec.seed,
        disable_tqdm=True,
        **settings,
    )
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(
            [columns(method, row, tokenizer) for row in spec.rows(SHAPES[method])]
        ),
        peft_config=LoraConfig(
            task_type="SEQ_CLS" if method == "reward" else "CAUSAL_LM", **adapter
        ),
        **parts,
    )
    trainer.train()
    trainer.model.save_pretrained(spec.out)
    report(spec)


def columns(method: str, row: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A row under TRL's names."""
    if method == "grpo":
        return {"prompt": row["prompt"], "reference": row["completion"]}
    if (
        method == "reward"
    ):  # as texts, so that the score is read at the end of the answer, as the judge reads it
        asked = tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
        return {"chosen": asked + row["chosen"], "rejected": asked + row["rejected"]}
    if method == "dpo":
        return {
            "prompt": row["prompt"],
            "chosen": answer(row["chosen"]),
            "rejected": answer(row["rejected"]),
        }
    shared = {"prompt": row["prompt"], "completion": answer(row["completion"])}
    return shared | ({"label": row["label"]} if method == "kto" else {})


def is_right(
    completions: list[list[dict[str, str]]], reference: list[str], **_: Any
) -> list[float]:
    """The reward of grpo: 1 for an answer that is the reference."""
    return [
        float(message["content"].strip() == text)
        for (message,), text in zip(completions, reference, strict=True)
    ]


def answer(text: str) -> list[dict[str, str]]:
    """As a chat message."""
    return [{"role": "assistant", "content": text}]


if __name__ == "__main__":
    main()
