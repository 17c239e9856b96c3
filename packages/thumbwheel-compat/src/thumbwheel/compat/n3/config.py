"""`DatasetConfig`, `RewardModelConfig` and `TrainingConfig` of the n3 server, and what they are as
settings of `thumbwheel train`.

An unset learning rate is chosen for the base's width. Probabilities are those of the whole
distribution also where `top_k` and `top_p` cut the one that answers are drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError

PRECISIONS = {None: "auto", "no": "float32", "fp16": "bfloat16", "bf16": "bfloat16"}
"""`mixed_precision` -> the dtype of `thumbwheel train`."""


@dataclass
class DatasetConfig:
    """How feedback becomes datasets."""

    max_length: int = 512
    max_prompt_length: int = 256
    train_split: float = 0.8
    normalize_scores: bool = True


@dataclass
class RewardModelConfig:
    """Settings of a reward model: an adapter over the base, and a head that reads the last token of
    the answer."""

    base_model: str = "gpt2"
    use_lora: bool = True
    lora_r: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    learning_rate: float | None = None
    batch_size: int = 8
    num_epochs: float = 3
    max_grad_norm: float = 1.0
    warmup_steps: int | None = None
    """Steps until the full learning rate; unset, a tenth of them."""
    max_length: int = 512
    device: str = "auto"

    def options(self, rows: int) -> dict[str, Any]:
        """Return the settings of `thumbwheel train reward` on this many rows. An unset learning
        rate stays unset, so that it is chosen for the base's width."""
        return {
            "loss_type": "regression",
            "min_rows": 1,
            **_adapter(self),
            **self._warmup(rows),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "num_train_epochs": self.num_epochs,
            "max_grad_norm": self.max_grad_norm,
            "max_length": self.max_length,
            "device": self.device,
        }

    def _warmup(self, rows: int) -> dict[str, Any]:
        if self.warmup_steps is None:
            return {}
        steps_an_epoch = math.ceil(rows / self.batch_size)
        steps = max(1, math.ceil(steps_an_epoch * self.num_epochs))
        return {"warmup_ratio": self.warmup_of(steps) / steps}

    def warmup_of(self, steps: int) -> int:
        """Return the warm-up of a training of `steps` steps: the steps until the full learning
        rate."""
        if self.warmup_steps is None:
            return steps // 10
        # a warm-up that outlasts the training would never reach the rate that was asked for
        warmup = min(self.warmup_steps, steps // 2)
        if warmup < self.warmup_steps:
            log.say(
                f"note: warmup_steps {self.warmup_steps} of {steps} steps: the rate is full after "
                f"{warmup}"
            )
        return warmup


@dataclass
class TrainingConfig:
    """Settings of both stages. `target_kl` is nats an answer of `max_new_tokens`; None leaves the
    weight of the KL as it is."""

    base_model: str = "gpt2"
    use_lora: bool = True
    lora_r: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    learning_rate: float | None = None
    batch_size: int = 8
    mini_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    ppo_epochs: int = 4
    max_grad_norm: float = 1.0
    init_kl_coef: float = 0.2
    target_kl: float | None = 6.0
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.1
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.95
    max_steps: int = 1000
    device: str = "auto"
    mixed_precision: str | None = None
    """fp16 and bf16 compute in bfloat16, no in float32; unset, what suits the device."""
    train_reward_model_first: bool = True
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    # unset, it follows the policy's settings, and a script may change it afterwards
    reward_model_config: RewardModelConfig = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.reward_model_config is None:
            self.reward_model_config = RewardModelConfig(
                base_model=self.base_model,
                use_lora=self.use_lora,
                lora_r=self.lora_r,
                lora_alpha=self.lora_alpha,
                lora_dropout=self.lora_dropout,
                max_length=self.dataset.max_length,
                device=self.device,
            )

    def reward_model(self) -> RewardModelConfig:
        """Return the settings of the reward model, which reads at least as many tokens as a prompt
        and its longest answer have: an answer that it cannot read would have no reward."""
        longest = max(self.reward_model_config.max_length, self._longest_text())
        return replace(self.reward_model_config, max_length=longest)

    def _dtype(self) -> str:
        """Return the number format to compute in. Raises ConfigError."""
        if self.mixed_precision not in PRECISIONS:
            choices = ", ".join(str(name) for name in PRECISIONS)
            what = f"mixed_precision {self.mixed_precision!r}"
            raise ConfigError(what, "there is no such setting", f"Known: {choices}")
        return PRECISIONS[self.mixed_precision]

    def _longest_text(self) -> int:
        """Return the tokens of the longest prompt with the longest answer."""
        return self.dataset.max_prompt_length + self.max_new_tokens

    def options(self, reward_model: Path) -> dict[str, Any]:
        """Return the settings of `thumbwheel train ppo`."""
        return {
            "min_rows": 1,
            "reward_functions": (),
            "reward_model": str(reward_model),
            **_adapter(self),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size * self.gradient_accumulation_steps,
            "num_generations": 1,
            "num_mini_batches": max(1, self.batch_size // self.mini_batch_size),
            "num_ppo_epochs": self.ppo_epochs,
            "max_grad_norm": self.max_grad_norm,
            "init_kl_coef": self.init_kl_coef,
            "kl_target_per_token": None
            if self.target_kl is None
            else self.target_kl / self.max_new_tokens,
            "gamma": self.gamma,
            "lam": self.lam,
            "cliprange": self.cliprange,
            "cliprange_value": self.cliprange_value,
            "vf_coef": self.vf_coef,
            "max_completion_length": self.max_new_tokens,
            "max_length": self._longest_text(),
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "max_steps": self.max_steps,
            "device": self.device,
            "dtype": self._dtype(),
        }


def with_lora(model: Any, config: RewardModelConfig | TrainingConfig, task: str) -> Any:
    """Return a model of transformers with a new LoRA adapter for PEFT's task of this name."""
    from peft import LoraConfig, TaskType, get_peft_model

    settings = LoraConfig(
        task_type=TaskType[task],
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
    )
    return get_peft_model(model, settings)


def _adapter(config: RewardModelConfig | TrainingConfig) -> dict[str, Any]:
    """Return the settings of the tuning: a LoRA adapter, or every layer."""
    return {
        "tuning": "lora" if config.use_lora else "full",
        "lora_r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
    }
