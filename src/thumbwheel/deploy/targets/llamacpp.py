"""llama.cpp: one llama-server router of the home, with a process of its own for every version,
found again by its record.

The router reads a file of presets, one section a version, and reads it anew on request; so a
version comes and goes while others answer. One process that switches LoRA adapters mixes up what it
has cached under them, therefore none ever serves two: an adapter is named in its section and
applied from the start, the cache of prompts in memory is off for it, and every request says its
scale.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
from pydantic import Field

from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.deploy import processes, profiles
from thumbwheel.deploy.processes import Running
from thumbwheel.deploy.types import Endpoint, Health, Kind, Package, TargetConfig
from thumbwheel.llm import llama_server, tools
from thumbwheel.llm.port import HOST

MODELS, PRESETS = "models.json", "presets.ini"
POLL = 0.05
MOST = "64"
"""Models at once; 0 means any number, but then none may load on startup."""


class LlamaCppConfig(TargetConfig):
    """The llamacpp target. What is not set follows the hosting profile."""

    port: int = Field(default=0, ge=0, le=65535)
    """Where the router listens on loopback; 0 takes any free port"""
    profile: profiles.Choice = "auto"
    """Hosting profile: parallel answers, context, threads and GPU layers for this machine"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU; more than are free at once makes every token many times slower"""
    context: int | None = Field(default=None, ge=16)
    """Tokens of one prompt and its answer"""
    parallel: int | None = Field(default=None, ge=1)
    """Answers that are computed at once"""
    gpu_layers: int | None = Field(default=None, ge=0)
    """Layers on the GPU; 0 keeps the model on the CPU"""


class LlamaCpp:
    """See the contract (target.py)."""

    Config = LlamaCppConfig
    kinds = (Kind.GGUF, Kind.LORA_GGUF)
    named = False

    def check(self, settings: LlamaCppConfig) -> None:
        """Its server is ours, and `apply` starts it."""

    def apply(self, package: Package, settings: LlamaCppConfig) -> Endpoint:
        """Start the router where none runs, add the section, load the model."""
        place, section = package.place, _section(package, settings)
        with processes.held(place):
            before = _sections(place)
            running = _router(place, settings)
            try:
                _keep(place, running, before | {package.name: section})
                _load(place, running, package.name, settings.wait)
            except BaseException:
                _keep(place, running, before)
                if not before:
                    processes.stop(place)
                raise
        body = llama_server.with_adapters([1.0]) if package.kind is Kind.LORA_GGUF else {}
        return Endpoint(f"{running.url}/v1", package.name, {"place": str(place)}, body)

    def health(self, endpoint: Endpoint) -> Health:
        """Whether the router runs and has the model loaded."""
        place = Path(endpoint.details["place"])
        running = processes.find(place)
        if running is None or not running.answers("health"):
            return Health(False, processes.why_dead(place))
        if f"{running.url}/v1" != endpoint.url:
            return Health(False, f"its router was started again and answers at {running.url} now")
        state = _state(running, endpoint.model)
        return Health(
            state == "loaded",
            "" if state == "loaded" else f"llama-server has it as {state}: {processes.tail(place)}",
        )

    def remove(self, endpoint: Endpoint) -> None:
        """Take its section away, which ends its process; the router ends with the last one."""
        place = Path(endpoint.details["place"])
        with processes.held(place):
            left = {
                name: section
                for name, section in _sections(place).items()
                if name != endpoint.model
            }
            _keep(place, processes.find(place), left)
            if not left:
                processes.stop(place)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """The front door resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """The key of the router."""
        return processes.token(
            Path(endpoint.details["place"]), endpoint.url, f"model {endpoint.model!r} on llama.cpp"
        )


def _section(package: Package, settings: LlamaCppConfig) -> dict[str, Any]:
    from thumbwheel.core.hardware import machine

    profile = profiles.choose(settings.profile, machine())
    parallel = settings.parallel or profile.parallel
    asked = {
        "model": package.base if package.kind is Kind.LORA_GGUF else package.model,
        "lora": package.model if package.kind is Kind.LORA_GGUF else None,
        "cache-ram": 0 if package.kind is Kind.LORA_GGUF else None,
        "parallel": parallel,
        "ctx-size": (settings.context or profile.context) * parallel,
        "threads": settings.threads or profile.threads or llama_server.own_threads(),
        "flash-attn": "on" if profile.flash_attention else None,
        "n-gpu-layers": profile.gpu_layers if settings.gpu_layers is None else settings.gpu_layers,
        "load-on-startup": "true",  # a router that is started again has all of them warm
    }
    return {key: str(value) for key, value in asked.items() if value is not None}


def _router(place: Path, settings: LlamaCppConfig) -> Running:
    running = processes.find(place)
    if running is not None and running.answers("health"):
        if settings.port not in (0, running.port):
            log.say(
                f"note: the router runs already, on port {running.port}; it moves after every "
                "version is undeployed"
            )
        return running
    program = tools.require("llama-server").path
    _keep(place, None, _sections(place))

    def command(port: int, token: str) -> tuple[list[str], dict[str, str]]:
        flags = [
            "--models-preset",
            str(place / PRESETS),
            "--models-max",
            MOST,
            "--host",
            HOST,
            "--port",
            str(port),
        ]
        return [str(program), *flags, "--no-webui", "--offline"], {
            **llama_server.environment(token),
            "LLAMA_CACHE": str(place / "cache"),
        }

    return processes.start(
        place,
        command,
        lambda one: one.answers("health"),
        what="llama-server",
        wait=settings.wait,
        port=settings.port,
    )


def _sections(place: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((place / MODELS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def _keep(place: Path, running: Running | None, sections: dict[str, Any]) -> None:
    """Write the presets, and let a router that runs read them; a section that is gone or changed
    ends its process."""
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in one.items()) + "\n"
        for name, one in sections.items()
    )
    processes.write(place / PRESETS, text)
    processes.write(place / MODELS, json.dumps(sections, indent=1))
    if running is not None and running.answers("health"):
        running.ask("GET", "models?reload=1", timeout=60.0)


def _load(place: Path, running: Running, name: str, wait: float) -> None:
    deadline, failed = time.monotonic() + wait, 0
    running.ask("POST", "models/load", {"model": name})
    while (state := _state(running, name)) != "loaded":
        failed += state == "failed"
        if failed > 1 or time.monotonic() > deadline:
            why = f"llama-server has it as {state}: {processes.tail(place)}"
            raise ModelError(
                f"model {name!r} on llama.cpp",
                why,
                "See whether the file is whole and its architecture is known there",
            )
        time.sleep(POLL)


def _state(running: Running, name: str) -> str:
    """What the router says of a model: loaded, loading, unloaded, failed; unknown where it does not
    answer."""
    try:
        known = running.ask("GET", "models").json()["data"]
    except (httpx.HTTPError, ValueError, KeyError):
        return "unknown"
    status = next((one["status"] for one in known if one["id"] == name), {"value": "unknown"})
    return "failed" if status.get("failed") else str(status["value"])


LLAMACPP = LlamaCpp()
