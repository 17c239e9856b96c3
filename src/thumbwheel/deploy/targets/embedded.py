"""Thumbwheel's own server over transformers and PEFT: one detached process per base, with adapters
that are loaded and unloaded while it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import httpx2
from pydantic import Field

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.deploy import processes
from thumbwheel.deploy.processes import Running
from thumbwheel.deploy.types import Endpoint, Health, Package, TargetConfig
from thumbwheel.export.types import HF_MODEL, PEFT_ADAPTER

TOKEN, MODELS, SPEC = "THUMBWHEEL_EMBEDDED_TOKEN", "models.json", "spec.json"


class EmbeddedConfig(TargetConfig):
    """The embedded target: for a few users, for demos and for tests. It computes one answer at a
    time."""

    port: int = Field(default=0, ge=0, le=65535)
    """Where the server listens on loopback; 0 takes any free port"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the base; auto is the one that it was saved in"""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes the accelerator where there is one"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU; by default those that torch takes"""


class Embedded:
    """The contract is in target.py."""

    Config = EmbeddedConfig
    kinds = (PEFT_ADAPTER, HF_MODEL)
    named = False
    lacks = frozenset(
        {
            CallFeature.MEDIA,
            CallFeature.PENALTIES,
            CallFeature.GRAMMAR,
            CallFeature.OWN_PROMPT,
            CallFeature.PROVIDER_TOOLS,
            CallFeature.STORED_STATE,
        }
    )

    def check(self, settings: EmbeddedConfig) -> None:
        """Check nothing: the server belongs to this home, and `apply` starts it."""

    def apply(self, package: Package, settings: EmbeddedConfig) -> Endpoint:
        """Start the process of the base if none runs, and load the adapter into it."""
        base = package.base if package.kind == PEFT_ADAPTER else package.folder
        server_name = package.base_fingerprint[:16] if package.base_fingerprint else package.name
        folder = package.state_folder / server_name
        adapter = str(package.folder) if package.kind == PEFT_ADAPTER else None
        body: dict[str, Any] = {"lora_name": package.name, "lora_path": adapter}
        if adapter is None and package.template is not None:
            body["template"] = package.template.model_dump(mode="json")
        what = f"the embedded server of {base.name}"
        with processes.locked(folder):
            is_new = processes.find(folder) is None
            running = _server(folder, base, settings, what, package.bind)
            try:
                _post(folder, running, "load_lora_adapter", body)
            except BaseException:
                if is_new and not _stored_models(folder):
                    processes.stop(folder)
                raise
            processes.note_sound(folder, running)
        details = {
            "place": str(folder),
            "context": _context(base),
            "is_reachable": running.is_reachable,
        }
        return Endpoint(f"{running.url}/v1", package.name, details)

    def health(self, endpoint: Endpoint) -> Health:
        """Return whether the process runs and has the model."""
        folder = Path(endpoint.details["place"])
        running = processes.find(folder)
        if running is None or not _ready(running):
            return Health(False, processes.failure_reason(folder))
        if f"{running.url}/v1" != endpoint.url:
            return Health(False, f"its server was started again and answers at {running.url} now")
        if endpoint.model not in _names(running):
            return Health(False, f"its server runs without {endpoint.model!r}")
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Unload it, and stop the process of a base that has no models left."""
        folder = Path(endpoint.details["place"])
        with processes.locked(folder):
            running = processes.find(folder)
            if running is not None and _ready(running):
                body = {"lora_name": endpoint.model}
                remaining = _post(folder, running, "unload_lora_adapter", body)["left"]
            else:
                models = _stored_models(folder)
                models.pop(endpoint.model, None)
                processes.write(folder / MODELS, json.dumps(models))
                remaining = len(models)
            if not remaining:
                processes.stop(folder)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Do nothing: the gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return the token of the process."""
        folder = Path(endpoint.details["place"])
        what = f"model {endpoint.model!r} on the embedded target"
        return processes.token(folder, endpoint.url, what)


def _server(folder: Path, base: Path, settings: EmbeddedConfig, what: str, bind: str) -> Running:
    spec = {
        "base": str(base),
        "dtype": settings.dtype,
        "device": _device(settings.device),
        "port": settings.port,
        "threads": settings.threads,
        "bind": bind,
    }
    running = processes.answering(folder, _ready)
    if running is not None:
        if json.loads((folder / SPEC).read_text(encoding="utf-8")) != spec:
            log.say(
                f"note: {what} runs already, with the settings that it was started with; they "
                "change after every version is undeployed"
            )
        return running
    processes.write(folder / SPEC, json.dumps(spec))
    threads = {"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {}
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
    }

    def command(port: int, token: str) -> tuple[list[str], dict[str, str]]:
        program = [sys.executable, "-P", "-W", "ignore", "-m", "thumbwheel.deploy.embedded"]
        return [*program, str(folder), str(port), bind], quiet | threads | {TOKEN: token}

    return processes.start(
        folder, command, _ready, what=what, wait=settings.wait, port=settings.port, bind=bind
    )


def _context(base: Path) -> int | None:
    """Return the tokens that the base takes; None if its configuration does not say."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
        context = config.get("max_position_embeddings", config.get("n_positions"))
    except (OSError, ValueError, AttributeError):
        return None
    return context if isinstance(context, int) else None


def _device(setting: str) -> str:
    from thumbwheel.core.hardware import device

    return device() if setting == "auto" else setting


def _stored_models(folder: Path) -> dict[str, Any]:
    """Return the models that the server should have, as it stored them; empty if they cannot be
    read."""
    try:
        return dict(json.loads((folder / MODELS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _ready(running: Running) -> bool:
    return running.answers("v1/models")


def _names(running: Running) -> list[str]:
    return [model["id"] for model in running.ask("GET", "v1/models").json()["data"]]


def _post(folder: Path, running: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = running.ask("POST", f"v1/{path}", body, timeout=300.0)
    except httpx2.HTTPError:
        raise ModelError(
            f"model {body['lora_name']!r}", processes.failure_reason(folder), "Deploy it again"
        ) from None
    if reply.status_code != 200:
        why = reply.text[:300]
        if reply.text.startswith("{"):
            why = reply.json().get("error", {}).get("message", why)
        raise ModelError(
            f"model {body['lora_name']!r} on the embedded target",
            why,
            "Export it with --format merged, or check its base",
        )
    return dict(reply.json())


EMBEDDED = Embedded()
