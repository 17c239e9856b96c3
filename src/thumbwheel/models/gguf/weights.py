"""The weights of a GGUF file as safetensors: dequantised one tensor after the other, so that memory
holds a file of them and never the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.models.gguf.architectures import (
    Architecture,
    architecture_of,
    model_name,
    refusal,
)
from thumbwheel.models.gguf.header import GgufHeader, StoredTensor
from thumbwheel.models.gguf.tensors import read_tensor

if TYPE_CHECKING:
    import numpy as np
    import torch

LARGEST_FILE = 2 << 30
"""Bytes of one file of weights."""
WHOLE = ("F32", "F16", "BF16")
"""Types that hold numbers and no blocks."""


def bits_a_weight(header: GgufHeader) -> float:
    """Return the bits in which the file holds a weight, on average over all tensors."""
    size = sum(tensor.size for tensor in header.tensors.values())
    return 8 * size / max(1, sum(prod(tensor.shape) for tensor in header.tensors.values()))


def types(header: GgufHeader) -> dict[str, int]:
    """Return type -> how many matrices the file holds in it, most frequent first."""
    matrices = [tensor.type for tensor in header.tensors.values() if len(tensor.shape) > 1]
    return dict(Counter(matrices).most_common())


def stored_dtype(header: GgufHeader) -> str:
    """Return the precision of the folder: the file's own if it holds numbers, and bfloat16 if it
    holds blocks. Rounding them to bfloat16 costs a fortieth of the error of llama.cpp's own
    arithmetic on such blocks (SmolLM2-135M in Q4_1: mean KL 2.48e-3 nats, of which 0.06e-3)."""
    kinds = set(types(header))
    if "F32" in kinds and kinds <= set(WHOLE):
        return "float32"
    return "float16" if kinds == {"F16"} else "bfloat16"


def write_model(header: GgufHeader, config: Mapping[str, Any], folder: Path) -> None:
    """Write the configuration and the weights of the file's model into `folder`.

    Matrices are in the precision that `stored_dtype` says, all other weights in float32. Raises
    ModelError if the file has a tensor too many, lacks one, or has one of another shape than the
    configuration asks for.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture, dtype = architecture_of(header), stored_dtype(header)
    model_config = AutoConfig.for_model(architecture.model_type, **config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    model_config.architectures = [type(model).__name__]
    model_config.dtype = getattr(torch, dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    wanted = _wanted(header, shapes)
    files = _plan_files(wanted, shapes, torch.finfo(getattr(torch, dtype)).bits // 8)
    with log.progress("dequantising", len(wanted), "tensors") as advance:
        for name, names in files.items():
            tensors = {}
            for parameter in names:
                tensors[parameter] = _weight(
                    header, wanted[parameter], architecture, config, getattr(torch, dtype)
                )
                advance()
            _save(folder / name, tensors)
    if len(files) > 1:
        _write_index(folder, files)
    model_config.save_pretrained(folder)


def _wanted(header: GgufHeader, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    """Return parameter of the model -> the tensor of the file that holds it."""
    wanted = {}
    for stored in header.tensors.values():
        name = model_name(header, stored.name)
        if name is None:
            continue
        if shapes.get(name) != stored.shape:
            why = (
                f"its tensor {stored.name!r} has the shape {stored.shape}, and its settings ask "
                f"for {shapes.get(name, 'none of that name')}"
            )
            raise refusal(header, why)
        wanted[name] = stored
    if missing := sorted(shapes.keys() - wanted.keys()):
        raise refusal(header, f"it has no tensor for {missing[0]!r}")
    return wanted


def _plan_files(
    wanted: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], width: int
) -> dict[str, list[str]]:
    """Return file -> the parameters in it, each file of at most LARGEST_FILE bytes."""
    parts: list[list[str]] = [[]]
    size = 0
    for name in wanted:
        added = prod(shapes[name]) * width
        if parts[-1] and size + added > LARGEST_FILE:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += added
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {
        f"model-{number:05}-of-{len(parts):05}.safetensors": part
        for number, part in enumerate(parts, 1)
    }


def _weight(
    header: GgufHeader,
    stored: StoredTensor,
    architecture: Architecture,
    config: Mapping[str, Any],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return one weight of the model, in the form that transformers has it."""
    import torch

    numbers = read_tensor(header, stored)
    if architecture.norms_add_one and stored.name.endswith("norm.weight"):
        numbers = numbers - 1
    if architecture.rotates_pairs and ".attn_q." in stored.name:
        numbers = _halves(numbers, config["num_attention_heads"])
    if architecture.rotates_pairs and ".attn_k." in stored.name:
        numbers = _halves(numbers, config["num_key_value_heads"])
    weight = torch.from_numpy(numbers.copy())
    if len(stored.shape) < 2:
        return weight
    rounded = weight.to(dtype)
    if not bool(rounded.isfinite().all()):
        raise refusal(header, f"its tensor {stored.name!r} has numbers that {dtype} cannot hold")
    return rounded


def _halves(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Return the rows of every head with the even-numbered ones first, then the odd-numbered
    ones."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={"format": "pt"})


def _write_index(folder: Path, files: Mapping[str, list[str]]) -> None:
    """Write which file holds which parameter."""
    weight_map: dict[str, str] = {}
    for file, names in files.items():
        weight_map |= dict.fromkeys(names, file)
    size = sum((folder / file).stat().st_size for file in files)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2), encoding="utf-8"
    )
