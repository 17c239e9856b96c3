"""Whether the steps of a turn can be done here, asked before the first training."""

from __future__ import annotations

from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.ollama_api import OllamaServer, address
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.targets.ollama import OllamaConfig
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import precision
from thumbwheel.llm import convert, tools
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.training.algorithms import ALGORITHMS

GGUF, OLLAMA = "gguf", "ollama"


def check_ready(ws: Workspace, config: CycleConfig) -> None:
    """Raise what would stop the turn later: an unknown name or precision, a missing tool, no Ollama."""
    for method in config.methods:
        if ALGORITHMS.get(method).judges:
            why = "it makes a reward model, and a turn compares versions of the agent's model"
            raise InputError(f"method {method!r}", why, f"Train it by itself: thumbwheel train {method}")
    for name in config.export:
        FORMATS.get(name)
    if config.deploy:
        TARGETS.get(config.deploy)
    if GGUF in config.export or config.deploy == OLLAMA:
        convert.check_quantiser(precision(GGUF, config.quant) or "")
        for program in ("converter", "library", "bindings"):
            tools.require(program)
    if config.deploy == OLLAMA:
        with OllamaServer(address(ws.settings(OllamaConfig, f"deploy.{OLLAMA}").host)) as server:
            server.version()
