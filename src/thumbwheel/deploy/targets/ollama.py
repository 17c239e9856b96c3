"""Ollama over HTTP: a GGUF file becomes a model with our system text, parameters and stops; an
adapter one over its base's model.

A model is made under a name of its own, loaded, and only then given the name that others use, so
that a failure leaves what was there. Which names are ours is written beside the deployment; a name
that somebody else gave is never taken.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import ConfigError, Conflict, ModelError, ThumbwheelError
from thumbwheel.deploy import modelfile, processes
from thumbwheel.deploy.chat_template import go_text
from thumbwheel.deploy.modelfile import ModelConfig
from thumbwheel.deploy.ollama_api import NAME, OllamaServer, Version, address, full_name
from thumbwheel.deploy.types import Endpoint, Health, Kind, Package, TargetConfig

OLDEST: Version = (0, 5, 5)
"""Before it /api/create took the text of a Modelfile."""
JINJA: Version = (0, 30)
"""From it on the chat template inside the GGUF file is used; before, only Go templates were."""
NO_ADAPTERS: Version = (0, 34, 1)
"""From it on adapters are refused."""
GUESSED = "using autodetected template"
"""How /api/create says that it took a built-in template that is merely like the model's own."""


class OllamaConfig(ModelConfig, TargetConfig):
    """Where Ollama runs, and how it hosts the model."""

    host: str | None = None
    """Its address, as 127.0.0.1:11434 [default: OLLAMA_HOST, else that one]"""
    name: str | None = None
    """A further name for the live version, as toolbox-isaa for `ollama run toolbox-isaa`"""
    keep_alive: int | str = -1
    """How long the model stays loaded: 30m, seconds, or -1 for ever"""


class Ollama:
    """See the contract in target.py."""

    Config = OllamaConfig
    kinds = (Kind.GGUF, Kind.LORA_GGUF)
    named = True

    def check(self, settings: OllamaConfig) -> None:
        """Ask whether it is there; converting a model for one that is not takes minutes."""
        with _server(settings) as server:
            server.version()

    def apply(self, package: Package, settings: OllamaConfig) -> Endpoint:
        """Make the model, load it, and return its /v1 endpoint."""
        for name in filter(None, (package.name, settings.name)):
            _check_name(name)
        with _server(settings) as server:
            version = server.version()
            _check_version(server, version, package.kind)
            record, name = Record(package.place, server.url), full_name(package.name)
            wanted = _fingerprint(package, settings, version)
            with processes.held(package.place):
                if not record.is_current(name, wanted, server.digests()):
                    record.claim(name, server.digests())
                    _make(server, package, settings, version)
                    record.made(name, wanted, server.digests()[name])
            server.load(name, settings.keep_alive)
            details = {
                "host": server.url,
                "digest": record.digest(name),
                "place": str(package.place),
            }
            return Endpoint(
                f"{server.url}/v1",
                package.name,
                {**details, "agent": package.agent, "name": settings.name},
            )

    def health(self, endpoint: Endpoint) -> Health:
        """Whether the server answers and still has this very model."""
        try:
            with OllamaServer(str(endpoint.details["host"]), wait=5.0) as server:
                found = server.digests().get(full_name(endpoint.model))
        except ThumbwheelError as error:
            return Health(False, f"{error.what}: {error.why}")
        if found == endpoint.details["digest"]:
            return Health(True)
        return Health(
            False, f"Ollama has {'another' if found else 'no'} model {endpoint.model!r} now"
        )

    def remove(self, endpoint: Endpoint) -> None:
        """Unload and delete the model with the aliases that still name it; an adapter's base stays."""
        place, digest = Path(endpoint.details["place"]), endpoint.details["digest"]
        with OllamaServer(str(endpoint.details["host"])) as server, processes.held(place):
            record, there, model = (
                Record(place, server.url),
                server.digests(),
                full_name(endpoint.model),
            )
            if there.get(model) == digest:
                server.load(model, 0)
            for name in record.of(model):
                if there.get(name) == digest:
                    server.delete(name)
                if there.get(name) in (digest, None):
                    record.forget(name)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Let `alias`, and the further name where it is the agent's own alias, name this version."""
        place, digest = Path(endpoint.details["place"]), str(endpoint.details["digest"])
        further = endpoint.details.get("name") if alias == endpoint.details["agent"] else None
        with OllamaServer(str(endpoint.details["host"])) as server, processes.held(place):
            for name in map(full_name, filter(None, (alias, further))):
                _check_name(name)
                record = Record(place, server.url)
                record.claim(name, server.digests())
                server.copy(endpoint.model, name)
                record.made(name, full_name(endpoint.model), digest)

    def secret(self, endpoint: Endpoint) -> str | None:
        """Ollama asks for none."""
        return None


OLLAMA = Ollama()


def _server(settings: OllamaConfig) -> OllamaServer:
    environment = " ".join(
        f"{name}={value}" for name, value in settings.hosting().ollama_environment().items()
    )
    return OllamaServer(address(settings.host), settings.wait, start=f"{environment} ollama serve")


