"""The dictionaries of the Command Center's settings by their names, and what they mean here.

`get_config` returns copies, so a script may change what it gets. Settings that do not exist here
are named and not used.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MODEL_CONFIG: Mapping[str, Any] = {
    "base_model": "meta-llama/Llama-3.1-8B-Instruct",
    "base_model_small": "meta-llama/Llama-3.2-3B-Instruct",
    "output_model_name": "cc-widget-selector",
}
"""RL_BASE_MODEL and RL_OUTPUT_MODEL in the environment win over the first and the last."""
DPO_CONFIG: Mapping[str, Any] = {
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": list(MODULES),
    "learning_rate": 5e-5,
    "beta": 0.1,
    "max_length": 2048,
    "max_prompt_length": 1024,
    "batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_epochs": 3,
    "warmup_ratio": 0.1,
    "optim": "paged_adamw_8bit",
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "logging_steps": 10,
    "save_steps": 100,
    "eval_steps": 50,
    "save_total_limit": 3,
}
QLORA_CONFIG: Mapping[str, Any] = {
    "load_in_4bit": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}
GGUF_CONFIG: Mapping[str, Any] = {"quantization": "q4_k_m"}
"""RL_GGUF_QUANT in the environment wins."""
ONLINE_LEARNING_CONFIG: Mapping[str, Any] = {
    "min_samples_to_retrain": 100,
    "max_buffer_size": 10_000,
    "retrain_interval_hours": 24,
    "auto_export": True,
    "auto_deploy": False,
}
TRAINING_DATA_CONFIG: Mapping[str, Any] = {
    "min_rating_confidence": 0.5,
    "max_pairs_per_question": 5,
    "val_split": 0.1,
    "seed": 42,
}
CONFIGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "small_gpu": {
        "dpo": {"batch_size": 2, "gradient_accumulation_steps": 8},
        "gguf": {"quantization": "q3_k_m"},
    },
    "high_quality": {
        "dpo": {"num_epochs": 5, "lora_r": 32, "lora_alpha": 64},
        "gguf": {"quantization": "q5_k_m"},
    },
}
"""Config name -> section -> what differs from the defaults."""
SMALL = "small_gpu"
SAME_NAMES = (
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "learning_rate",
    "beta",
    "max_length",
    "warmup_ratio",
    "weight_decay",
    "max_grad_norm",
    "logging_steps",
    "save_steps",
    "eval_steps",
    "save_total_limit",
)
"""Settings of `dpo` that `thumbwheel train dpo` has by the same name."""
UNUSED = ("max_prompt_length", "optim")
"""Settings that have no part here: a prompt is as long as `max_length` lets it be, and the
optimizer is the method's."""


def get_config(config_name: str = "default") -> dict[str, Any]:
    """Return a copy of the settings of this name: base_model, and the sections dpo, qlora, gguf,
    online and data. Raises ConfigError for an unknown name."""
    if config_name not in CONFIGS:
        choices = f"Known: {', '.join(CONFIGS)}"
        raise ConfigError(f"config {config_name!r}", "there is no such config", choices)
    config: dict[str, Any] = dict(MODEL_CONFIG)
    config["base_model"] = os.environ.get("RL_BASE_MODEL", config["base_model"])
    config["output_model_name"] = os.environ.get("RL_OUTPUT_MODEL", config["output_model_name"])
    if config_name == SMALL:
        config["base_model"] = config["base_model_small"]
    gguf = dict(GGUF_CONFIG)
    gguf["quantization"] = os.environ.get("RL_GGUF_QUANT", gguf["quantization"])
    sections = {
        "dpo": DPO_CONFIG,
        "qlora": QLORA_CONFIG,
        "gguf": gguf,
        "online": ONLINE_LEARNING_CONFIG,
        "data": TRAINING_DATA_CONFIG,
    }
    for name, values in sections.items():
        changes = CONFIGS[config_name].get(name, {})
        config[name] = copy.deepcopy({**values, **changes})
    config["preset"] = config_name
    return config


def training_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `dpo` of a config as settings of `thumbwheel train dpo`. Raises
    ConfigError for a setting that it does not have."""
    dpo = {**DPO_CONFIG, **config.get("dpo", {})}
    for name in dpo:
        if name not in DPO_CONFIG:
            choices = ", ".join(DPO_CONFIG)
            raise ConfigError(
                f"setting dpo.{name}", "there is no such setting", f"Known: {choices}"
            )
    for name in UNUSED:
        if dpo[name] != DPO_CONFIG[name]:
            log.say(f"note: the setting dpo.{name} does not exist here and is not used")

    options = {name: dpo[name] for name in SAME_NAMES}
    options["num_train_epochs"] = dpo["num_epochs"]
    # whoever calls the trainer has chosen the pairs
    options["min_rows"] = 1
    options["batch_size"] = dpo["batch_size"] * dpo["gradient_accumulation_steps"]
    if set(dpo["lora_target_modules"]) != set(MODULES):
        options["lora_targets"] = ",".join(dpo["lora_target_modules"])
    options["preset"] = config.get("preset", "default")
    if config.get("qlora", {}).get("load_in_4bit") is False:
        options["quantization"] = "none"
    return options
