"""From a candidate to what answers, in one go: evaluate, let the gate decide, write out what it approved, deploy it.

Nothing that the gate rejects leaves the home; what it approves on feedback alone is deployed as `canary`, never as `live`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.models.types import LIVE

if TYPE_CHECKING:
    from thumbwheel.deploy.rollout import Deployed
    from thumbwheel.export.types import Export

GGUF, OLLAMA, CANARY = "gguf", "ollama", "canary"


@dataclass(frozen=True)
class Shipped:
    """How far a version came; `export` and `deployed` are None where the gate rejected it or they were not asked for."""

    version: str
    verdict: Verdict
    reasons: tuple[str, ...]
    export: Export | None = None
    deployed: Deployed | None = None


def ready(ws: Workspace, format: str | None, target: str | None, quant: str | None = None) -> None:
    """Raise before a training run what would stop `ship` after it: a missing tool, a precision that nothing here can write, no Ollama."""
    from thumbwheel.deploy.ollama_api import OllamaServer, address
    from thumbwheel.deploy.targets.ollama import OllamaConfig
    from thumbwheel.export.package import precision
    from thumbwheel.llm import convert, tools

    if format == GGUF or target == OLLAMA:
        convert.check_quantiser(precision(GGUF, quant) or "")
        for name in ("converter", "library", "bindings"):
            tools.require(name)
    if target == OLLAMA:
        with OllamaServer(address(ws.settings(OllamaConfig, f"deploy.{OLLAMA}").host)) as server:
            server.version()


def ship(
    ws: Workspace,
    agent: str,
    version: str,
    *,
    format: str | None = None,
    quant: str | None = None,
    to: Path | None = None,
    target: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Shipped:
    """Evaluate `version`; where the gate approves, write it as `format` to `to`, and deploy it on `target` with `settings`."""
    from thumbwheel.deploy.rollout import deploy
    from thumbwheel.evaluation.evaluate import evaluate
    from thumbwheel.evaluation.gate import gate
    from thumbwheel.export.package import export

    decision = gate(ws, evaluate(ws, agent, version)).decision
    if decision.verdict is Verdict.REJECTED:
        return Shipped(version, decision.verdict, decision.reasons)
    written = export(ws, agent, version, format, to, quant) if format else None
    quant = written.quant if written and format == GGUF else quant  # so that the file is deployed, not a second one
    alias = LIVE if decision.verdict is Verdict.APPROVED else CANARY
    deployed = deploy(ws, agent, version, target, alias, quant=quant, settings=settings) if target else None
    return Shipped(version, decision.verdict, decision.reasons, written, deployed)
