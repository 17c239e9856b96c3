"""llama.cpp: one llama-server router per home, which starts a process for every version.

The router reads a file of presets, one section per version, and reloads it on request, so versions
come and go while others answer. A process that switches LoRA adapters mixes up its caches. So no
process serves two adapters: an adapter is named in its section and applied from the start, the
prompt cache in memory is off for it, and every request states its scale.
"""

from __future__ import annotations

import json
import time
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
from pydantic import Field

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.deploy import processes, profiles
from thumbwheel.deploy.processes import Running
from thumbwheel.deploy.rendered_elsewhere import (
    adapted_template_file,
    control_token_details,
    may_show_tools,
)
from thumbwheel.deploy.types import Endpoint, Health, Package, TargetConfig
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL
from thumbwheel.llm import llama_server, tools

MODELS, PRESETS = "models.json", "presets.ini"
POLL = 0.05
MAX_MODELS = "64"
"""Models at once; 0 would mean any number, but then none may load on startup."""


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
    """The contract is in target.py."""

    Config = LlamaCppConfig
    kinds = (GGUF_MODEL, GGUF_ADAPTER)
    named = False
    lacks = frozenset(
        {
            CallFeature.MEDIA,
            CallFeature.EMBEDDINGS,
            CallFeature.OWN_PROMPT,
            CallFeature.PROVIDER_TOOLS,
            CallFeature.STORED_STATE,
        }
    )

    def check(self, settings: LlamaCppConfig) -> None:
        """Check nothing: the server belongs to this home, and `apply` starts it."""

    def apply(self, package: Package, settings: LlamaCppConfig) -> Endpoint:
        """Start the router if none runs, add the section, load the model."""
        folder, section = package.state_folder, _section(package, settings)
        with processes.locked(folder):
            before = _sections(folder)
            running = _router(folder, settings, package.bind)
            try:
                _write_sections(folder, running, before | {package.name: section})
                _load(folder, running, package.name, settings.wait)
            except BaseException:
                _write_sections(folder, running, before)
                if not before:
                    processes.stop(folder)
                raise
            processes.note_sound(folder, running)
        body = llama_server.with_adapters([1.0]) if package.kind == GGUF_ADAPTER else {}
        context = int(section["ctx-size"]) // int(section["parallel"])
        details = {
            "place": str(folder),
            "context": context,
            "shows_tools": may_show_tools(package),
            "is_reachable": running.is_reachable,
            **control_token_details(package),
        }
        return Endpoint(f"{running.url}/v1", package.name, details, body)

    def health(self, endpoint: Endpoint) -> Health:
        """Return whether the router runs and has loaded the model."""
        folder = Path(endpoint.details["place"])
        running = processes.find(folder)
        if running is None or not running.answers("health"):
            return Health(False, processes.failure_reason(folder))
        if f"{running.url}/v1" != endpoint.url:
            return Health(False, f"its router was started again and answers at {running.url} now")
        state = _state(running, endpoint.model)
        if state != "loaded":
            return Health(False, f"llama-server has it as {state}: {processes.tail(folder)}")
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Remove its section, which ends its process. The router ends with its last section."""
        folder = Path(endpoint.details["place"])
        with processes.locked(folder):
            remaining = _sections(folder)
            remaining.pop(endpoint.model, None)
            _write_sections(folder, processes.find(folder), remaining)
            if not remaining:
                processes.stop(folder)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Do nothing: the gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return the key of the router."""
        folder = Path(endpoint.details["place"])
        return processes.token(folder, endpoint.url, f"model {endpoint.model!r} on llama.cpp")


def _section(package: Package, settings: LlamaCppConfig) -> dict[str, Any]:
    from thumbwheel.core.hardware import machine

    profile = profiles.choose(settings.profile, machine())
    parallel = settings.parallel or profile.parallel
    gpu_layers = profile.gpu_layers if settings.gpu_layers is None else settings.gpu_layers
    is_adapter = package.kind == GGUF_ADAPTER
    flags = {
        "model": package.base if is_adapter else package.model,
        "lora": package.model if is_adapter else None,
        "cache-ram": 0 if is_adapter else None,
        "parallel": parallel,
        "ctx-size": (settings.context or profile.context) * parallel,
        "threads": settings.threads or profile.threads or llama_server.default_threads(),
        "flash-attn": "on" if profile.flash_attention else None,
        "n-gpu-layers": gpu_layers,
        "chat-template-file": adapted_template_file(package) if is_adapter else None,
        "load-on-startup": "true",  # so that a router that is started again loads all of them
    }
    return {key: str(value) for key, value in flags.items() if value is not None}


def _router(folder: Path, settings: LlamaCppConfig, bind: str) -> Running:
    running = processes.answering(folder, _ready)
    if running is not None:
        if settings.port not in (0, running.port):
            log.say(
                f"note: the router runs already, on port {running.port}; it moves after every "
                "version is undeployed"
            )
        return running
    program = tools.require("llama-server").path
    _write_sections(folder, None, _sections(folder))

    def command(port: int, token: str) -> tuple[list[str], dict[str, str]]:
        flags = {
            "--models-preset": str(folder / PRESETS),
            "--models-max": MAX_MODELS,
            "--host": bind,
            "--port": str(port),
        }
        arguments = [str(program), *chain.from_iterable(flags.items()), "--no-webui", "--offline"]
        environment = llama_server.environment(token) | {"LLAMA_CACHE": str(folder / "cache")}
        return arguments, environment

    return processes.start(
        folder,
        command,
        _ready,
        what="llama-server",
        wait=settings.wait,
        port=settings.port,
        bind=bind,
    )


def _ready(running: Running) -> bool:
    return running.answers("health")


def _sections(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / MODELS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def _write_sections(folder: Path, running: Running | None, sections: dict[str, Any]) -> None:
    """Write the presets, and have a running router reload them. The process of a section that is
    gone or changed ends."""
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {value}" for key, value in section.items()]
        lines.append("")
    processes.write(folder / PRESETS, "".join(f"{line}\n" for line in lines))
    processes.write(folder / MODELS, json.dumps(sections, indent=1))
    if running is not None and running.answers("health"):
        running.ask("GET", "models?reload=1", timeout=60.0)


def _load(folder: Path, running: Running, name: str, wait: float) -> None:
    deadline = time.monotonic() + wait
    failed = 0
    running.ask("POST", "models/load", {"model": name})
    while (state := _state(running, name)) != "loaded":
        failed += state == "failed"
        if failed > 1 or time.monotonic() > deadline:
            why = f"llama-server has it as {state}: {processes.tail(folder)}"
            raise ModelError(
                f"model {name!r} on llama.cpp",
                why,
                "Check that the file is complete and its architecture is supported there",
            )
        time.sleep(POLL)


def _state(running: Running, name: str) -> str:
    """Return the router's state of a model: loaded, loading, unloaded, failed; unknown if it does
    not answer."""
    try:
        models = running.ask("GET", "models").json()["data"]
    except (httpx2.HTTPError, ValueError, KeyError):
        return "unknown"
    unknown = {"value": "unknown"}
    status = next((model["status"] for model in models if model["id"] == name), unknown)
    return "failed" if status.get("failed") else str(status["value"])


LLAMACPP = LlamaCpp()
