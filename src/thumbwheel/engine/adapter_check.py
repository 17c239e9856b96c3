"""Whether the adapter_config.json of a folder is believable, before PEFT builds what it asks for.

A rank of a few digits can ask for terabytes, and names of modules may be regular expressions, which
PEFT matches against every module: a few characters can take years. So sizes have to be about those
of the weights that lie beside the config, and expressions have to be simple. No code of an adapter
is run: PEFT imports none but its own and that of Megatron.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.config_check import LARGEST_FILE, stored_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SIZES = ("r", "num_virtual_tokens", "encoder_hidden_size", "token_dim")
"""Settings that are a dimension of some weight."""
EXPRESSIONS = ("target_modules", "exclude_modules", "layers_pattern")
"""Settings that are a regular expression where they are a text."""
BY_EXPRESSION = ("rank_pattern", "alpha_pattern")
"""Settings whose keys are regular expressions."""
REPEATED_GROUP = re.compile(r"\)[*+{?]")
UNBOUNDED = re.compile(r"(?<!\\)[*+{]")
MOST_UNBOUNDED = 4
LONGEST_EXPRESSION = 2_000
MOST_ENTRIES = 20_000
"""Entries of a list: modules by their full names."""


def check_adapter(folder: Path) -> None:
    """Raise ModelError for an adapter whose config cannot be read, asks for more than its weights
    hold, or has expressions that may take for ever."""
    config = read_config(folder)
    check_sizes(folder, config)
    for name, expression in _expressions(config, EXPRESSIONS):
        _check_expression(folder, name, expression)


def check_sizes(folder: Path, config: Mapping[str, Any]) -> None:
    """Check what `check_adapter` does, except the expressions that name modules: for a reader that
    takes the names of its weights instead. Raises ModelError."""
    largest = max((max(shape, default=0) for shape in stored_shapes(folder / WEIGHTS)), default=0)
    for name, value in _sizes(config):
        if type(value) is not int or not 0 <= value <= largest:
            why = f"{name} {value!r:.60} is no size of its weights, whose largest is {largest:,}"
            raise _refusal(folder, why)
    for name, expression in _expressions(config, BY_EXPRESSION):
        _check_expression(folder, name, expression)
    for name, value in config.items():
        if isinstance(value, list) and len(value) > MOST_ENTRIES:
            raise _refusal(folder, f"{name} has {len(value):,} entries")
    if config.get("layer_replication"):
        raise _refusal(folder, "layer_replication asks for further layers of the base")


def _check_expression(folder: Path, name: str, expression: str) -> None:
    is_long = len(expression) > LONGEST_EXPRESSION
    counts = len(UNBOUNDED.findall(expression))
    if is_long or counts > MOST_UNBOUNDED or REPEATED_GROUP.search(expression):
        why = f"{name} {expression!r:.80} is an expression that may take for ever"
        raise _refusal(folder, why)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the adapter in `folder`. Raises ModelError if it cannot be read
    or is no object."""
    file = folder / CONFIG
    try:
        size = file.stat().st_size
        config = json.loads(file.read_text(encoding="utf-8")) if size <= LARGEST_FILE else None
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(folder, f"its {CONFIG} cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise _refusal(folder, f"its {CONFIG} is no object, or has {size:,} bytes")
    return config


def _sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (setting, value) of every setting that is a dimension of a weight."""
    for name in SIZES:
        if config.get(name) is not None:
            yield name, config[name]
    pattern = config.get("rank_pattern")
    if isinstance(pattern, dict):
        for rank in pattern.values():
            yield "rank_pattern", rank


def _expressions(config: Mapping[str, Any], settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (setting, expression) of every text that PEFT may take as a regular expression."""
    for name in settings:
        value = config.get(name)
        for text in value if isinstance(value, list | dict) else [value]:
            if isinstance(text, str):
                yield name, text


def _refusal(folder: Path, why: str) -> ModelError:
    fix = "Name a folder that PEFT's save_pretrained wrote, for a base that is here"
    return ModelError(f"adapter {str(folder)!r}", why, fix)
