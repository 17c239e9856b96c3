"""How to host a model on this machine: parallel answers, context, threads and GPU layers, and where
each has to be set to take effect.

Ollama takes parallel answers and flash attention from the environment of its server (`ollama
serve`), the rest from the model's parameters; OLLAMA_NUM_THREAD does not exist. llama-server takes
all of it as flags (targets/llamacpp.py), and shares its context among the parallel answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from thumbwheel.core.hardware import Machine

Name = Literal["ryzen_optimized", "gpu_auto", "cpu_auto", "apple_silicon"]
Choice = Literal["auto", "ryzen_optimized", "gpu_auto", "cpu_auto", "apple_silicon"]
NAMES: tuple[Name, ...] = get_args(Name)
LONG_CONTEXT_GB = 16
"""Memory from which a CPU gets the longer context."""


@dataclass(frozen=True)
class Profile:
    """None leaves the choice to the server, which knows the model's size; `gpu_layers` 0 keeps the
    model on the CPU."""

    name: Name
    parallel: int
    context: int
    """Tokens of one answer with its prompt."""
    threads: int | None = None
    gpu_layers: int | None = None
    flash_attention: bool = False

    def ollama_parameters(self) -> dict[str, int]:
        """Return the PARAMETER lines of the model. Ollama's default context silently cuts longer
        prompts."""
        settings = {"num_ctx": self.context, "num_thread": self.threads, "num_gpu": self.gpu_layers}
        return {name: value for name, value in settings.items() if value is not None}

    def ollama_environment(self) -> dict[str, str]:
        """Return the settings that only the environment of `ollama serve` can make. Two models stay
        loaded, so that a rollback need not load one."""
        flash = {"OLLAMA_FLASH_ATTENTION": "1"} if self.flash_attention else {}
        return {"OLLAMA_NUM_PARALLEL": str(self.parallel), "OLLAMA_MAX_LOADED_MODELS": "2", **flash}


def choose(choice: Choice, machine: Machine) -> Profile:
    """Return the profile of that name for `machine`; "auto" finds the name."""
    name = detect(machine) if choice == "auto" else choice
    cores = machine.cores or machine.threads
    if name in ("gpu_auto", "apple_silicon"):
        parallel = 4 if name == "gpu_auto" else 2
        return Profile(name, parallel, context=8192, flash_attention=True)
    long_context = name == "ryzen_optimized" or (machine.ram_gb or 0) >= LONG_CONTEXT_GB
    return Profile(
        name,
        parallel=max(1, min(4, cores // 4)),
        context=4096 if long_context else 2048,
        threads=max(1, min(cores - 2, machine.threads)),
        gpu_layers=0,
    )


def detect(machine: Machine) -> Name:
    """Return the name of the profile that suits `machine`: by its accelerator, else by its
    processor."""
    if machine.gpu is not None:
        return "apple_silicon" if machine.gpu.kind == "mps" else "gpu_auto"
    return "ryzen_optimized" if "ryzen" in machine.cpu.lower() else "cpu_auto"
