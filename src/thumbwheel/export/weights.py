"""The safetensors of a base and of its copy: where each tensor lies, reading one, writing one in
its place.

The library writes a file at once, which needs all of its tensors in memory; one tensor of known
size and place does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_config

if TYPE_CHECKING:
    import torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Place:
    """Where one tensor lies; `dtype` is None where it is not floating point."""

    file: str
    start: int
    size: int
    shape: tuple[int, ...]
    dtype: str | None


def layout(folder: Path) -> tuple[list[str], dict[str, Place]]:
    """(every file that the weights are in, the index among them; tensor name -> place).

    Raises ModelError where the index names anything but safetensors beside it.
    """
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS], _header(folder, WEIGHTS)
    shards = sorted(
        set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    )
    if other := [
        shard for shard in shards if Path(shard).name != shard or not shard.endswith(".safetensors")
    ]:
        raise ModelError(
            f"{str(folder / INDEX)!r}",
            f"it names {other[0]!r}, which is no safetensors file beside it",
            "Get the base anew",
        )
    return [INDEX, *shards], {
        name: place for shard in shards for name, place in _header(folder, shard).items()
    }


def _header(folder: Path, file: str) -> dict[str, Place]:
    with (folder / file).open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries: Mapping[str, dict[str, list[int]]] = json.loads(stream.read(length))
    places = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            places[name] = Place(
                file,
                8 + length + start,
                end - start,
                tuple(entry["shape"]),
                DTYPES.get(str(entry["dtype"])),
            )
    return places


def read(folder: Path, place: Place) -> torch.Tensor:
    """One tensor, in memory of its own: a mapped file would count as memory until it is closed."""
    import torch

    with (folder / place.file).open("rb") as stream:
        stream.seek(place.start)
        data = bytearray(stream.read(place.size))
    return torch.frombuffer(data, dtype=getattr(torch, str(place.dtype))).reshape(place.shape)


def write(folder: Path, place: Place, tensor: torch.Tensor) -> None:
    """Put `tensor`, cast to the precision of what is there, in the place of what is there."""
    import torch

    data = (
        tensor.detach()
        .to(getattr(torch, str(place.dtype)))
        .contiguous()
        .flatten()
        .view(torch.uint8)
        .numpy()
    )
    with (folder / place.file).open("r+b") as stream:
        stream.seek(place.start)
        stream.write(data.data)


def stored_dtype(folder: str) -> torch.dtype:
    """The precision that the configuration states; that of the first tensor where it states none."""
    import torch

    stated = getattr(load_config(folder).get_text_config(), "dtype", None)
    if isinstance(stated, torch.dtype):
        return stated
    kinds = [place.dtype for place in layout(Path(folder))[1].values() if place.dtype]
    return getattr(torch, kinds[0]) if kinds else torch.float32  # type: ignore[no-any-return]
