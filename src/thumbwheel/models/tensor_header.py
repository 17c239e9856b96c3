"""Reads the header of a safetensors file: name, type and shape of each tensor.

The file may be anybody's, so a header is refused that no model has: a product of long numbers
would keep a server busy for hours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LARGEST_HEADER = 32 << 20
"""Bytes of a header, at most; one of ten thousand tensors has a million."""
MOST_DIMENSIONS = 16
"""Of a tensor."""
LARGEST_DIMENSION = 10**12
"""A dimension of a tensor, at most."""


def stored_shapes(file: Path, most_bytes: int = LARGEST_HEADER) -> list[list[int]]:
    """Return the shapes of the tensors in the file. Raises OSError, and ValueError for a header
    that is damaged or larger than `most_bytes`."""
    header = _header(file, most_bytes)
    return [_shape(tensor) for name, tensor in header.items() if name != "__metadata__"]


def _header(file: Path, most_bytes: int) -> dict[str, Any]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > most_bytes:
            raise ValueError(f"its header would have {length:,} bytes")
        try:
            header = json.loads(stream.read(length))
        except RecursionError:
            raise ValueError("its header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header


def _shape(tensor: object) -> list[int]:
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise ValueError("a tensor in its header has no shape, or too many dimensions")
    for length in shape:
        if type(length) is not int or not 0 <= length <= LARGEST_DIMENSION:
            raise ValueError("a dimension in its header is no length")
    return shape
