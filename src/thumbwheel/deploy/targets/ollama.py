"""Ollama over HTTP: a GGUF file becomes a model with our system text, parameters and stop texts; an
adapter becomes a model over that of its base.

A model is created under a temporary name, loaded, and only then copied to the name that clients
use, so a failure leaves what was there. Which names are ours is recorded in the home; a name that
somebody else gave is never taken.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.core import ids, log
from thumbwheel.core.errors import ConfigError, Conflict, ModelError, ThumbwheelError
from thumbwheel.deploy import modelfile, processes
from thumbwheel.deploy.chat_template import go_text
from thumbwheel.deploy.modelfile import ModelConfig
from thumbwheel.deploy.ollama_api import NAME, OllamaServer, Version, address, full_name
from thumbwheel.deploy.rendered_elsewhere import control_token_details, tell_of_template
from thumbwheel.deploy.types import Endpoint, Health, Package, TargetConfig
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL, ModelKind

OLDEST: Version = (0, 5, 5)
"""Before it /api/create took the text of a Modelfile."""
JINJA: Version = (0, 30)
"""Since then the chat template inside the GGUF file is used; before, only Go templates were."""
NO_ADAPTERS: Version = (0, 34, 1)
"""Since then adapters are refused."""
GUESSED = "using autodetected template"
"""Beginning of the status with which /api/create says that it took a built-in template that is
similar to the model's own."""


class OllamaConfig(ModelConfig, TargetConfig):
    """Where Ollama runs, and how it hosts the model."""

    host: str | None = None
    """Its address, as 127.0.0.1:11434 [default: OLLAMA_HOST, else that one]"""
    name: str | None = None
    """A further name for the live version, as toolbox-support for `ollama run toolbox-support`"""
    keep_alive: int | str = -1
    """How long the model stays loaded: 30m, seconds, or -1 for ever"""


class Ollama:
    """The contract is in target.py."""

    Config = OllamaConfig
    kinds = (GGUF_MODEL, GGUF_ADAPTER)
    named = True
    lacks = frozenset(
        {
            CallFeature.MEDIA,
            CallFeature.SEVERAL_ANSWERS,
            CallFeature.GRAMMAR,
            CallFeature.PROVIDER_TOOLS,
            CallFeature.STORED_STATE,
        }
    )

    def check(self, settings: OllamaConfig) -> tuple[ModelKind, ...] | None:
        """Ask for its version: without a server, minutes of conversion would be in vain, and a new
        one takes no adapters."""
        with _server(settings) as server:
            return (GGUF_MODEL,) if server.version() >= NO_ADAPTERS else None

    def apply(self, package: Package, settings: OllamaConfig) -> Endpoint:
        """Create the model, load it, and return its /v1 endpoint."""
        for name in filter(None, (package.name, settings.name)):
            _check_name(name)
        with _server(settings) as server:
            version = server.version()
            _check_version(server, version, package.kind)
            record = OwnedNames(package.state_folder, server.url)
            name = full_name(package.name)
            fingerprint = _fingerprint(package, settings, version)
            with processes.locked(package.state_folder):
                if not record.is_current(name, fingerprint, server.digests()):
                    record.claim(name, server.digests())
                    _build(server, package, settings, version)
                    record.set(name, fingerprint, server.digests()[name])
            server.load(name, settings.keep_alive)
            details = {
                "host": server.url,
                "digest": record.digest(name),
                "place": str(package.state_folder),
                "agent": package.agent,
                "name": settings.name,
                "context": settings.parameters().get("num_ctx"),
                **control_token_details(package),
            }
            return Endpoint(f"{server.url}/v1", package.name, details)

    def health(self, endpoint: Endpoint) -> Health:
        """Return whether the server answers and still has this very model."""
        try:
            with OllamaServer(str(endpoint.details["host"]), wait=5.0) as server:
                digest = server.digests().get(full_name(endpoint.model))
        except ThumbwheelError as error:
            return Health(False, f"{error.what}: {error.why}")
        if digest == endpoint.details["digest"]:
            return Health(True)
        other = "another" if digest else "no"
        return Health(False, f"Ollama has {other} model {endpoint.model!r} now")

    def remove(self, endpoint: Endpoint) -> None:
        """Unload and delete the model and the aliases that name it; an adapter's base stays."""
        folder, digest = Path(endpoint.details["place"]), endpoint.details["digest"]
        with OllamaServer(str(endpoint.details["host"])) as server, processes.locked(folder):
            record = OwnedNames(folder, server.url)
            digests = server.digests()
            model = full_name(endpoint.model)
            if digests.get(model) == digest:
                server.load(model, 0)
            for name in record.of(model):
                if digests.get(name) == digest:
                    server.delete(name)
                if digests.get(name) in (digest, None):
                    record.forget(name)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Let `alias` name this version, and so the extra name if the alias is the live one."""
        folder, digest = Path(endpoint.details["place"]), str(endpoint.details["digest"])
        is_live = alias == endpoint.details["agent"]
        extra_name = endpoint.details.get("name") if is_live else None
        with OllamaServer(str(endpoint.details["host"])) as server, processes.locked(folder):
            for name in map(full_name, filter(None, (alias, extra_name))):
                _check_name(name)
                record = OwnedNames(folder, server.url)
                record.claim(name, server.digests())
                server.copy(endpoint.model, name)
                record.set(name, full_name(endpoint.model), digest)

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return None: Ollama has no secret."""
        return None


OLLAMA = Ollama()


