"""Reads and overwrites single tensors in safetensors files.

The library writes a file at once, which needs all of its tensors in memory; overwriting one tensor
of known size and offset does not.
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
class Slot:
    """The bytes of one tensor in a file; `dtype` is None where it is not floating point."""

    file: str
    start: int
    size: int
    shape: tuple[int, ...]
    dtype: str | None


def layout(folder: Path) -> tuple[list[str], dict[str, Slot]]:
    """Return (all files of the weights, with their index; tensor name -> slot).

    Raises ModelError if the index names anything but safetensors beside it.
    """
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS], _header(folder, WEIGHTS)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    shards = sorted(set(index["weight_map"].values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError(
                f"{str(folder / INDEX)!r}",
                f"it names {shard!r}, which is not a safetensors file in the same folder",
                "Get the base again",
            )
    slots: dict[str, Slot] = {}
    for shard in shards:
        slots |= _header(folder, shard)
    return [INDEX, *shards], slots


def _header(folder: Path, file: str) -> dict[str, Slot]:
    with (folder / file).open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries: Mapping[str, dict[str, list[int]]] = json.loads(stream.read(length))
    slots = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        slots[name] = Slot(
            file=file,
            start=8 + length + start,
            size=end - start,
            shape=tuple(entry["shape"]),
            dtype=DTYPES.get(str(entry["dtype"])),
        )
    return slots


def read(folder: Path, slot: Slot) -> torch.Tensor:
    """Read a copy of one tensor: a memory-mapped file would count as memory until it is closed."""
    import torch

    with (folder / slot.file).open("rb") as stream:
        stream.seek(slot.start)
        data = bytearray(stream.read(slot.size))
    return torch.frombuffer(data, dtype=getattr(torch, str(slot.dtype))).reshape(slot.shape)


def write(folder: Path, slot: Slot, tensor: torch.Tensor) -> None:
    """Overwrite the tensor in `slot` with `tensor`, cast to its precision."""
    import torch

    stored = tensor.detach().to(getattr(torch, str(slot.dtype))).contiguous()
    data = stored.flatten().view(torch.uint8).numpy()
    with (folder / slot.file).open("r+b") as stream:
        stream.seek(slot.start)
        stream.write(data.data)


def stored_dtype(folder: str) -> torch.dtype:
    """Return the precision in the model's configuration, else of its first floating-point
    tensor."""
    import torch

    stated = getattr(load_config(folder).get_text_config(), "dtype", None)
    if isinstance(stated, torch.dtype):
        return stated
    _, slots = layout(Path(folder))
    for slot in slots.values():
        if slot.dtype:
            return getattr(torch, slot.dtype)  # type: ignore[no-any-return]
    return torch.float32
