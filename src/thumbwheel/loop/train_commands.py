"""`thumbwheel train METHOD`, with the options that take a candidate all the way: `--export`, `--register-ollama`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from thumbwheel.core.config import Config
from thumbwheel.training.commands import Sequel, group

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.loop.ship import Shipped


class ShipConfig(Config):
    """What becomes of a candidate that was just trained."""

    export: bool = False
    """Afterwards: evaluate it, and write it as GGUF if the gate approves."""
    quant: str | None = None
    """Precision of that GGUF, as q4_k_m; unset, what this machine's memory holds."""
    register_ollama: bool = False
    """With --export: also deploy it in Ollama."""
    model_name: str | None = None
    """With --register-ollama: its name there; unset, the agent's and the version's."""

    @model_validator(mode="after")
    def _whole(self) -> ShipConfig:
        if not self.export and (self.quant or self.register_ollama):
            raise ValueError("quant and register_ollama are about what is exported: give --export as well")
        if self.model_name and not self.register_ollama:
            raise ValueError("model_name is a name in Ollama: give --register-ollama as well")
        return self


def _ready(ws: Workspace, config: ShipConfig) -> None:
    from thumbwheel.loop.ship import GGUF, OLLAMA, ready

    if config.export:
        ready(ws, GGUF, OLLAMA if config.register_ollama else None, config.quant)


def _run(ws: Workspace, agent: str, version: str, config: ShipConfig, as_json: bool) -> tuple[int, dict[str, Any]]:
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.evaluation.policy import Verdict
    from thumbwheel.loop.ship import GGUF, OLLAMA, ship

    if not config.export:
        return 0, {}
    target = OLLAMA if config.register_ollama else None
    found = ship(ws, agent, version, format=GGUF, quant=config.quant, target=target, settings={"name": config.model_name})
    if not as_json:
        log.table(f"{version}: {found.verdict}", ("reasons",), [(reason,) for reason in found.reasons])
        for line in _where(found, config.model_name):
            log.say(line)
    return int(found.verdict is Verdict.REJECTED), {"shipped": asdict(found)}


def _where(found: Shipped, name: str | None) -> Iterator[str]:
    from thumbwheel.models.types import LIVE

    if found.export:
        yield f"written to {found.export.path}"
    if found.deployed:
        one, switch = found.deployed.deployment, found.deployed.switch
        also = f", as {name} too" if name and switch and switch.alias == LIVE else ""
        alias = f" --alias {switch.alias}" if switch and switch.alias != LIVE else ""
        yield f"{one.name} answers in Ollama{also}; back: thumbwheel rollback --agent {one.agent}{alias}"
    if not found.export:
        yield "nothing was written or deployed, and what answers today goes on answering"


train = group(Sequel(ShipConfig, _ready, _run))