def _server(settings: OllamaConfig) -> OllamaServer:
    variables = settings.hosting().ollama_environment()
    environment = " ".join(f"{name}={value}" for name, value in variables.items())
    return OllamaServer(address(settings.host), settings.wait, start=f"{environment} ollama serve")


class OwnedNames:
    """The record of the names on a server that are ours: name -> its digest, and the fingerprint of
    what it was created from (of an alias: the model's name). It is written before a name is
    used."""

    def __init__(self, folder: Path, url: str) -> None:
        self._place = str(folder.resolve())
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', url)}.json"

    def of(self, model: str) -> list[str]:
        """Return the model's own name and its aliases."""
        entries = self._read().items()
        return [name for name, entry in entries if model in (name, entry["from"])]

    def digest(self, name: str) -> str:
        """Return the digest of the model that was recorded under this name."""
        return str(self._read()[name]["digest"])

    def is_current(self, name: str, fingerprint: str, digests: Mapping[str, str]) -> bool:
        """Return whether the server has the model that was created from the inputs of
        `fingerprint`."""
        entry = self._read().get(name)
        if entry is None:
            return False
        return (entry["from"], entry["digest"]) == (fingerprint, digests.get(name))

    def claim(self, name: str, digests: Mapping[str, str]) -> None:
        """Record `name` as owned by this home. Raises Conflict if the server has a model of that
        name that this home did not create."""
        names = self._read()
        if name not in names and name in digests:
            fix = f"Rename or remove it (ollama cp, ollama rm {name}), or choose another name"
            raise Conflict(
                f"Ollama model {name!r}", "it exists, and Thumbwheel did not create it", fix
            )
        self._write({name: {"from": "", "digest": ""}} | names)

    def set(self, name: str, source: str, digest: str) -> None:
        """Record the source and the digest of `name`."""
        self._write(self._read() | {name: {"from": source, "digest": digest}})

    def forget(self, name: str) -> None:
        """Record that this home no longer owns `name`."""
        names = self._read()
        names.pop(name, None)
        self._write(names)

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        record = json.loads(self._path.read_text(encoding="utf-8"))
        if record.get("place") != self._place:
            return {}  # a copied home: what the original created on the server is the original's
        return dict(record["names"])

    def _write(self, names: Mapping[str, Any]) -> None:
        record = {"place": self._place, "names": dict(names)}
        processes.write(self._path, json.dumps(record, indent=2))


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"Ollama model name {name!r}",
            "a name has letters, digits, _ . and -, at most 80",
            "Choose another one",
        )


def _check_version(server: OllamaServer, version: Version, kind: ModelKind) -> None:
    what = f"Ollama {'.'.join(map(str, version))} at {server.url}"
    if version < OLDEST:
        raise ModelError(
            what,
            "its API cannot accept model files",
            "Update it to 0.5.5 or newer: https://ollama.com/download",
        )
    if kind == GGUF_ADAPTER and version >= NO_ADAPTERS:
        raise ModelError(what, "it no longer accepts adapters", "Deploy it as a whole GGUF file")


def _fingerprint(package: Package, settings: OllamaConfig, version: Version) -> str:
    """Return the hash of everything that the model is created from. An Ollama on the other side of
    0.30 needs another template."""
    parts = [
        package.kind.name,
        dict(package.files),
        str(package.base),
        package.stops,
        package.system,
        settings.parameters(),
        version >= JINJA,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _build(
    server: OllamaServer, package: Package, settings: OllamaConfig, version: Version
) -> None:
    """Create the model under a temporary name, load it, and copy it to the real name. The temporary
    name is deleted even if a step fails."""
    temporary_name = f"{package.name}-unfinished"
    template = go_text(package) if version < JINJA else None
    if template is None and package.kind == GGUF_ADAPTER:
        tell_of_template(package, "Ollama", "Export it with --format gguf, then deploy it")
    fields = modelfile.of(package, settings, template).fields()
    try:
        _create(server, temporary_name, _source(server, package) | fields, package)
        server.load(temporary_name, settings.keep_alive)
        server.copy(temporary_name, package.name)
    finally:
        with suppress(ThumbwheelError):
            server.delete(temporary_name)


def _create(server: OllamaServer, name: str, fields: Mapping[str, Any], package: Package) -> None:
    """Create `name`, with the model's own chat template if Ollama would take another one. Raises
    ModelError if Ollama stores other texts."""
    statuses = server.create(name, fields)
    if "template" not in fields and any(line.startswith(GUESSED) for line in statuses):
        log.say(
            f"note: {server.url} took a built-in chat template for a like one; it is given the "
            "model's own"
        )
        fields = {**fields, "template": go_text(package)}
        server.create(name, fields)
    stored = server.show(name)
    changed = [
        part
        for part in ("template", "system")
        if part in fields and stored.get(part) != fields[part]
    ]
    if changed:
        why = f"Ollama did not keep its {' and '.join(changed)}"
        raise ModelError(f"model {name!r} of {server.url}", why, "Report it with Ollama's version")


def _source(server: OllamaServer, package: Package) -> dict[str, Any]:
    """Upload the files of the model and return them as fields of /api/create."""
    name = package.model.name
    digest = package.files[name]
    server.put(package.model, digest)
    if package.kind == GGUF_MODEL:
        return {"files": {name: f"sha256:{digest}"}}
    base = ids.file_hash(package.base)
    base_name = f"thumbwheel-base-{base[:16]}"
    if full_name(base_name) not in server.digests():
        server.put(package.base, base)
        _create(server, base_name, {"files": {package.base.name: f"sha256:{base}"}}, package)
    return {"from": base_name, "adapters": {name: f"sha256:{digest}"}}
