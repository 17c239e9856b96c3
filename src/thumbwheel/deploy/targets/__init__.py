"""The targets that ship; one file each. To add one: its file here and its line below; the contract
tests then run over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thumbwheel.core.plugins import VariantTable

if TYPE_CHECKING:
    from thumbwheel.deploy.target import Target

TARGETS: VariantTable[Target] = VariantTable(
    "target",
    "thumbwheel.targets",
    {
        "embedded": "thumbwheel.deploy.targets.embedded:EMBEDDED",
        "llamacpp": "thumbwheel.deploy.targets.llamacpp:LLAMACPP",
        "ollama": "thumbwheel.deploy.targets.ollama:OLLAMA",
        "remote": "thumbwheel.deploy.targets.remote:REMOTE",
        "vllm": "thumbwheel.deploy.targets.vllm:VLLM",
    },
)
