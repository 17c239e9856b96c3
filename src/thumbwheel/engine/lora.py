"""LoRA layers during training: which adapter is active, and a fused forward and backward for plain
ones.

PEFT's parameters stay the storage; only the arithmetic is replaced, on linear layers with one
active, plain LoRA adapter, and without dropout where gradients are computed. Anything else (DoRA,
several adapters, quantised bases, merged weights, convolutions) keeps PEFT's own forward. Adapters
are created and loaded in load.py.
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
    """Return every module of `model` that PEFT can switch."""
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
    """Return the adapter that `model` answers with now, or None if it has none or they are
    disabled."""
    if not hasattr(model, "peft_config") or any(layer._disable_adapters for layer in layers):
        return None
    (name,) = model.active_adapters  # several at once are a mixture, which has no name
    return str(name)


class DropoutDraw:
    """What is left out now, the same for all layers, copies and recomputations of an engine: a
    number that `ScoreEngine.draw_dropout` sets before the gradients of an update."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.number = seed

    def move_to(self, *position: int) -> None:
        self.number = hash((self.seed, *position)) % (1 << 63)

    def __deepcopy__(self, memo: dict[int, Any]) -> DropoutDraw:
        return self  # replicas compute parts of one update


def set_dropout(model: Any, share: float, seed: int) -> None:
    """Leave out this share of the inputs of every LoRA adapter of `model` while gradients are
    computed. Adapters of stacked experts, which PEFT merges into the weights, have none."""
    from peft.tuners.lora import LoraLayer, ParamWrapper

    draw = DropoutDraw(seed)
    number = 0
    for layer in adapter_layers(model):
        if isinstance(layer, LoraLayer) and not isinstance(layer, ParamWrapper):
            for name in layer.lora_A:
                number += 1
                layer.lora_dropout[name] = _adapter_dropout()(share, draw, number)


def dropout_draw(model: Any) -> DropoutDraw | None:
    """Return what `set_dropout` made for `model`, None without dropout."""
    for module in model.modules():
        draw = getattr(module, "draw", None)
        if isinstance(draw, DropoutDraw):
            return draw
    return None


@cache
def _adapter_dropout() -> Any:
    """Return the module, created on first use because torch may not be imported here."""
    import torch

    class AdapterDropout(torch.nn.Module):
        """Dropout that is there only where gradients are computed. Its mask follows from the draw,
        the layer and the shape, so that a recomputed layer leaves out the same."""

        def __init__(self, p: float, draw: DropoutDraw, number: int) -> None:
            super().__init__()
            self.p, self.draw, self.number = p, draw, number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.is_grad_enabled():
                return x
            generator = torch.Generator(device=x.device)
            generator.manual_seed((self.draw.number + self.number * 1_000_003) % (1 << 63))
            drawn = torch.rand(x.shape, generator=generator, device=x.device)
            return x * (drawn >= self.p).to(x.dtype) / (1 - self.p)

    return AdapterDropout


def heavy(layers: list[Any]) -> bool:
    """Return whether a separate thread would need more than activations for these layers: layers
    that train whole, and stacked experts, whose adapted weight PEFT recomputes and stores where all
    threads see it."""
    from peft.tuners.ln_tuning.layer import LNTuningLayer
    from peft.tuners.lora import ParamWrapper

    return any(isinstance(layer, (LNTuningLayer, ParamWrapper)) for layer in layers)


def expert_weights_without_adapter(model: Any) -> list[str]:
    """Return the kinds of expert weights without an adapter, such as `mlp.experts.down_proj`:
    parameters with one matrix for each expert."""
    from peft.tuners.lora import ParamWrapper
    from torch.nn.modules.conv import _ConvNd

    adapted: set[int] = set()
    for module in model.modules():
        if isinstance(module, ParamWrapper):
            adapted.add(id(module.get_param()))

    kinds: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, _ConvNd):
            continue
        for name, weight in module.named_parameters(recurse=False):
            full_name = f"{path}.{name}"
            if weight.ndim == 3 and "lora_" not in full_name and id(weight) not in adapted:
                kinds.add(re.sub(r".*\.\d+\.|base_layer\.", "", full_name))
    return sorted(kinds)


