"""A vLLM server that runs already: its API loads and unloads adapters over the base that it serves.
It reads their files from the same disk.

It has to be started as `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve BASE --enable-lora`.
Whoever reaches such a server can have it read any folder, so it belongs on loopback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.core.addresses import leads_to_loopback
from thumbwheel.core.errors import ConfigError, Conflict, ModelError, ThumbwheelError
from thumbwheel.deploy.rendered_elsewhere import control_token_details, tell_of_template
from thumbwheel.deploy.types import Endpoint, Health, Package, TargetConfig
from thumbwheel.export.types import PEFT_ADAPTER

START = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve BASE --enable-lora --max-loras 2 "
    "--max-lora-rank 64 --host 127.0.0.1"
)


class VllmConfig(TargetConfig):
    """Where vLLM runs and which of its models is the base."""

    url: str = "http://127.0.0.1:8000"
    """Address of the server"""
    base: str | None = None
    """Name under which it serves the base [default: its only model]"""
    key_variable: str = "VLLM_API_KEY"
    """Environment variable with its --api-key, where it has one"""


class Vllm:
    """The contract is in target.py."""

    Config = VllmConfig
    kinds = (PEFT_ADAPTER,)
    named = True
    lacks = frozenset(
        {
            CallFeature.EMBEDDINGS,
            CallFeature.GRAMMAR,
            CallFeature.OWN_PROMPT,
            CallFeature.PROVIDER_TOOLS,
            CallFeature.STORED_STATE,
        }
    )

    def check(self, settings: VllmConfig) -> None:
        """Ask it for its models."""
        details = _details(settings)
        _models(Endpoint(f"{details['url']}/v1", "", details))

    def apply(self, package: Package, settings: VllmConfig) -> Endpoint:
        """Load the adapter under the package's name."""
        details = _details(settings)
        details |= {"folder": str(package.folder), "agent": package.agent}
        endpoint = Endpoint(f"{details['url']}/v1", package.name, details)
        models = _models(endpoint)
        base = _check_base(models, package, settings)
        file = package.folder / "chat_template.jinja"
        tell_of_template(package, "vLLM", f"Start vLLM with --chat-template {file}")
        _load(endpoint, package.name, models, settings.wait)
        details["context"] = base.get("max_model_len")
        details |= control_token_details(package)
        return Endpoint(endpoint.url, package.name, details)

    def health(self, endpoint: Endpoint) -> Health:
        """Return whether the server answers and has this adapter."""
        try:
            model = _models(endpoint).get(endpoint.model)
        except ThumbwheelError as error:
            return Health(False, f"{error.what}: {error.why}")
        if model is None:
            return Health(
                False,
                f"vLLM has no adapter {endpoint.model!r} any more; one that was started again has "
                "none",
            )
        root = model.get("root")
        if root != endpoint.details["folder"]:
            return Health(False, f"vLLM has another adapter under that name, from {root}")
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Unload the adapter. The aliases under which it is loaded go too, unless another
        deployment has loaded it."""
        names = []
        for name, model in _models(endpoint).items():
            if model.get("parent") and model.get("root") == endpoint.details["folder"]:
                names.append(name)
        is_deployment = re.compile(rf"{endpoint.details['agent']}-v\d")
        others = [name for name in names if name != endpoint.model and is_deployment.match(name)]
        for name in names:
            if name == endpoint.model or not others:
                _ask(endpoint, "unload_lora_adapter", {"lora_name": name}, missing=True)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Load the adapter under the alias too, in place of the one that is there."""
        _load(endpoint, alias, _models(endpoint))

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return its API key."""
        return os.environ.get(str(endpoint.details["key_variable"]))


VLLM = Vllm()


def _details(settings: VllmConfig) -> dict[str, Any]:
    return {
        "url": settings.url.rstrip("/").removesuffix("/v1"),
        "key_variable": settings.key_variable,
    }


def _load(
    endpoint: Endpoint, name: str, models: Mapping[str, Mapping[str, Any]], wait: float = 120.0
) -> None:
    loaded = models.get(name)
    folder = str(endpoint.details["folder"])
    if loaded is not None and not loaded.get("parent"):
        raise Conflict(
            f"model {name!r} of vLLM at {endpoint.url}",
            "it is the base's name",
            "Serve the base as another one: --served-model-name",
        )
    if loaded is None or loaded.get("root") != folder:
        body = {"lora_name": name, "lora_path": folder, "load_inplace": loaded is not None}
        _ask(endpoint, "load_lora_adapter", body, wait=wait)


def _check_base(
    models: Mapping[str, Mapping[str, Any]], package: Package, settings: VllmConfig
) -> Mapping[str, Any]:
    """Return vLLM's entry of its base. Raises ConfigError or ModelError for another base than the
    adapter's."""
    bases = {name: model for name, model in models.items() if not model.get("parent")}
    if settings.base is not None and settings.base not in bases:
        raise ConfigError(
            f"base {settings.base!r}",
            f"vLLM at {settings.url} serves {', '.join(bases)}",
            "Name one of these with --set base=NAME",
        )
    served = bases.get(settings.base or "") or next(iter(bases.values()), {})
    root = Path(str(served.get("root") or served.get("id")))
    if root.is_dir() and not root.samefile(package.base):
        raise ModelError(
            f"adapter of {package.name!r}",
            f"it is over {package.base}, and vLLM at {settings.url} serves {root}",
            f"Start vLLM with {package.base}",
        )
    return served


def _models(endpoint: Endpoint) -> dict[str, dict[str, Any]]:
    reply = _ask(endpoint, "models").json()
    return {str(model["id"]): model for model in reply.get("data", [])}


def _ask(
    endpoint: Endpoint,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    missing: bool = False,
    wait: float = 10.0,
) -> httpx2.Response:
    what = f"vLLM at {endpoint.url}"
    key = os.environ.get(str(endpoint.details["key_variable"]))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx2.request(
            "GET" if body is None else "POST",
            f"{endpoint.url}/{path}",
            json=body,
            headers=headers,
            timeout=wait,
            trust_env=not leads_to_loopback(endpoint.url),
        )
    except httpx2.TransportError as error:
        raise ModelError(what, f"nothing answers there ({error})", f"Start it: {START}") from None
    if reply.status_code < 400 or (missing and reply.status_code == 404):
        return reply
    if reply.status_code in (401, 403):
        raise ModelError(
            what, "it needs a key", f"Set {endpoint.details['key_variable']} to its --api-key"
        )
    why = " ".join(reply.text.split())[:300]
    if (
        reply.status_code in (404, 405)
        and "cannot be found" not in why
        and "No adapter found" not in why
    ):
        raise ModelError(
            what, "it does not load adapters while it runs", f"Start it like this: {START}"
        )
    raise ModelError(
        what, f"{path}: {why}", "See its log; an adapter of a higher rank needs --max-lora-rank"
    )
