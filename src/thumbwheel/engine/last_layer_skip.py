"""The feed-forward part of a model's last layer, computed on the rows whose hidden state is read.

Nothing after the last attention looks at other rows, and most rows of a tree are prompts: in an
eight-layer model this saves every twentieth floating point operation. The values of the other rows
mean nothing afterwards. Whether it may be done to a model is decided by a trial (capability.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.forward import trunk_of

if TYPE_CHECKING:
    import torch


def install(model: Any) -> Callable[[], None] | None:
    """Skip rows in the last layer of `model` if a forward has a tree that names the rows to read.
    Returns a function that undoes it, or None if the layer has no feed-forward part named `mlp`."""
    layers = layers_of(model)
    mlp = getattr(layers[-1], "mlp", None) if layers is not None else None
    if mlp is None or isinstance(mlp.__dict__.get("forward"), partial):
        return None
    hook = layers[-1].register_forward_pre_hook(_note_rows, with_kwargs=True)
    mlp.rows = None
    # a partial, and no closure, so that a deep copy follows its own layer
    mlp.forward = partial(_forward, mlp, mlp.forward)

    def undo() -> None:
        hook.remove()
        del mlp.forward, mlp.rows

    return undo


def layers_of(model: Any) -> Any:
    """Return the list of the model's layers, or None if it is not clear which one that is."""
    import torch

    count = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    lists = [
        child for child in trunk_of(model).children() if isinstance(child, torch.nn.ModuleList)
    ]
    lists = [children for children in lists if len(children) == count]
    return lists[0] if len(lists) == 1 and count else None


def _note_rows(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Store the rows to compute before the layer runs, and before it runs again in the backward
    pass of gradient checkpointing."""
    layer.mlp.rows = getattr(kwargs.get("tree"), "rows", None)


def _forward(
    mlp: Any, original: Callable[..., Any], hidden: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    if mlp.rows is None:
        return original(hidden, *args, **kwargs)
    output = original(hidden[:, mlp.rows], *args, **kwargs)
    return hidden.new_zeros(hidden.shape).index_copy(1, mlp.rows, output)
