"""Reads one tensor of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.models.gguf.header import GgufHeader, StoredTensor

if TYPE_CHECKING:
    import numpy as np


def read_tensor(header: GgufHeader, tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Return the numbers of a tensor in float32, as llama.cpp computes them from their blocks."""
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with header.path.open("rb") as stream:
        stream.seek(tensor.start)
        data = np.frombuffer(stream.read(tensor.size), np.uint8)
    try:
        numbers = dequantize(
            data.reshape(*tensor.shape[:-1], -1), GGMLQuantizationType[tensor.type]
        )
    except NotImplementedError:
        raise ModelError(
            f"GGUF file {str(header.path)!r}",
            f"its tensor {tensor.name!r:.60} is stored as {tensor.type}, which is not supported",
            "Get the model in another precision, as Q8_0 or Q4_K_M",
        ) from None
    return np.asarray(numbers, np.float32).reshape(tensor.shape)
