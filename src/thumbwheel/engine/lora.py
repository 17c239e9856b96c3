"""LoRA layers during training: adapters off for the reference, and a fused forward and backward for plain ones.

PEFT's parameters stay the storage; only the arithmetic is replaced, on linear layers with one active, plain LoRA adapter
without dropout. Anything else (DoRA, several adapters, quantised bases, merged weights, convolutions) keeps PEFT's own
forward. Does not live here: creating or loading adapters (load.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError

if TYPE_CHECKING:
    import torch


def adapter_layers(model: Any) -> list[Any]:
    """Every module of `model` that PEFT can switch."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]


@contextmanager
def adapters_off(model: Any, layers: list[Any]) -> Iterator[None]:
    """The base model inside. PEFT's own switch also changes which parameters train, which a no-grad pass must not."""
    if not hasattr(model, "peft_config"):
        if any(parameter.requires_grad for parameter in model.parameters()):
            raise ModelError("the reference model", "the model has no adapter and trains itself, so its start is gone", "Train with LoRA")
        yield
        return
    if any(config.is_prompt_learning for config in model.peft_config.values()):
        with model.disable_adapter():
            yield
        return
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, state in zip(layers, before, strict=True):
            layer._disable_adapters = state


def install(model: Any) -> int:
    """Give every LoRA layer on a plain linear layer the fused forward; returns how many.

    Each call still looks whether its layer is in a state that the fused arithmetic covers, and takes PEFT's forward if not.
    """
    found = [layer for layer in adapter_layers(model) if _plain_layer(layer)]
    for layer in found:
        if not isinstance(layer.__dict__.get("forward"), partial):
            layer.forward = partial(_forward, layer, layer.forward)  # a partial, and no closure, so that a deep copy follows its own layer
    return len(found)


def _plain_layer(layer: Any) -> bool:
    import torch
    from peft.tuners.lora import Linear
    from transformers.pytorch_utils import Conv1D

    return type(layer) is Linear and type(layer.base_layer) in (torch.nn.Linear, Conv1D)


def _forward(layer: Any, original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    names = layer.active_adapters
    if args or kwargs or layer.disable_adapters or layer.merged or len(names) != 1 or not _fusible(layer, names[0]):
        return original(x, *args, **kwargs)
    a, b, base = layer.lora_A[names[0]].weight, layer.lora_B[names[0]].weight, layer.base_layer
    return _fused()(x, base.weight, base.bias, a, b, layer.scaling[names[0]], layer.fan_in_fan_out)


def _fusible(layer: Any, name: str) -> bool:
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_bias[name]:
        return False
    return not layer.base_layer.weight.requires_grad and getattr(layer.lora_dropout[name], "p", 0.0) == 0.0


@cache
def _fused() -> Any:
    """The autograd function; made on first use because torch may not be imported with this module."""
    import torch

    class FusedLora(torch.autograd.Function):
        """y = x W^T + b + s (x A^T) B^T in the dtype of x, over factors of any dtype; W and b are frozen."""

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
            ctx.save_for_backward(rows, w, inner, a, b)
            ctx.scale = scale
            return y.view(*x.shape[:-1], y.shape[-1])

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            rows, w, inner, a, b = ctx.saved_tensors
            dy = grads[0].reshape(-1, grads[0].shape[-1])
            back = dy @ b.to(dy.dtype)  # [n, r]
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (dy @ w).addmm_(back, a.to(dy.dtype), alpha=ctx.scale).view(*grads[0].shape[:-1], rows.shape[-1])
            da = (back.t() @ rows).to(a.dtype).mul_(ctx.scale)
            db = (dy.t() @ inner).to(b.dtype).mul_(ctx.scale)
            return dx, None, None, da, db, None, None

    return FusedLora.apply
