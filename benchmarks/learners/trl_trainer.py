"""TRL 1.16 on the same rows: `trl-default` is each method's configuration as it comes, `trl-docs` what its documentation advises.

`python trl_trainer.py SPEC.json`, in an environment of its own. The advice for adapters is that of the guide "LoRA Without Regret"
(rank 256, alpha 16, all linear layers, ten times the rate of full fine-tuning); for dpo and kto ten times their own default rates.
Nothing is held out, and the last weights are kept, as TRL does without an evaluation set.
"""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

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
}
SHAPES = {"sft": "chats", "dpo": "pairs", "kto": "labels"}
RATES = {"sft": 2e-4, "dpo": 1e-5, "kto": 1e-5}
"""Of the documentation's recipes, for adapters."""


def main() -> None:
    """Train and save; `learner` is `trl-default sft`, `trl-docs kto` and so on."""
    spec = Spec.read()
    recipe, method = spec.learner.split()
    config, trainer_class = METHODS[method]
    model, tokenizer = load(spec.base)
    advice: dict[str, Any] = {"learning_rate": RATES[method]} if recipe == "trl-docs" else {}
    adapter: dict[str, Any] = {"r": 256, "lora_alpha": 16, "target_modules": "all-linear"} if recipe == "trl-docs" else {}
    arguments = config(
        output_dir=spec.out, use_cpu=True, bf16=False, report_to=[], save_strategy="no", seed=spec.seed, disable_tqdm=True, **advice
    )
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([columns(method, row) for row in spec.rows(SHAPES[method])]),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", **adapter),
    )
    trainer.train()
    trainer.model.save_pretrained(spec.out)
    report(spec)


def columns(method: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row under TRL's names."""
    if method == "dpo":
        return {"prompt": row["prompt"], "chosen": answer(row["chosen"]), "rejected": answer(row["rejected"])}
    shared = {"prompt": row["prompt"], "completion": answer(row["completion"])}
    return shared | ({"label": row["label"]} if method == "kto" else {})


def answer(text: str) -> list[dict[str, str]]:
    """As a chat message."""
    return [{"role": "assistant", "content": text}]


if __name__ == "__main__":
    main()
