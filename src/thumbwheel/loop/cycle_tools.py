"""Whether the steps after a training can be done here, asked before the training."""

from __future__ import annotations

from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.ollama_api import OllamaServer, address
from thumbwheel.deploy.targets.ollama import OllamaConfig
from thumbwheel.export.package import precision
from thumbwheel.llm import convert, tools
from thumbwheel.loop.cycle_types import CycleConfig

GGUF, OLLAMA = "gguf", "ollama"


def check_tools(ws: Workspace, config: CycleConfig) -> None:
    """Raise before any training what would stop the steps after it: a missing tool, an unknown precision, no Ollama."""
    if GGUF in config.export or config.deploy == OLLAMA:
        convert.check_quantiser(precision(GGUF, config.quant) or "")
        for name in ("converter", "library", "bindings"):
            tools.require(name)
    if config.deploy == OLLAMA:
        with OllamaServer(address(ws.settings(OllamaConfig, f"deploy.{OLLAMA}").host)) as server:
            server.version()
