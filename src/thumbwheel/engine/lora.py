"""LoRA layers during training: which adapter answers, and a fused forward and backward for plain
ones.

PEFT's parameters stay the storage; only the arithmetic is replaced, on linear layers with one
active, plain LoRA adapter without dropout. Anything else (DoRA, several adapters, quantised bases,
merged weights, convolutions) keeps PEFT's own forward. Does not live here: creating or loading
adapters (load.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def adapter_layers(model: Any) -> list[Any]:
    """Every module of `model` that PEFT can switch."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    return [
        module
        for module in model.modules()
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))
    ]


def active_adapter(model: Any, layers: list[Any]) -> str | None:
    """The adapter that `model` answers with as it stands; None where it has none or has them off."""
    if not hasattr(model, "peft_config") or any(layer._disable_adapters for layer in layers):
        return None
    (name,) = model.active_adapters  # several at once are a mixture, which has no name
    return str(name)


def heavy(layers: list[Any]) -> bool:
    """Whether a thread of its own would need more than activations for them: layers that train
    whole, and stacked experts, whose adapted weight PEFT computes anew and keeps where all threads
    see it."""
    from peft.tuners.ln_tuning.layer import LNTuningLayer
    from peft.tuners.lora import ParamWrapper

    return any(isinstance(layer, (LNTuningLayer, ParamWrapper)) for layer in layers)


def expert_weights_without_adapter(model: Any) -> list[str]:
    """Kinds of expert weights without an adapter, as `mlp.experts.down_proj`: parameters with one
    matrix for each expert."""
    from peft.tuners.lora import ParamWrapper
    from torch.nn.modules.conv import _ConvNd

    adapted = {
        id(module.get_param()) for module in model.modules() if isinstance(module, ParamWrapper)
    }
    own = (
        (f"{path}.{name}", one)
        for path, module in model.named_modules()
        if not isinstance(module, _ConvNd)
        for name, one in module.named_parameters(recurse=False)
    )
    left = (
        name
        for name, one in own
        if one.ndim == 3 and "lora_" not in name and id(one) not in adapted
    )
    return sorted({re.sub(r".*\.\d+\.|base_layer\.", "", name) for name in left})


def parameters_of(layers: list[Any], adapter: str) -> list[torch.nn.Parameter]:
    """The tensors of one adapter, whole modules that were saved with it among them."""
    import torch

    found: list[torch.nn.Parameter] = []
    for layer in layers:
        for name in layer.adapter_layer_names:
            stored = attrgetter(name)(layer)
            if adapter in stored:
                own = stored[adapter]
                found += own.parameters() if isinstance(own, torch.nn.Module) else [own]
    return found


def is_zero_update(model: Any) -> bool:
    """Whether what trains is a LoRA adapter that is still the zero change as which it starts: the
    model is its base to the last bit."""
    trained = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    second_factors = [parameter for name, parameter in trained if "lora_B" in name]
    return len(trained) == 2 * len(second_factors) > 0 and not any(
        bool(parameter.any()) for parameter in second_factors
    )


@contextmanager
def switched(model: Any, layers: list[Any], adapter: str | None) -> Iterator[None]:
    """`model` under one adapter inside, or under none. PEFT's own switches also change what trains,
    which a role must not."""
    if not hasattr(model, "peft_config"):
        yield
        return
    if any(config.is_prompt_learning for config in model.peft_config.values()):
        with model.disable_adapter() if adapter is None else nullcontext():
            yield
        return
    before = [(layer._active_adapter, layer._disable_adapters) for layer in layers]
    try:
        for layer in layers:
            layer._active_adapter, layer._disable_adapters = (
                [adapter] if adapter else layer._active_adapter,
                adapter is None,
            )
        yield
    finally:
        for layer, (name, off) in zip(layers, before, strict=True):
            layer._active_adapter, layer._disable_adapters = name, off


def install(model: Any) -> int:
    """Give every LoRA layer on a plain linear layer the fused forward; returns how many.

    Each call still looks whether its layer is in a state that the fused arithmetic covers, and
    takes PEFT's forward if not.
    """
    found = [layer for layer in adapter_layers(model) if plain_layer(layer)]
    for layer in found:
        if not isinstance(layer.__dict__.get("forward"), partial):
            layer.forward = partial(
                _forward, layer, layer.forward
            )  # a partial, and no closure, so that a deep copy follows its own layer
    return len(found)


def plain_layer(layer: Any) -> bool:
    """Whether it is a LoRA adapter on a layer that is one matrix of numbers."""
    import torch
    from peft.tuners.lora import Linear
    from transformers.pytorch_utils import Conv1D

    return type(layer) is Linear and type(layer.base_layer) in (torch.nn.Linear, Conv1D)


def _forward(
    layer: Any, original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    names = layer.active_adapters
    if (
        args
        or kwargs
        or layer.disable_adapters
        or layer.merged
        or len(names) != 1
        or not _fusible(layer, names[0])
    ):
        return original(x, *args, **kwargs)
    a, b, base = layer.lora_A[names[0]].weight, layer.lora_B[names[0]].weight, layer.base_layer
    return _fused()(x, base.weight, base.bias, a, b, layer.scaling[names[0]], layer.fan_in_fan_out)


def _fusible(layer: Any, name: str) -> bool:
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_bias[name]:
        return False
    return (
        not layer.base_layer.weight.requires_grad
        and getattr(layer.lora_dropout[name], "p", 0.0) == 0.0
    )


@cache
def _fused() -> Any:
    """The autograd function; made on first use because torch may not be imported with this module."""
    import torch

    class FusedLora(torch.autograd.Function):
        """y = x W^T + b + s (x A^T) B^T in the dtype of x, over factors of any dtype; W and b are
        frozen."""

        @staticmethod
        def forward(
            ctx: Any,
            x: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor | None,
            a: torch.Tensor,
            b: torch.Tensor,
            scale: float,
            turned: bool,
        ) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            w = weight.t() if turned else weight
            narrow_a, narrow_b = a.to(x.dtype), b.to(x.dtype)
            inner = rows @ narrow_a.t()
            y = torch.nn.functional.linear(rows, w, bias).addmm_(inner, narrow_b.t(), alpha=scale)
            ctx.save_for_backward(rows, w, inner, narrow_a, narrow_b)
            ctx.scale, ctx.kinds = scale, (a.dtype, b.dtype)
            return y.view(*x.shape[:-1], y.shape[-1])

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            rows, w, inner, a, b = ctx.saved_tensors
            dy = grads[0].reshape(-1, grads[0].shape[-1])
            back = dy @ b  # [n, r]
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (
                    (dy @ w)
                    .addmm_(back, a, alpha=ctx.scale)
                    .view(*grads[0].shape[:-1], rows.shape[-1])
                )
            da = (back.t() @ rows).to(ctx.kinds[0]).mul_(ctx.scale)
            db = (dy.t() @ inner).to(ctx.kinds[1]).mul_(ctx.scale)
            return dx, None, None, da, db, None, None

    return FusedLora.apply
