"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

The file is data from outside. Every length in it is checked against the bytes that are there before
anything of that length is made. The tensors themselves are read in weights.py.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import MissingExtra, ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Type number of a metadata value -> its struct format."""
MOST_DIMENSIONS = 4
MOST_ITEMS = 1 << 22
"""Of all lists of a header together; the largest vocabularies have a quarter million tokens and
half a million merges."""
ALIGNMENT = 32


@dataclass(frozen=True)
class StoredTensor:
    """The bytes of one tensor. `shape` is in the order of torch, rows first."""

    name: str
    shape: tuple[int, ...]
    type: str
    """How its numbers are stored: F32, BF16, Q4_K."""
    start: int
    size: int


@dataclass(frozen=True)
class GgufHeader:
    """The metadata of a file, and its tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """`llama`, `qwen2`: what llama.cpp calls the model's architecture."""
        return str(self.metadata.get("general.architecture", ""))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the architecture: `block_count` of `llama.block_count`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)


def is_gguf(path: Path) -> bool:
    """Tell whether `path` is a regular file that begins as a GGUF file does."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file. Raises ModelError for a file that is damaged or of another
    kind, MissingExtra without the package gguf."""
    try:
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise damaged(path, "it does not begin as a GGUF file does")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).header()
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


def damaged(path: Path, why: str) -> ModelError:
    """Return the error for a file that cannot be read."""
    return ModelError(f"GGUF file {str(path)!r}", why, "Download or copy the file again")


class _Reader:
    """Reads a mapped file from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0
        self.n_items = 0

    def header(self) -> GgufHeader:
        self._take(len(MAGIC))
        version = self._number("I")
        if version not in VERSIONS:
            readable = " and ".join(map(str, VERSIONS))
            raise damaged(self.path, f"it is of version {version}; versions {readable} can be read")
        tensor_count, value_count = self._number("Q"), self._number("Q")

        metadata: dict[str, Any] = {}
        for _ in range(self._bounded(value_count, 13)):
            key = self._string()
            metadata[key] = self._value(self._number("I"))

        entries = [self._entry() for _ in range(self._bounded(tensor_count, 24))]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
            raise damaged(self.path, f"its alignment is {alignment!r:.60}")
        first = -(-self.position // alignment) * alignment
        tensors = {entry[0]: self._tensor(first, *entry) for entry in entries}
        if len(tensors) != len(entries):
            raise damaged(self.path, "two of its tensors have the same name")
        self._check_apart(tensors)
        return GgufHeader(self.path, metadata, tensors)

    def _check_apart(self, tensors: dict[str, StoredTensor]) -> None:
        """Raise ModelError for tensors that share bytes: a small file of such could be made into
        weights without end."""
        end = 0
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.size)):
            if tensor.start < end:
                why = f"its tensor {tensor.name[:60]!r} is stored in the same bytes as another"
                raise damaged(self.path, why)
            end = tensor.start + tensor.size

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise damaged(self.path, "it ends within its header")
        self.position += size
        return self.data[self.position - size : self.position]

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]

    def _bounded(self, count: int, width: int) -> int:
        """Return `count`. Raises ModelError unless so many items of at least `width` bytes can
        still follow."""
        if count * width > len(self.data) - self.position:
            raise damaged(self.path, f"its header announces {count:,} entries, and ends before")
        return count

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise damaged(self.path, f"a value in its header is of the unknown type {kind}")
        item_kind, count = self._number("I"), self._number("Q")
        self.n_items += count
        if self.n_items > MOST_ITEMS:
            raise damaged(self.path, f"the lists in its header have more than {MOST_ITEMS:,} items")
        if item_kind == STRING:
            return [self._string() for _ in range(self._bounded(count, 8))]
        if item_kind not in SCALARS:
            raise damaged(self.path, f"a list in its header is of the unknown type {item_kind}")
        width = struct.calcsize(f"<{SCALARS[item_kind]}")
        items = self._take(self._bounded(count, width) * width)
        return list(struct.unpack(f"<{count}{SCALARS[item_kind]}", items))

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read (name, shape, type number, offset) of one tensor."""
        name, dimensions = self._string(), self._number("I")
        if dimensions > MOST_DIMENSIONS:
            raise damaged(self.path, f"its tensor {name[:60]!r} has {dimensions} dimensions")
        # the fastest dimension is first in the file
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _tensor(
        self, first: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> StoredTensor:
        names, sizes = _types()
        if kind not in names:
            raise ModelError(
                f"GGUF file {str(self.path)!r}",
                f"its tensor {name[:60]!r} has the unknown type number {kind}",
                "Get the model in another precision, as Q8_0 or Q4_K_M",
            )
        block, block_size = sizes[kind]
        if not shape or shape[-1] % block:
            raise damaged(self.path, f"its tensor {name[:60]!r} has the impossible shape {shape}")
        size, start = prod(shape) // block * block_size, first + offset
        if start + size > len(self.data):
            raise damaged(self.path, f"it ends within its tensor {name[:60]!r}")
        return StoredTensor(name, shape, names[kind], start, size)


def _types() -> tuple[dict[int, str], dict[int, tuple[int, int]]]:
    """Return type number -> name, and type number -> (numbers in a block, bytes of a block)."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        raise MissingExtra.of("a base in a GGUF file", "gguf", "train") from None
    names = {int(kind): kind.name for kind in GGML_QUANT_SIZES}
    return names, {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
