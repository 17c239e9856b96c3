"""What this machine offers a run: the device, and the precision that pays on it."""

from __future__ import annotations

from typing import Any

BF16_PAYS = 20_000_000
"""Parameters from which half the memory traffic outweighs the conversions on a CPU (26M: measured in the engine's prototype)."""


def device() -> str:
    """cuda where there is one, else cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def choose_dtype(asked: str, parameters: int) -> str:
    """`asked`, or for "auto" bfloat16 where the machine computes in it and the model is large enough, else float32."""
    if asked != "auto":
        return asked
    return "bfloat16" if parameters >= BF16_PAYS and _has_bf16() else "float32"


def _has_bf16() -> bool:
    import torch

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def count_parameters(folder: str) -> int:
    """Parameters of the model in `folder`, from its configuration alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from thumbwheel.engine.load import load_config

    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(load_config(folder))
    return sum(parameter.numel() for parameter in model.parameters())


def peak_memory_gb() -> float:
    """The most memory that this process has held so far."""
    import resource
    import sys

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