def parameters_of(layers: list[Any], adapter: str) -> list[torch.nn.Parameter]:
    """Return the tensors of one adapter, including those of whole modules that were saved with
    it."""
    import torch

    parameters: list[torch.nn.Parameter] = []
    for layer in layers:
        for name in layer.adapter_layer_names:
            by_adapter = attrgetter(name)(layer)
            if adapter not in by_adapter:
                continue
            value = by_adapter[adapter]
            parameters += value.parameters() if isinstance(value, torch.nn.Module) else [value]
    return parameters


def is_zero_update(model: Any) -> bool:
    """Return whether only a LoRA adapter trains and it is still the zero change that it starts as:
    the model equals its base to the last bit."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    second_factors = [weight for name, weight in trained.items() if "lora_B" in name]
    only_lora = len(trained) == 2 * len(second_factors) > 0
    return only_lora and not any(bool(weight.any()) for weight in second_factors)


@contextmanager
def switched(model: Any, layers: list[Any], adapter: str | None) -> Iterator[None]:
    """Switch `model` to one adapter, or to none, inside the context. PEFT's own switches also
    change what trains, which a role must not."""
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
            if adapter is not None:
                layer._active_adapter = [adapter]
            layer._disable_adapters = adapter is None
        yield
    finally:
        for layer, (name, off) in zip(layers, before, strict=True):
            layer._active_adapter, layer._disable_adapters = name, off


def install(model: Any) -> int:
    """Install the fused forward in every LoRA layer on a plain linear layer; return their number.

    Each call still checks whether its layer is in a state that the fused arithmetic covers, and
    takes PEFT's forward if not.
    """
    layers = [layer for layer in adapter_layers(model) if plain_layer(layer)]
    for layer in layers:
        if not isinstance(layer.__dict__.get("forward"), partial):
            # a partial, and no closure, so that a deep copy follows its own layer
            layer.forward = partial(_forward, layer, layer.forward)
    return len(layers)


def plain_layer(layer: Any) -> bool:
    """Return whether `layer` is a LoRA adapter on a layer that is one matrix of numbers."""
    import torch
    from peft.tuners.lora import Linear
    from transformers.pytorch_utils import Conv1D

    return type(layer) is Linear and type(layer.base_layer) in (torch.nn.Linear, Conv1D)


def _forward(
    layer: Any, original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    names = layer.active_adapters
    one_adapter = not layer.disable_adapters and not layer.merged and len(names) == 1
    if args or kwargs or not one_adapter or not _fusible(layer, names[0]):
        return original(x, *args, **kwargs)
    name, base = names[0], layer.base_layer
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    return _fused()(x, base.weight, base.bias, a, b, layer.scaling[name], layer.fan_in_fan_out)


def _fusible(layer: Any, name: str) -> bool:
    if name not in layer.lora_A or name in layer.lora_variant or layer.lora_bias[name]:
        return False
    import torch

    frozen = not layer.base_layer.weight.requires_grad
    leaves_out = getattr(layer.lora_dropout[name], "p", 0.0) > 0 and torch.is_grad_enabled()
    return frozen and not leaves_out


@cache
def _fused() -> Any:
    """Return the autograd function, created on first use because torch may not be imported here."""
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
            transposed: bool,
        ) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            w = weight.t() if transposed else weight
            a_x, b_x = a.to(x.dtype), b.to(x.dtype)
            inner = rows @ a_x.t()  # [n, r]
            y = torch.nn.functional.linear(rows, w, bias).addmm_(inner, b_x.t(), alpha=scale)
            ctx.save_for_backward(rows, w, inner, a_x, b_x)
            ctx.scale, ctx.dtypes = scale, (a.dtype, b.dtype)
            return y.view(*x.shape[:-1], y.shape[-1])

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            rows, w, inner, a, b = ctx.saved_tensors
            (d_output,) = gradients
            dy = d_output.reshape(-1, d_output.shape[-1])
            d_inner = dy @ b  # [n, r], without the scale
            dx = None
            if ctx.needs_input_grad[0]:
                dx = (dy @ w).addmm_(d_inner, a, alpha=ctx.scale)
                dx = dx.view(*d_output.shape[:-1], rows.shape[-1])
            dtype_a, dtype_b = ctx.dtypes
            # the scale is part of the products: beta 0 leaves what is in `nothing` unread
            nothing = dy.new_empty(1)
            da = torch.addmm(nothing, d_inner.t(), rows, beta=0, alpha=ctx.scale).to(dtype_a)
            db = torch.addmm(nothing, dy.t(), inner, beta=0, alpha=ctx.scale).to(dtype_b)
            return dx, None, None, da, db, None, None

    return FusedLora.apply
