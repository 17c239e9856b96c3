"""The files of a reward model as theirs has them (base_model/, reward_head.pt, config.json), beside
ours in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thumbwheel.compat.n3.config import RewardModelConfig

CARD = "reward.json"
TRUNK, HEAD, CONFIG = "base_model", "reward_head.pt", "config.json"
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
INSIDE = "base_model.model."
"""Begins every name in an adapter's weights."""
HEAD_WEIGHT = f"{INSIDE}score.weight"


def add_their_files(folder: Path, lora_dropout: float = 0.0) -> None:
    """Write the second form into a folder that `thumbwheel train reward` wrote.

    The adapter was trained inside of a classifier, whose trunk is one part; there it is the adapter
    of the trunk alone. Without a LoRA adapter or a head of ours (an encoder) nothing is written.
    """
    import torch
    from safetensors.torch import load_file, save_file

    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    weights = load_file(folder / WEIGHTS)
    if settings["peft_type"] != "LORA" or HEAD_WEIGHT not in weights:
        return
    trunk = {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            _, _, inner = name.removeprefix(INSIDE).partition(".")
            trunk[f"{INSIDE}{inner}"] = tensor.contiguous()
    (folder / TRUNK).mkdir()
    save_file(trunk, folder / TRUNK / WEIGHTS)
    modules = {name.removeprefix(INSIDE).partition(".lora_")[0] for name in trunk}
    of_trunk = settings | {
        "modules_to_save": None,
        "target_modules": sorted(modules),
        "task_type": "FEATURE_EXTRACTION",
    }
    _write(folder / TRUNK / SETTINGS, of_trunk)
    head = weights[HEAD_WEIGHT].float()
    state = {"linear.weight": head, "linear.bias": torch.zeros(1)}
    torch.save(state, folder / HEAD)
    config = RewardModelConfig(
        base_model=settings["base_model_name_or_path"],
        lora_r=settings["r"],
        lora_alpha=settings["lora_alpha"],
        lora_dropout=lora_dropout,
    )
    write_config(folder, config, head.shape[1])


def write_config(folder: Path, config: RewardModelConfig, hidden_size: int) -> None:
    """Write their config.json of a reward model whose head reads so many numbers."""
    values = {
        "base_model": config.base_model,
        "use_lora": config.use_lora,
        "lora_r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "hidden_size": hidden_size,
    }
    _write(folder / CONFIG, values)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