class Record:
    """Which names on a server are ours: name -> what it was made from (an alias: a model's name),
    and its digest. Written before use."""

    def __init__(self, place: Path, url: str) -> None:
        self._place = str(place.resolve())
        self._path = place / f"{re.sub(r'[^A-Za-z0-9.]+', '-', url)}.json"

    def of(self, model: str) -> list[str]:
        """The model's own name and its aliases."""
        return [name for name, known in self._read().items() if model in (name, known["from"])]

    def digest(self, name: str) -> str:
        """What `name` was made to be."""
        return str(self._read()[name]["digest"])

    def is_current(self, name: str, wanted: str, there: Mapping[str, str]) -> bool:
        """Whether the server has what was made from `wanted`."""
        known = self._read().get(name)
        return known is not None and known["from"] == wanted and known["digest"] == there.get(name)

    def claim(self, name: str, there: Mapping[str, str]) -> None:
        """Note that `name` is to be ours; raises Conflict where it is somebody else's."""
        known = self._read()
        if name not in known and name in there:
            fix = f"Rename or remove it (ollama cp, ollama rm {name}), or choose another name"
            raise Conflict(f"Ollama model {name!r}", "it is there, and not ours", fix)
        self._write({name: {"from": "", "digest": ""}} | known)

    def made(self, name: str, made_from: str, digest: str) -> None:
        """Note what `name` is now."""
        self._write(self._read() | {name: {"from": made_from, "digest": digest}})

    def forget(self, name: str) -> None:
        """`name` is no longer ours."""
        self._write({other: known for other, known in self._read().items() if other != name})

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        record = json.loads(self._path.read_text(encoding="utf-8"))
        if (
            record.get("place") != self._place
        ):  # a copied home: what the original made on the server is the original's
            return {}
        return dict(record["names"])

    def _write(self, known: Mapping[str, Any]) -> None:
        processes.write(
            self._path, json.dumps({"place": self._place, "names": dict(known)}, indent=2)
        )


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"Ollama model name {name!r}",
            "a name has letters, digits, _ . and -, at most 80",
            "Choose another one",
        )


def _check_version(server: OllamaServer, version: Version, kind: Kind) -> None:
    said = f"Ollama {'.'.join(map(str, version))} at {server.url}"
    if version < OLDEST:
        raise ModelError(
            said,
            "it cannot take model files by its API",
            "Update it to 0.5.5 or newer: https://ollama.com/download",
        )
    if kind is Kind.LORA_GGUF and version >= NO_ADAPTERS:
        raise ModelError(said, "it takes no adapters any more", "Deploy it as a whole GGUF file")


def _fingerprint(package: Package, settings: OllamaConfig, version: Version) -> str:
    """Of all that the model is made from; an Ollama on the other side of 0.30 needs another
    template."""
    parts = [
        package.kind,
        dict(package.files),
        str(package.base),
        package.stops,
        package.system,
        settings.parameters(),
        version >= JINJA,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _make(server: OllamaServer, package: Package, settings: OllamaConfig, version: Version) -> None:
    """Create under a name aside, load, and copy to the real one; whatever fails, the name aside
    goes."""
    aside = f"{package.name}-unfinished"
    fields = modelfile.of(package, settings, go_text(package) if version < JINJA else None).fields()
    try:
        _create(server, aside, _source(server, package) | fields, package)
        server.load(aside, settings.keep_alive)
        server.copy(aside, package.name)
    finally:
        with suppress(ThumbwheelError):
            server.delete(aside)


def _create(server: OllamaServer, name: str, fields: Mapping[str, Any], package: Package) -> None:
    """Create `name`, with the model's own chat template where Ollama takes another one; raises
    ModelError where it keeps other texts."""
    said = server.create(name, fields)
    if "template" not in fields and any(line.startswith(GUESSED) for line in said):
        log.say(
            f"note: {server.url} took a built-in chat template for a like one; it is given the "
            "model's own"
        )
        fields = {**fields, "template": go_text(package)}
        server.create(name, fields)
    kept = server.show(name)
    changed = [
        part for part in ("template", "system") if part in fields and kept.get(part) != fields[part]
    ]
    if changed:
        why = f"Ollama did not keep its {' and '.join(changed)}"
        raise ModelError(f"model {name!r} of {server.url}", why, "Report it with Ollama's version")


def _source(server: OllamaServer, package: Package) -> dict[str, Any]:
    """The files of the model as fields of /api/create, once the server has them."""
    name = package.model.name
    digest = package.files[name]
    server.put(package.model, digest)
    if package.kind is Kind.GGUF:
        return {"files": {name: f"sha256:{digest}"}}
    base = ids.file_hash(package.base)
    over = f"thumbwheel-base-{base[:16]}"
    if full_name(over) not in server.digests():
        server.put(package.base, base)
        _create(server, over, {"files": {package.base.name: f"sha256:{base}"}}, package)
    return {"from": over, "adapters": {name: f"sha256:{digest}"}}
