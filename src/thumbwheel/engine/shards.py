"""The frozen weights of a base, of which each rank holds a part: FSDP2 around every layer.

A layer's weights are put together for its forward and its backward pass and forgotten after it, so
that all ranks have to run the same layers equally often (ScoreEngine sees to that). Embeddings,
head and adapters stay whole in each rank: the gradients of adapters are summed by Ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.last_layer_skip import layers_of

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.ranks import Ranks


def shard_layers(language_model: Any, ranks: Ranks, device: torch.device) -> None:
    """Leave this rank its part of the frozen weights of every layer. Raises ModelError for a model
    whose layers are not a plain list."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layers = layers_of(language_model)
    if layers is None:
        raise ModelError(
            f"a base of kind {language_model.config.model_type!r}",
            "its layers are not one list, so they cannot be shared out",
            "Train it without shard_base",
        )
    mesh = init_device_mesh(device.type, (ranks.world,))
    for layer in layers:
        trained = {weight for weight in layer.parameters() if weight.requires_grad}
        # Left to itself it would hold a layer's weights until the next backward pass, or until a
        # checkpoint is written, which only the first rank does.
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=trained)


def held_bytes(language_model: Any) -> tuple[int, int]:
    """Return the bytes of the frozen weights that this process holds, and of all of them."""
    held = whole = 0
    for weight in language_model.parameters():
        if weight.requires_grad:
            continue
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        held += local.numel() * local.element_size()
        whole += weight.numel() * weight.element_size()
    return held, whole
