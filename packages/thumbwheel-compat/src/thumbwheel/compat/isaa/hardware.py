"""`HardwareConfig`: what the machine has, and the settings that suit it, under the names of the
agent's RL pipeline.

The tiers are those of `training/presets.py`. What could not be detected keeps its default, and an
explicit value wins over a derived one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.hardware import Machine, disk_free_gb, machine
from thumbwheel.training.presets import BY_GPU, BY_RAM, RYZEN, tier_of

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
ROWS_AN_UPDATE = 8


class HardwareProfile(Enum):
    RYZEN_OPTIMIZED = "ryzen_optimized"
    AUTO_DETECT = "auto_detect"
    GPU_ENABLED = "gpu_enabled"
    CPU_ONLY = "cpu_only"


@dataclass
class HardwareConfig:
    """Sizes are in 10^9 bytes. The fields from `profile` on are derived from the others where they
    are None."""

    cpu_name: str = ""
    cpu_cores: int = 1
    cpu_threads: int = 1
    has_avx2: bool = False
    has_avx512: bool = False
    ram_gb: float = 8.0
    available_ram_gb: float = 8.0
    has_gpu: bool = False
    gpu_name: str = ""
    gpu_vram_gb: float = 0.0
    cuda_available: bool = False
    storage_path: str = ""
    storage_free_gb: float = 0.0
    profile: HardwareProfile | str | None = None
    """Also by its value (`cpu_only`)."""
    recommended_batch_size: int | None = None
    recommended_model_size: str | None = None
    use_fp16: bool | None = None
    use_bf16: bool | None = None
    gradient_checkpointing: bool = True
    num_workers: int | None = None
    lora_r: int | None = None
    lora_alpha: int | None = None
    num_generations: int | None = None
    max_completion_length: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.profile, str):
            self.profile = _profile_of(self.profile)
        is_ryzen = any(name in self.cpu_name for name in RYZEN)
        usable_gpu = self.uses_gpu
        by_ram = tier_of(BY_RAM, self.ram_gb)
        tier = tier_of(BY_GPU, self.gpu_vram_gb) if usable_gpu else by_ram
        derived = {
            "profile": self._profile(is_ryzen, usable_gpu),
            "recommended_batch_size": tier.rows,
            "recommended_model_size": tier.model,
            "use_fp16": usable_gpu,
            "use_bf16": not usable_gpu and (self.has_avx512 or "5950X" in self.cpu_name),
            "num_workers": min(8, max(1, self.cpu_threads // 2)) if is_ryzen else 4,
            "lora_r": tier.rank,
            "lora_alpha": 2 * tier.rank,
            "num_generations": by_ram.generations,
        }
        for name, value in derived.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _profile(self, is_ryzen: bool, usable_gpu: bool) -> HardwareProfile:
        if usable_gpu:
            return HardwareProfile.GPU_ENABLED
        return HardwareProfile.RYZEN_OPTIMIZED if is_ryzen else HardwareProfile.CPU_ONLY

    @property
    def uses_gpu(self) -> bool:
        """False with the profile CPU_ONLY, and where torch cannot compute on the GPU."""
        return self.has_gpu and self.cuda_available and self.profile is not HardwareProfile.CPU_ONLY

    def get_training_device(self) -> str:
        """Return cuda or cpu."""
        return "cuda" if self.uses_gpu else "cpu"

    def get_torch_dtype(self) -> str:
        """Return the name of the precision."""
        if self.use_fp16:
            return "float16"
        return "bfloat16" if self.use_bf16 else "float32"

    def to_training_args(self) -> dict[str, Any]:
        """Return the arguments of `transformers.TrainingArguments`: eight rows an update, by
        accumulation."""
        rows = self.recommended_batch_size or 1
        return {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": max(1, ROWS_AN_UPDATE // rows),
            "gradient_checkpointing": self.gradient_checkpointing,
            "bf16": bool(self.use_bf16) and not self.uses_gpu,
            "fp16": bool(self.use_fp16) and self.uses_gpu,
            "dataloader_num_workers": self.num_workers,
            "use_cpu": not self.uses_gpu,
        }

    def to_lora_config(self) -> dict[str, Any]:
        """Return the arguments of `peft.LoraConfig`."""
        return {
            "r": self.lora_r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": 0.05,
            "bias": "none",
            "task_type": "CAUSAL_LM",
            "target_modules": list(MODULES),
        }

    def to_grpo_config(self) -> dict[str, Any]:
        """Return the settings that only GRPO has."""
        return {
            "num_generations": self.num_generations,
            "max_completion_length": self.max_completion_length,
            "use_vllm": False,
        }

    def summary(self) -> str:
        """Summarise the machine and the derived settings in a few lines."""
        profile = HardwareProfile(self.profile or HardwareProfile.AUTO_DETECT)
        gpu = f"{self.gpu_name} ({self.gpu_vram_gb:.1f} GB)" if self.has_gpu else "none"
        return "\n".join(
            [
                f"profile {profile.value}",
                f"processor {self.cpu_name or 'unknown'}, {self.cpu_cores} cores, "
                f"{self.cpu_threads} threads",
                f"memory {self.ram_gb:.1f} GB, {self.available_ram_gb:.1f} GB available; GPU {gpu}",
                f"models of {self.recommended_model_size}, {self.recommended_batch_size} rows at "
                f"once in {self.get_torch_dtype()}",
                f"LoRA r {self.lora_r}, alpha {self.lora_alpha}; {self.num_generations} answers a "
                "prompt",
            ]
        )


def _profile_of(name: str) -> HardwareProfile:
    """Return the profile of this name, in any case. Raises ConfigError for an unknown one."""
    try:
        return HardwareProfile(name.strip().lower())
    except ValueError:
        names = ", ".join(profile.value for profile in HardwareProfile)
        raise ConfigError(
            f"profile {name!r}", "there is no such profile", f"Known: {names}"
        ) from None


def detect_hardware(storage_path: str | None = None) -> HardwareConfig:
    """Return the hardware of this machine. `storage_path` is the folder of the models (default: the
    home's folder); nothing is created."""
    storage = Path(storage_path or Home.at().path)
    this_machine = machine()
    return HardwareConfig(
        **_processor(this_machine), **_accelerator(this_machine), **_storage(storage)
    )


def get_ryzen_optimized_config(storage_path: str | None = None) -> HardwareConfig:
    """Return the preset for a Ryzen 9 5950X with 40 GB, of which 32 are available, whatever this
    machine is."""
    return HardwareConfig(
        cpu_name="AMD Ryzen 9 5950X 16-Core Processor",
        cpu_cores=16,
        cpu_threads=32,
        has_avx2=True,
        ram_gb=40.0,
        available_ram_gb=32.0,
        **_storage(Path(storage_path or Home.at().path)),
    )


def _processor(machine: Machine) -> dict[str, Any]:
    fields = {
        "cpu_name": machine.cpu,
        "cpu_cores": machine.cores or machine.threads,
        "cpu_threads": machine.threads,
        "has_avx2": bool(machine.avx2),
        "has_avx512": bool(machine.avx512),
        "ram_gb": machine.ram_gb,
        "available_ram_gb": machine.available_gb,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _accelerator(machine: Machine) -> dict[str, Any]:
    """Return the settings of the GPU that torch calls cuda, which may be ROCm's; empty if there is
    none. Metal is another device."""
    gpu = machine.gpu
    if gpu is None or gpu.kind == "mps":
        return {}
    return {
        "has_gpu": True,
        "cuda_available": True,
        "gpu_name": gpu.name,
        "gpu_vram_gb": gpu.memory_gb,
    }


def _storage(path: Path) -> dict[str, Any]:
    return {"storage_path": str(path), "storage_free_gb": disk_free_gb(path)}
