"""Bases that this machine has or can get, with size and licence, and which of them it trains
comfortably: fetched models and those that can be, the Hugging Face cache, and Ollama.

Nothing is downloaded and no model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.core.hardware import Machine, machine
from thumbwheel.models import ollama_store
from thumbwheel.models.fetch import fetched_file
from thumbwheel.models.known_bases import KNOWN_BASES
from thumbwheel.models.tensor_header import stored_shapes
from thumbwheel.training.presets import tier

UNITS = {"M": 1e6, "B": 1e9}
PARAMETERS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([MB])")
"""A count as Ollama and the presets write it: 135M, 3.2B. What Ollama shows was written by the
author of the model."""
LICENSE = re.compile(r"^license:\s*([\w.-]+)\s*$", re.MULTILINE)
"""The licence in the header of a model card."""
CARD_HEADER = 4000
"""Characters of a model card that are searched for it."""
LARGEST_HEADER = 1 << 22
"""Bytes of a safetensors header that is read for a list, at most."""
MOST_HEADERS = 1 << 24
"""Bytes of the headers of all files of a model, at most."""
MOST_PARAMETERS = 10**14
"""Of a model; a larger count is a mistake or an attack."""


class Origin(StrEnum):
    """Where a base is."""

    FETCHED = "fetched"
    TO_FETCH = "to be fetched"
    HUB = "Hugging Face cache"
    OLLAMA = "Ollama"


@dataclass(frozen=True)
class AvailableBase:
    """A base to choose from."""

    name: str
    """What `--base` takes."""
    origin: Origin
    """Where it is."""
    parameters: int | None
    """Number of its parameters; null where its files do not say it."""
    size_gb: float
    """Gigabytes of its files, or of the download."""
    license: str | None
    """Its licence; null where its files do not say it."""
    fits: bool | None
    """Whether this machine trains a base of that size comfortably; null where the size is
    unknown."""

    @property
    def is_here(self) -> bool:
        """Whether nothing has to be downloaded."""
        return self.origin is not Origin.TO_FETCH


def available_bases(here: Machine | None = None) -> list[AvailableBase]:
    """Return the bases, those that fit first, larger ones before smaller ones."""
    comfortable = count_of(tier(here or machine()).model) or 0
    bases = [*_known(comfortable), *_in_hub_cache(comfortable), *_in_ollama(comfortable)]
    return sorted(bases, key=lambda base: (not base.fits, -(base.parameters or 0), base.name))


def proposed_base(bases: list[AvailableBase]) -> AvailableBase | None:
    """Return the base to propose: the largest that fits and is here, else one to be fetched."""
    fitting = [base for base in bases if base.fits]
    return next((base for base in fitting if base.is_here), next(iter(fitting), None))


def count_of(text: str) -> int | None:
    """Return the number of parameters that a text says.

    >>> count_of("3.2B"), count_of("135M"), count_of("large")
    (3200000000, 135000000, None)
    """
    match = PARAMETERS.fullmatch(text)
    return None if match is None else round(float(match[1]) * UNITS[match[2]])


def _fits(parameters: int | None, comfortable: int) -> bool | None:
    return None if parameters is None else parameters <= comfortable


def _known(comfortable: int) -> Iterator[AvailableBase]:
    for base in KNOWN_BASES.values():
        is_here = fetched_file(base).is_file()
        yield AvailableBase(
            name=base.id,
            origin=Origin.FETCHED if is_here else Origin.TO_FETCH,
            parameters=base.parameters,
            size_gb=(base.size if is_here else base.wheel_size) / 1e9,
            license=base.license,
            fits=_fits(base.parameters, comfortable),
        )


def _in_hub_cache(comfortable: int) -> Iterator[AvailableBase]:
    """Yield the models of the Hugging Face cache that have weights as safetensors."""
    if find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return
    for repository in cached.repos:
        if repository.repo_type != "model" or not repository.revisions:
            continue
        newest = max(repository.revisions, key=lambda revision: revision.last_modified)
        folder = Path(newest.snapshot_path)
        weights = sorted(folder.glob("*.safetensors"))
        if not weights or not (folder / "config.json").is_file():
            continue
        parameters = _parameters(weights)
        yield AvailableBase(
            name=repository.repo_id,
            origin=Origin.HUB,
            parameters=parameters,
            size_gb=sum(file.stat().st_size for file in weights) / 1e9,
            license=_license(folder / "README.md"),
            fits=_fits(parameters, comfortable),
        )


def _parameters(weights: list[Path]) -> int | None:
    """Return the number of parameters by the headers of safetensors files; None for files that are
    damaged or have headers as no model has them."""
    count = size = 0
    for file in weights:
        try:
            status = file.stat()
            in_file, header_size = _counted(file, status.st_mtime_ns, status.st_size)
        except OSError:
            return None
        size += header_size
        if in_file is None or size > MOST_HEADERS:
            return None
        count += in_file
    return count if count <= MOST_PARAMETERS else None


@lru_cache(maxsize=4096)
def _counted(file: Path, modified_at: int, size: int) -> tuple[int | None, int]:
    """Return (number of parameters in a safetensors file, bytes of its header); None for a header
    that cannot be one. A file is read once until it changes, because every view of a page asks.

    The files are of strangers: whoever trains over a model of the hub gets it into the cache.
    """
    try:
        shapes = stored_shapes(file, LARGEST_HEADER)
        with file.open("rb") as stream:
            header_size = int.from_bytes(stream.read(8), "little")
    except (OSError, ValueError):
        return None, 0
    return sum(prod(shape) for shape in shapes), header_size


def _license(card: Path) -> str | None:
    try:
        text = card.read_text(encoding="utf-8", errors="replace")[:CARD_HEADER]
    except OSError:
        return None
    match = LICENSE.search(text)
    return match[1] if match else None


def _in_ollama(comfortable: int) -> Iterator[AvailableBase]:
    """Yield the models of Ollama that can be bases."""
    try:
        names = ollama_store.model_names()
    except ThumbwheelError:
        return  # no Ollama here
    for name in names:
        try:
            model = ollama_store.find_model(name)
        except ThumbwheelError:
            continue  # such as a base with an adapter over it
        parameters = count_of(model.parameters)
        yield AvailableBase(
            name=f"{ollama_store.PREFIX}{model.name}",
            origin=Origin.OLLAMA,
            parameters=parameters,
            size_gb=model.blob.stat().st_size / 1e9,
            license=model.license,
            fits=_fits(parameters, comfortable),
        )
