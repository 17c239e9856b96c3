"""Whether the config.json of a model folder is believable, before a library builds what it asks
for.

Sizes have to be whole numbers within generous bounds, and the weights that they ask for have to be
about those that the files hold: a config of a few bytes can ask for terabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.models import tensor_header

LARGEST_FILE = 16 * 2**20
LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
)
PARTS = (
    "num_attention_heads",
    "num_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "n_positions",
    "state_size",
    "expand",
    "conv_kernel",
)
WIDTHS = (
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "head_dim",
    "moe_intermediate_size",
    "embedding_size",
    "vocab_size",
    "num_labels",
    "ffn_hidden_size",
)
POSITIONS = ("max_position_embeddings", "sliding_window")
BOUNDS: Mapping[str, int] = (
    dict.fromkeys(LAYERS, 1_000)
    | dict.fromkeys(PARTS, 32_768)
    | dict.fromkeys(WIDTHS, 10_000_000)
    | dict.fromkeys(POSITIONS, 2**31)
)
"""Setting -> its largest value."""
PACKED = 16
"""Parameters that one stored number may stand for, in quantised files."""
SLACK = 2**24
"""Parameters that may be missing in the files, such as a new head."""


def check_config(folder: Path) -> None:
    """Raise ModelError for a config.json that cannot be read, or asks for sizes that are impossible
    or do not match the weight files."""
    config = _config(folder)
    for part in _objects(config):
        for key in part.keys() & BOUNDS.keys():
            values = part[key] if isinstance(part[key], list) else [part[key]]
            for value in values:
                _check_size(folder, key, value)
    stored = sum(_stored_parameters(file) for file in sorted(folder.glob("*.safetensors")))
    for part in _objects(config):
        needed = _least_parameters(part)
        if needed > PACKED * stored + SLACK:
            why = (
                f"its config.json asks for {needed:,} parameters or more, and its files hold "
                f"{stored:,}"
            )
            raise ModelError(f"base model {str(folder)!r}", why, "Download or copy it again")


def _config(folder: Path) -> dict[str, Any]:
    what = f"base model {str(folder)!r}"
    file = folder / "config.json"
    try:
        size = file.stat().st_size
        config = json.loads(file.read_text(encoding="utf-8")) if size <= LARGEST_FILE else None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            what, f"its config.json cannot be read ({error})", "Download or copy it again"
        ) from None
    if not isinstance(config, dict):
        why = "its config.json is no object"
        if size > LARGEST_FILE:
            why = f"its config.json has {size:,} bytes"
        raise ModelError(what, why, "Download or copy it again")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(
            what,
            f"its config.json names no model_type ({config.get('model_type')!r:.60})",
            "Download or copy it again",
        )
    return config


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the object and the objects in it (`text_config`); json.loads has bounded the
    nesting."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _objects(part)


def _check_size(folder: Path, key: str, value: Any) -> None:
    if value is None:
        return
    if type(value) is not int or not 0 <= value <= BOUNDS[key]:
        why = f"{key} {value!r:.60} in its config.json is no whole number from 0 to {BOUNDS[key]:,}"
        raise ModelError(f"base model {str(folder)!r}", why, "Download or copy it again")


def _least_parameters(config: Mapping[str, Any]) -> int:
    """Return the least number of parameters that the sizes require: embeddings, and in every layer
    projections and a feed-forward block."""

    def size(*keys: str) -> int:
        values = [config[key] for key in keys if type(config.get(key)) is int]
        return values[0] if values else 0

    hidden = size("hidden_size", "n_embd", "d_model")
    embedding = size("embedding_size") or hidden
    layers = size(*LAYERS)
    heads = size("num_attention_heads", "num_heads", "n_head", "n_heads")
    inner = size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    layer = hidden * max(inner, heads * size("head_dim"), hidden)
    return size("vocab_size") * embedding + layers * layer


def _stored_parameters(file: Path) -> int:
    """Count the numbers in a safetensors file, by its header. Raises ModelError."""
    return sum(prod(shape) for shape in stored_shapes(file))


def stored_shapes(file: Path) -> list[list[int]]:
    """Return the shapes of the tensors in a safetensors file, by its header. Raises ModelError."""
    try:
        return tensor_header.stored_shapes(file)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model {str(file.parent)!r}",
            f"the weight file {file.name!r} is damaged ({error})",
            "Download or copy it again",
        ) from None
