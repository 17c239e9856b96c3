"""From hidden states to log-probabilities of the targets, without ever holding [M, vocabulary].

Logits, soft-capping, log-sum-exp and sums are fp32 (fp64 in fp64 models) whatever the dtype of the
model.

With a frozen head d logp / d h does not depend on the loss, so the forward pass computes it: the
vocabulary is cut into tiles, each tile takes one product for the logits and one for the gradient,
and a running maximum joins the tiles as in flash attention. That is two products in all instead of
three (the idea of Liger's fused cross-entropy, here independent of the loss). A trainable or
adapted head is computed again in the backward pass instead.

`Head` is the arithmetic after the last linear layer that is known here. A head that is none of this
is left to the model's own forward (score.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.precision import bf16_products

if TYPE_CHECKING:
    import torch

ROWS = 1024
"""Hidden states of one pass over the vocabulary."""
RECOMPUTED_ROWS = 128
"""The same for a head that trains, where all logits of a pass are held."""
COMPARED_ROWS = 32
"""The same where two distributions are compared, of which several copies are held."""
TILE_BYTES = {"cpu": 4 << 20}
"""Widened weights of one tile, by device; on a CPU they should stay in the cache."""
TILE_BYTES_ELSEWHERE = 256 << 20
WIDE_PRODUCTS = ("cuda",)
"""Kinds of devices that multiply bf16 numbers into fp32 ones, without widening a weight first."""


@dataclass(frozen=True)
class Head:
    """logits = cap(scale * (W h + b)); `module` is the last layer."""

    module: Any
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: Any) -> Head | None:
        """Return the head of a causal LM as its configuration describes it, or None if it has no
        output layer."""
        module = model.get_output_embeddings()
        if module is None:
            return None
        config = model.config.get_text_config()
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        return cls(module, scale, getattr(config, "final_logit_softcapping", None))

    @property
    def frozen(self) -> bool:
        """No parameter of it trains and no adapter is on it."""
        trains = any(parameter.requires_grad for parameter in self.module.parameters())
        return not trains and hasattr(self.module, "weight")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, V] of `hidden` [n, H] in the accumulation dtype, through the module
        itself."""
        return self.finish(self.module(hidden).to(wide(hidden)))

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply scale and soft-capping to raw logits."""
        scaled = logits if self.scale == 1.0 else logits * self.scale
        return scaled if self.softcap is None else self.softcap * (scaled / self.softcap).tanh()

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """Return d logit / d raw logit, from the finished logit."""
        if self.softcap is None:
            return self.scale
        return self.scale * (1 - (logits / self.softcap) ** 2)


def wide(tensor: torch.Tensor) -> torch.dtype:
    """Return fp32, or fp64 for fp64 input."""
    import torch

    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def score_targets(
    head: Head,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    rows: int | None,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probability of each target and, if wanted, the (detached) entropy of each
    distribution, both [M] in nats.

    `rows` is how many hidden states go through the vocabulary at once.
    """
    size = rows or ROWS
    if not head.frozen:
        size = min(size, RECOMPUTED_ROWS)
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for part, part_targets in zip(hidden.split(size), targets.split(size), strict=True):
        score = _score_frozen if head.frozen else _score_recomputed
        logp, part_entropy = score(head, part, part_targets, temperature, entropy)
        logps.append(logp)
        entropies.append(part_entropy)
    return _join(logps), _join(entropies) if entropy else None


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _score_frozen(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = head.module.weight, getattr(head.module, "bias", None)
    logp, entropies = _frozen_head()(hidden, weight, bias, targets, head, temperature, entropy)
    return logp, entropies


def _score_recomputed(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    from torch.utils.checkpoint import checkpoint

    def score(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logps = (head.logits(hidden) / temperature).log_softmax(-1)
        entropies = entropy_of(logps.detach()) if entropy else logps.new_zeros(0)
        return logps.gather(1, targets[:, None])[:, 0], entropies

    logp, entropies = checkpoint(score, hidden, targets, use_reentrant=False)
    return logp, entropies


def divergence_from(
    reference: torch.Tensor, head: Head, hidden: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the Kullback-Leibler divergence [M] in nats of the distributions of `hidden` [M, H]
    from those of the logits `reference` [M, V]. Logits of `hidden` are computed again in the
    backward pass."""
    from torch.utils.checkpoint import checkpoint

    def compare(part: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return divergence(part, head.logits(hidden), temperature)

    parts = zip(reference.split(COMPARED_ROWS), hidden.split(COMPARED_ROWS), strict=True)
    return _join([checkpoint(compare, *part, use_reentrant=False) for part in parts])


def divergence(reference: torch.Tensor, logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the Kullback-Leibler divergence [n] in nats of the distributions of `logits` [n, V]
    from those of the logits `reference` [n, V]; a token of probability 0 adds 0."""
    dtype = wide(logits)
    expected = (reference.to(dtype) / temperature).log_softmax(-1)
    actual = (logits.to(dtype) / temperature).log_softmax(-1)
    difference = (expected - actual).nan_to_num(nan=0.0, posinf=float("inf"))
    return (expected.exp() * difference).sum(-1)


def entropy_of(logps: torch.Tensor) -> torch.Tensor:
    """Return the entropy [n] in nats of log-probabilities [n, V]; a token of probability 0 adds
    0."""
    return -(logps.exp() * logps).nan_to_num(nan=0.0).sum(-1)


class _RunningSums:
    """Sums over the vocabulary, tile by tile, relative to the running maximum m of the logits z:

    mass = sum exp(z - m), weighted_logits = sum exp(z - m) z (for the entropy), and
    weighted_rows = sum exp(z - m) slope W (for the gradient).
    """

    def __init__(self, hidden: torch.Tensor, gradient: bool, entropy: bool) -> None:
        dtype, n = wide(hidden), hidden.shape[0]
        self.maximum = hidden.new_full((n, 1), -float("inf"), dtype=dtype)
        self.mass = hidden.new_zeros(n, 1, dtype=dtype)
        self.weighted_logits = hidden.new_zeros(n, 1, dtype=dtype) if entropy else None
        self.weighted_rows = hidden.new_zeros(hidden.shape, dtype=dtype) if gradient else None

    def add(self, logits: torch.Tensor, slope: torch.Tensor | float, tile: torch.Tensor) -> None:
        """Add one tile: finished `logits` [n, v] (overwritten), their slope and the weights [v, H]
        in the dtype of the model."""
        import torch

        # what was summed so far is brought to the new maximum
        maximum = torch.maximum(self.maximum, logits.amax(-1, keepdim=True))
        shrink = (self.maximum - maximum).exp()
        self.maximum = maximum

        finite = None
        if self.weighted_logits is not None:
            finite = logits.nan_to_num(neginf=0.0)  # a copy: `logits` becomes the masses below
        masses = logits.sub_(maximum).exp_()
        self.mass = self.mass * shrink + masses.sum(-1, keepdim=True)
        if self.weighted_logits is not None and finite is not None:
            added = (masses * finite).sum(-1, keepdim=True)
            self.weighted_logits = self.weighted_logits * shrink + added
        if self.weighted_rows is not None:
            constant = slope if isinstance(slope, float) else 1.0
            weighted = masses if isinstance(slope, float) else masses.mul_(slope)
            product = weighted.to(tile.dtype) @ tile
            self.weighted_rows = self.weighted_rows.mul_(shrink).add_(product, alpha=constant)


@cache
def _frozen_head() -> Any:
    """Return the autograd function of a frozen head, created on first use because torch may not be
    imported with this module."""
    import torch

    class FrozenHead(torch.autograd.Function):
        """forward: (logp [n], entropy [n]); saves d logp / d h [n, H]. backward: one
        multiplication."""

        @staticmethod
        def forward(
            ctx: Any,
            hidden: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor | None,
            targets: torch.Tensor,
            head: Head,
            temperature: float,
            entropy: bool,
        ) -> Any:
            # sums over the vocabulary
            dtype = wide(hidden)
            h = hidden.to(dtype)
            gradient = ctx.needs_input_grad[0]
            sums = _RunningSums(hidden, gradient, entropy)
            from_bf16 = hidden.dtype == weight.dtype == torch.bfloat16
            wide_products = from_bf16 and hidden.device.type in WIDE_PRODUCTS
            factor = hidden if wide_products else h
            with bf16_products() if from_bf16 else nullcontext():
                for tile, raw in _tiles(factor, weight, bias, dtype):
                    logits = head.finish(raw)
                    slope = head.slope(logits) if gradient else 1.0
                    sums.add(logits if temperature == 1.0 else logits / temperature, slope, tile)
            log_partition = sums.maximum[:, 0] + sums.mass[:, 0].log()

            # logp = z_target / temperature - log sum exp(z / temperature)
            target_rows = weight[targets].to(dtype)
            raw = (h * target_rows).sum(-1)
            if bias is not None:
                raw = raw + bias[targets].to(dtype)
            target_logits = head.finish(raw)
            logp = target_logits / temperature - log_partition

            # d logp / d h = (slope_target W_target - sum p slope W) / temperature
            if sums.weighted_rows is not None:
                slope = head.slope(target_logits)
                pull = target_rows * (slope if isinstance(slope, float) else slope[:, None])
                d_hidden = (pull - sums.weighted_rows / sums.mass) / temperature
                ctx.save_for_backward(d_hidden.to(hidden.dtype))

            # entropy = log sum exp(z / temperature) - sum p z / temperature
            entropies = hidden.new_zeros(0)
            if sums.weighted_logits is not None:
                entropies = log_partition - sums.weighted_logits[:, 0] / sums.mass[:, 0]
            ctx.mark_non_differentiable(entropies)
            return logp, entropies

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            (d_hidden,) = ctx.saved_tensors
            d_logp = gradients[0][:, None].to(d_hidden.dtype)
            return d_logp * d_hidden, None, None, None, None, None, None

    return FrozenHead.apply


def _tiles(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (weights of the tile as they are stored, its raw logits in `dtype`); the buffers are
    used again for every tile. `hidden` is in `dtype`, or bf16 as the weights, whose products are
    summed up in `dtype`."""
    import torch

    n, (vocabulary, width) = hidden.shape[0], weight.shape
    tile_bytes = TILE_BYTES.get(weight.device.type, TILE_BYTES_ELSEWHERE)
    size = max(256, tile_bytes // (dtype.itemsize * width))
    widened = None
    if weight.dtype != hidden.dtype:
        widened = weight.new_empty(min(size, vocabulary), width, dtype=dtype)
    buffer = hidden.new_empty(n * min(size, vocabulary), dtype=dtype)
    for start in range(0, vocabulary, size):
        tile = weight[start : start + size]
        rows = tile.shape[0]
        factor = tile if widened is None else widened[:rows].copy_(tile)
        logits = buffer[: n * rows].view(n, rows)
        if hidden.dtype == dtype:
            torch.mm(hidden, factor.t(), out=logits)
        else:
            torch.mm(hidden, factor.t(), out_dtype=dtype, out=logits)
        if bias is not None:
            logits.add_(bias[start : start + size])
        yield tile, logits
