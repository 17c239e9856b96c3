"""A copy of the policy to decode with: adapters merged into weights of its own, rebuilt at every
sync.

Decoding runs a few rows through every weight again and again, where an adapter's two thin products
are not small beside the layer's own, and where a CPU spends a third of the product with the
vocabulary on bringing the weights into the layout that it computes in. The merged weights are
computed in fp32 from the pristine base each time, never by adding to what was merged before;
everything else is shared with the policy. Merging for export is export/merge.py's.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from thumbwheel.engine import lora
from thumbwheel.engine.forward import language_model

if TYPE_CHECKING:
    import torch

LARGE = 1 << 22
"""Numbers in a weight from which another layout pays: it is larger than the caches of a core."""
ROWS = 16
"""Rows that the layout is chosen for; others are right, and a little slower."""


class MergedCopy:
    """`model` is the copy, in evaluation mode. Only for a policy that has no `obstacle`."""

    def __init__(self, policy: Any) -> None:
        source = language_model(policy)
        shared = {id(tensor): tensor for tensor in (*source.parameters(), *source.buffers())}
        self.model = copy.deepcopy(source, shared).eval()
        self.model.__dict__.pop("peft_config", None)
        self._layers = []
        for name, module in _replaced_layers(policy):
            layer = _merged_linear()(module)
            parent, _, attribute = name.rpartition(".")
            setattr(self.model.get_submodule(parent), attribute, layer)
            self._layers.append(layer)
        self.sync()

    def sync(self) -> None:
        """Take over the weights that the policy has now."""
        for layer in self._layers:
            layer.sync()


def size(policy: Any) -> int:
    """Return the bytes of the weights that a copy of `policy` would not share with it."""
    layers = [getattr(layer, "base_layer", layer) for _, layer in _replaced_layers(policy)]
    weights = [layer.weight for layer in layers]
    return sum(weight.numel() * weight.element_size() for weight in weights)


def obstacle(policy: Any) -> str:
    """Return why `policy` cannot be merged, or an empty text."""
    for layer in lora.adapter_layers(policy):
        if not lora.plain_layer(layer):
            return f"it has an adapter of the kind {type(layer).__module__}.{type(layer).__name__}"
        for name in layer.active_adapters:
            if name in layer.lora_variant or layer.lora_bias.get(name):
                return "its adapter is more than two factors"
    if any(config.is_prompt_learning for config in getattr(policy, "peft_config", {}).values()):
        return "its adapter is virtual tokens"
    return ""


def _replaced_layers(policy: Any) -> list[tuple[str, Any]]:
    """Return (name, module) of every layer whose weight the copy does not share."""
    adapted: set[int] = set()
    inside_adapted: set[int] = set()
    for layer in lora.adapter_layers(policy):
        adapted.add(id(layer))
        inside_adapted |= {id(part) for part in layer.modules()}

    replaced: list[tuple[str, Any]] = []
    for name, module in language_model(policy).named_modules():
        plain = id(module) not in inside_adapted
        if id(module) in adapted or (plain and _gains_by_packing(module)):
            replaced.append((name, module))
    return replaced


def _gains_by_packing(module: Any) -> bool:
    import torch

    if type(module) is not torch.nn.Linear or not torch.backends.mkldnn.is_available():
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LARGE


@cache
def _merged_linear() -> Any:
    """Return the class of a replaced layer, created on first use because torch may not be imported
    with this module."""
    import torch

    class MergedLinear(torch.nn.Module):
        """A linear layer with the merged weight of `source`, a LoRA layer or a linear one."""

        weight: torch.Tensor

        def __init__(self, source: Any) -> None:
            super().__init__()
            # in tuples, so that their parameters are not taken for those of this layer
            self._source = (source,)
            self._base = (getattr(source, "base_layer", source),)
            self._packed = _gains_by_packing(self._base[0])
            self._synced = False

        def sync(self) -> None:
            """Take over the weight of the source."""
            (layer,), (base,) = self._source, self._base
            if self._synced and layer is base and not base.weight.requires_grad:
                return
            weight = base.weight.detach()
            if layer is not base:
                weight = _merged_weight(layer, weight)
            if type(base) is not torch.nn.Linear:
                weight = weight.t().contiguous()  # Conv1D
            if self._packed:
                weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
            self.weight, self.bias = weight, base.bias
            self._synced = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return x W^T + b."""
            if self._packed:
                output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                    x, self.weight, self.bias, "none", [], ""
                )
                return output
            return torch.nn.functional.linear(x, self.weight, self.bias)

    return MergedLinear


def _merged_weight(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Add up base and active adapters in fp32 (fp64 in fp64 models), and round once."""
    import torch

    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    for name in layer.active_adapters:
        if name in layer.lora_A:
            wide = wide + layer.get_delta_weight(name).detach().to(wide.dtype)
    return wide.to(weight.dtype)
