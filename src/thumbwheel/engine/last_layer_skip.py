"""The feed-forward part of a model's last layer, computed on the rows whose hidden state is read.

Nothing after the last attention looks at other rows, and most rows of a tree are prompts: in an
eight-layer model this is every twentieth floating point operation. What the other rows hold
afterwards means nothing. Whether it may be done to a model is decided by a trial (capability.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.forward import trunk_of

if TYPE_CHECKING:
    import torch


def install(model: Any) -> Callable[[], None] | None:
    """Narrow the last layer of `model` where a forward is given a tree that says which rows are
    read. Returns the way back, or None where the layer has no part of that name."""
    layers = _layers(model)
    part = getattr(layers[-1], "mlp", None) if layers is not None else None
    if part is None or isinstance(part.__dict__.get("forward"), partial):
        return None
    hook = layers[-1].register_forward_pre_hook(_told, with_kwargs=True)
    part.rows = None
    part.forward = partial(
        _forward, part, part.forward
    )  # a partial, and no closure, so that a deep copy follows its own layer

    def undo() -> None:
        hook.remove()
        del part.forward, part.rows

    return undo


def _layers(model: Any) -> Any:
    import torch

    trunk, count = trunk_of(model), getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    lists = [
        child
        for child in trunk.children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == count
    ]
    return lists[0] if len(lists) == 1 and count else None


def _told(layer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Before the layer runs, and before it runs again in the backward pass of gradient
    checkpointing."""
    layer.mlp.rows = getattr(named.get("tree"), "rows", None)


def _forward(
    part: Any, original: Callable[..., Any], hidden: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    if part.rows is None:
        return original(hidden, *args, **kwargs)
    return hidden.new_zeros(hidden.shape).index_copy(
        1, part.rows, original(hidden[:, part.rows], *args, **kwargs)
    )
