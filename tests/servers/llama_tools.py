"""Which programs of llama.cpp are here; and a base that they can quantise: rows of 256."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models.tiny_models import tiny_base
from tests.required import missing
from thumbwheel.llm import tools

COMPILED = {"llama-server", "llama-quantize"}
"""Programs that `thumbwheel tools install` has only with `--build`."""


def needs(*names: str) -> None:
    """Skip the test where a tool is missing; with THUMBWHEEL_REQUIRE_TOOLS it fails. Fast ones are
    marked `tools`: CI runs them late."""
    if absent := [name for name in names if tools.find(name) is None]:
        reason = "not compiled" if COMPILED.issuperset(absent) else "not found"
        command = "thumbwheel tools install --build"
        missing("tools", f"{', '.join(absent)} of llama.cpp {reason}; run: {command}")


def wide_base(folder: Path, family: str = "qwen2", **settings: Any) -> Path:
    """A tiny random model whose rows K-quants can take."""
    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "head_dim": 64,
        "initializer_range": 0.05,
        "max_position_embeddings": 512,
    }
    return tiny_base(folder, family, **shape | settings)
