"""Presets: settings by name, some of them sized by the machine. A setting that is given anywhere
else wins over a preset's.

To add one, write its line in PRESETS. A named preset sets everything that it lists (as far as the
method has such settings). `auto`, the default, looks at the machine for a preset and takes only
what changes memory and speed from it, so that one command teaches the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from thumbwheel.core.config import build
from thumbwheel.core.hardware import Machine
from thumbwheel.training.types import TrainConfig

C = TypeVar("C", bound=TrainConfig)
NEUTRAL = frozenset({"device", "token_budget", "gradient_checkpointing"})
"""Settings that change no result."""
ROW = 768
"""Tokens of memory for a row that is computed at once; on a processor, whose threads compute side
by side, twice as many."""


RYZEN = ("5950X", "5900X")
"""In the names of the processors that the preset `ryzen` is for."""


@dataclass(frozen=True)
class Tier:
    """What `memory_gb` and more allow: rows at once, the largest base that is comfortable, rank of
    the adapter, answers a prompt."""

    memory_gb: float
    rows: int
    model: str
    rank: int
    generations: int | None = None
    row_tokens: int = ROW

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "token_budget": self.row_tokens * self.rows,
            "lora_r": self.rank,
            "lora_alpha": 2 * self.rank,
        }
        if self.generations is not None:
            settings["num_generations"] = self.generations
        return settings


BY_RAM = (
    Tier(64, 4, "3B", 16, 8, row_tokens=2 * ROW),
    Tier(32, 2, "1.5B", 16, 6, row_tokens=2 * ROW),
    Tier(16, 1, "0.5B", 8, 4, row_tokens=2 * ROW),
    Tier(0, 1, "0.5B", 4, 2, row_tokens=2 * ROW),
)
BY_GPU = (
    Tier(24, 8, "7B", 32),
    Tier(16, 4, "3B", 16),
    Tier(8, 2, "1.5B", 16),
    Tier(0, 1, "0.5B", 8),
)


def tier_of(table: tuple[Tier, ...], memory_gb: float) -> Tier:
    """Return the tier of `table` that this much memory (GB) allows."""
    return next(tier for tier in table if memory_gb >= tier.memory_gb)


def tier(machine: Machine) -> Tier:
    """Return the tier of the memory in which a run would compute."""
    if machine.gpu:
        return tier_of(BY_GPU, machine.gpu.memory_gb)
    return tier_of(BY_RAM, machine.ram_gb or 0)


@dataclass(frozen=True)
class HardwarePreset:
    """`what` in one line; `of` gives the settings on a machine."""

    what: str
    of: Callable[[Machine], dict[str, Any]]


def _cpu(machine: Machine) -> dict[str, Any]:
    return {"device": "cpu"} | tier_of(BY_RAM, machine.ram_gb or 0).settings


def _at_once(machine: Machine) -> dict[str, Any]:
    return {"token_budget": tier(machine).settings["token_budget"]}


def _ryzen(machine: Machine) -> dict[str, Any]:
    return {"device": "cpu"} | BY_RAM[1].settings


def _small_gpu(machine: Machine) -> dict[str, Any]:
    return _at_once(machine) | {"gradient_checkpointing": True, "quantization": "nf4"}


def _high_quality(machine: Machine) -> dict[str, Any]:
    return _at_once(machine) | {"num_train_epochs": 5.0, "lora_r": 32, "lora_alpha": 64}


PRESETS: dict[str, HardwarePreset] = {
    "cpu": HardwarePreset("processor only, sized by its memory", _cpu),
    "small_gpu": HardwarePreset(
        "a GPU of less than 16 GB: 4-bit base, activations computed twice", _small_gpu
    ),
    "default": HardwarePreset(
        "the recommended settings, memory used by the machine's size", _at_once
    ),
    "high_quality": HardwarePreset("24 GB and more: more epochs, larger rank", _high_quality),
    "quick_test": HardwarePreset(
        "does it run at all: 50 small steps",
        lambda _: {"max_steps": 50, "batch_size": 4, "probe_prompts": 4},
    ),
    "ryzen": HardwarePreset("a Ryzen 9 5950X or 5900X with 32 GB and more", _ryzen),
    "apple_silicon": HardwarePreset(
        "a Mac with Metal", lambda machine: _at_once(machine) | {"device": "mps"}
    ),
}


def choose(machine: Machine) -> str:
    """Return the preset that `auto` means on `machine`."""
    if machine.gpu is None:
        is_ryzen = any(name in machine.cpu for name in RYZEN)
        return "ryzen" if is_ryzen and (machine.ram_gb or 0) >= 32 else "cpu"
    if machine.gpu.kind == "mps":
        return "apple_silicon"
    return "default" if machine.gpu.memory_gb >= 16 else "small_gpu"


def preset_settings(name: str, machine: Machine) -> tuple[str, dict[str, Any]]:
    """Return (the preset that `name` means on `machine`, its settings)."""
    if name != "auto":
        return name, PRESETS[name].of(machine)
    chosen = choose(machine)
    settings = PRESETS[chosen].of(machine)
    return chosen, {key: value for key, value in settings.items() if key in NEUTRAL}


def with_preset(config: C, machine: Machine) -> tuple[C, str]:
    """Return (`config` with its preset's values where nothing else was set, one line that names
    them). Raises ConfigError for values that clash."""
    chosen, values = preset_settings(config.preset, machine)
    added = {
        key: value
        for key, value in values.items()
        if key in type(config).model_fields and key not in config.model_fields_set
    }
    merged = build(type(config), config.model_dump(exclude_unset=True) | added, f"preset {chosen}")
    source = f"{chosen} (chosen by auto)" if config.preset == "auto" else chosen
    settings = ", ".join(f"{key} {value}" for key, value in added.items())
    return merged, f"preset {source}: {settings or 'nothing to set'}"
