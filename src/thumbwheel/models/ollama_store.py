"""Finds the weights of a model in the folder of the local Ollama, which is only read.

Ollama keeps a manifest for each name and the files by their hashes. A manifest is data: it names
hashes and no paths, and what it names has to be a regular file among the blobs.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError, NotFound
from thumbwheel.core.plugins import nearest

PREFIX = "ollama:"
"""Beginning of the name of a base that is a model of Ollama."""
SETTING = "OLLAMA_MODELS"
"""Environment variable with Ollama's folder, as Ollama itself reads it."""
FOLDERS = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")
"""Where it is without that: of this user, and of Ollama as a service."""
REGISTRY, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}"
NAME = re.compile(rf"(?:(?:({PART}(?::\d+)?)/)?({PART})/)?({PART})(?::({PART}))?")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
LICENSE = "application/vnd.ollama.image.license"
LARGEST_MANIFEST = 1 << 20
MOST_NAMES = 200
"""Names that an error looks through."""


@dataclass(frozen=True)
class OllamaModel:
    """The weights of a model of Ollama."""

    name: str
    """As `ollama run` takes it: `llama3.2`, `hf.co/someone/model:Q4_K_M`."""
    blob: Path
    sha256: str
    parameters: str = ""
    """Their number, as `3.2B`; empty where Ollama has not stored it."""
    license: str | None = None
    """The first line of its licence."""


def model_names() -> list[str]:
    """Return the names of Ollama's models, in order. Raises NotFound where it has no folder."""
    return _names(models_folder())


def find_model(name: str) -> OllamaModel:
    """Return the model that Ollama has under `name`.

    Raises NotFound for a folder or a name that is not there, ModelError for a manifest that cannot
    be used.
    """
    parts = _parts(name)
    folder = models_folder()
    manifest_file = folder / "manifests" / Path(*parts)
    manifest = _read(manifest_file, name)
    if manifest is None:
        names = _names(folder)
        raise NotFound(
            f"model {name!r} of Ollama",
            f"{str(folder)!r} has no such model",
            f"Known: {', '.join(names[:10]) or 'none'}.{nearest(name, names)} "
            f"Get it: ollama pull {name}",
        )
    layers = [layer for layer in manifest if layer.get("mediaType") in (MODEL, ADAPTER)]
    if any(layer.get("mediaType") == ADAPTER for layer in layers):
        raise _unusable(name, "it is a base with an adapter over it", "Name the base")
    if len(layers) != 1:
        why = f"its weights are {len(layers)} files, and only a model in one can be read"
        raise _unusable(name, why, "Choose a model in one file")
    digest = DIGEST.fullmatch(str(layers[0].get("digest")))
    if digest is None:
        raise _damaged(name, f"its manifest names {layers[0].get('digest')!r:.90} as its weights")
    blob = folder / "blobs" / f"sha256-{digest[1]}"
    if not _is_regular(blob):
        raise _damaged(name, f"{str(blob)!r} is no regular file")
    return OllamaModel(
        _short(parts),
        blob,
        digest[1],
        _parameters(folder, manifest_file),
        _license(folder, manifest),
    )


def _parameters(folder: Path, manifest_file: Path) -> str:
    """Return the number of parameters by the model's settings; empty where they are missing."""
    try:
        config = json.loads(manifest_file.read_text(encoding="utf-8"))["config"]
        settings = json.loads(_blob_text(folder, config))
        return str(settings.get("model_type") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def _license(folder: Path, layers: list[dict[str, Any]]) -> str | None:
    for layer in layers:
        if layer.get("mediaType") == LICENSE:
            try:
                lines = _blob_text(folder, layer).split("\n")
            except OSError:
                return None
            return next((line.strip()[:80] for line in lines if line.strip()), None)
    return None


def _blob_text(folder: Path, layer: dict[str, Any]) -> str:
    """Return the text of a small blob. Raises OSError for one that is no regular file or large."""
    digest = DIGEST.fullmatch(str(layer.get("digest")))
    blob = folder / "blobs" / f"sha256-{digest[1] if digest else ''}"
    if not _is_regular(blob) or blob.stat().st_size > LARGEST_MANIFEST:
        raise OSError(f"{blob} is no small file")
    return blob.read_text(encoding="utf-8", errors="replace")


def models_folder() -> Path:
    """Return Ollama's folder on this machine. Raises NotFound."""
    setting = os.environ.get(SETTING)
    candidates = [setting] if setting else list(FOLDERS)
    for candidate in candidates:
        folder = Path(candidate).expanduser()
        if (folder / "manifests").is_dir() and (folder / "blobs").is_dir():
            return folder
    raise NotFound(
        "the models of Ollama",
        f"none of {', '.join(candidates)} has manifests and blobs",
        f"Set {SETTING} to the folder where Ollama stores its models",
    )


def _parts(name: str) -> tuple[str, str, str, str]:
    """Return (registry, namespace, model, tag) of a name. Raises NotFound for an invalid name."""
    match = NAME.fullmatch(name)
    if match is None:
        raise NotFound(
            f"model {name!r} of Ollama", "it is not the name of a model", "As ollama:llama3.2:3b"
        )
    registry, namespace, model, tag = match.groups()
    return registry or REGISTRY, namespace or NAMESPACE, model, tag or TAG


def _short(parts: tuple[str, str, str, str]) -> str:
    """Return the shortest name that means the same."""
    registry, namespace, model, tag = parts
    name = model if tag == TAG else f"{model}:{tag}"
    if registry != REGISTRY:
        return f"{registry}/{namespace}/{name}"
    return name if namespace == NAMESPACE else f"{namespace}/{name}"


def _is_regular(path: Path) -> bool:
    """Tell whether `path` is a file, and no link, FIFO or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _read(file: Path, name: str) -> list[dict[str, Any]] | None:
    """Return the layers of a manifest; None if there is none."""
    if not file.exists():
        return None
    if not _is_regular(file) or file.stat().st_size > LARGEST_MANIFEST:
        raise _damaged(name, f"its manifest {str(file)!r} is no regular file, or too large")
    try:
        layers = json.loads(file.read_text(encoding="utf-8"))["layers"]
        if not all(isinstance(layer, dict) for layer in layers):
            raise TypeError("a layer is no object")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(name, f"its manifest {str(file)!r} cannot be read ({error})") from None
    return list(layers)


def _names(folder: Path) -> list[str]:
    """Return the first names that Ollama has, in order."""
    root = folder / "manifests"
    names = []
    for path in sorted(root.glob("*/*/*/*"))[:MOST_NAMES]:
        registry, namespace, model, tag = path.relative_to(root).parts
        names.append(_short((registry, namespace, model, tag)))
    return names


def _damaged(name: str, why: str) -> ModelError:
    return _unusable(name, why, f"Get it again: ollama pull {name}")


def _unusable(name: str, why: str, fix: str) -> ModelError:
    return ModelError(f"model {name!r} of Ollama", why, fix)
