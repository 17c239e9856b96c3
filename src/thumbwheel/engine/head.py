"""From hidden states to log-probabilities of the targets, without ever holding [M, vocabulary].

Logits, soft-capping, log-sum-exp and sums are fp32 (fp64 in fp64 models) whatever the dtype of the
model. With a frozen head d logp / d h does not depend on the loss, so it is computed in the forward
pass: per tile of the vocabulary one product for the logits and one for the gradient, a running
maximum as in flash attention, two products in all instead of three (the idea of Liger's fused
cross-entropy, here independent of the loss). A trainable or adapted head is recomputed in the
backward pass instead. Lives here: both roads and `Head`, the arithmetic after the last linear layer
that is known. A head that is none of this is left to the model's own forward (score.py).
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

ROWS = 1024  # hidden states of one pass over the vocabulary
TILE_BYTES = {"cpu": 4 << 20}  # widened weights of one tile; on a CPU they should stay in the cache
TILE_BYTES_ELSEWHERE = 256 << 20


@dataclass(frozen=True)
class Head:
    """logits = cap(scale * (W h + b)); `module` is the last layer."""

    module: Any
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: Any) -> Head | None:
        """The head of a causal LM as its configuration describes it, or None where there is no
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
        return not any(
            parameter.requires_grad for parameter in self.module.parameters()
        ) and hasattr(self.module, "weight")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, H] -> [n, V] in the accumulation dtype, through the module itself."""
        return self.finish(self.module(hidden).to(wide(hidden)))

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale and soft-capping."""
        scaled = logits if self.scale == 1.0 else logits * self.scale
        return scaled if self.softcap is None else self.softcap * (scaled / self.softcap).tanh()

    def slope(self, final: torch.Tensor) -> torch.Tensor | float:
        """d finish / d raw logit, from the finished logit."""
        return (
            self.scale if self.softcap is None else self.scale * (1 - (final / self.softcap) ** 2)
        )


def wide(tensor: torch.Tensor) -> torch.dtype:
    """fp32, or fp64 for fp64 input."""
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
    """Log-probability of each target and, if wanted, the (detached) entropy of each distribution,
    both [M] in nats.

    `rows` is how many hidden states go through the vocabulary at once.
    """
    size = rows or ROWS
    if not head.frozen:
        return _recomputed(head, hidden, targets, temperature, min(size, 128), entropy)
    pairs = [
        _frozen()(
            part,
            head.module.weight,
            getattr(head.module, "bias", None),
            wanted,
            head,
            temperature,
            entropy,
        )
        for part, wanted in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return _joined([logp for logp, _ in pairs]), _joined(
        [spread for _, spread in pairs]
    ) if entropy else None


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _recomputed(
    head: Head,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    size: int,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    from torch.utils.checkpoint import checkpoint

    def one(part: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logs = (head.logits(part) / temperature).log_softmax(-1)
        return logs.gather(1, wanted[:, None])[:, 0], entropy_of(
            logs.detach()
        ) if entropy else logs.new_zeros(0)

    pairs = [
        checkpoint(one, a, b, use_reentrant=False)
        for a, b in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return _joined([logp for logp, _ in pairs]), _joined(
        [spread for _, spread in pairs]
    ) if entropy else None


def entropy_of(logs: torch.Tensor) -> torch.Tensor:
    """[n, V] log-probabilities -> [n] nats; a token of probability 0 adds 0."""
    return -(logs.exp() * logs).nan_to_num(nan=0.0).sum(-1)


class _Sums:
    """Running sums over the vocabulary, all relative to the running maximum: of p, of p * logit and
    of p * slope * W."""

    def __init__(self, hidden: torch.Tensor, gradient: bool, entropy: bool) -> None:
        kind = wide(hidden)
        self.top = hidden.new_full((hidden.shape[0], 1), -float("inf"), dtype=kind)
        self.mass = hidden.new_zeros(hidden.shape[0], 1, dtype=kind)
        self.pull = hidden.new_zeros(hidden.shape, dtype=kind) if gradient else None
        self.energy = hidden.new_zeros(hidden.shape[0], 1, dtype=kind) if entropy else None

    def add(self, logits: torch.Tensor, slope: torch.Tensor | float, tile: torch.Tensor) -> None:
        """One tile: finished `logits` [n, v] (overwritten), their slope and the weights [v, H] in
        the dtype of the model."""
        import torch

        top = torch.maximum(self.top, logits.amax(-1, keepdim=True))
        shrink = (self.top - top).exp()
        self.top = top
        kept = logits.clone() if self.energy is not None else None
        share = logits.sub_(top).exp_()
        self.mass = self.mass * shrink + share.sum(-1, keepdim=True)
        if self.energy is not None and kept is not None:
            self.energy = self.energy * shrink + (share * kept.nan_to_num(neginf=0.0)).sum(
                -1, keepdim=True
            )
        if self.pull is not None:
            weighted = share if isinstance(slope, float) else share.mul_(slope)
            self.pull = self.pull.mul_(shrink).add_(
                weighted.to(tile.dtype) @ tile, alpha=slope if isinstance(slope, float) else 1.0
            )


@cache
def _frozen() -> Any:
    """The autograd function of a frozen head; made on first use because torch may not be imported
    with this module."""
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
            kind, precise = wide(hidden), hidden.to(wide(hidden))
            sums = _Sums(hidden, ctx.needs_input_grad[0], entropy)
            with (
                bf16_products() if hidden.dtype == weight.dtype == torch.bfloat16 else nullcontext()
            ):
                for tile, logits in _tiles(precise, weight, bias, kind):
                    final = head.finish(logits)
                    slope = head.slope(final) if sums.pull is not None else 1.0
                    sums.add(final if temperature == 1.0 else final / temperature, slope, tile)
            chosen = weight[targets].to(kind)
            raw = (precise * chosen).sum(-1) + (0.0 if bias is None else bias[targets].to(kind))
            final = head.finish(raw)
            partition = sums.top[:, 0] + sums.mass[:, 0].log()
            if sums.pull is not None:
                slope = head.slope(final)
                near = chosen * (slope if isinstance(slope, float) else slope[:, None])
                ctx.save_for_backward(
                    ((near - sums.pull / sums.mass) / temperature).to(hidden.dtype)
                )
            spread = (
                hidden.new_zeros(0)
                if sums.energy is None
                else partition - sums.energy[:, 0] / sums.mass[:, 0]
            )
            ctx.mark_non_differentiable(spread)
            return final / temperature - partition, spread

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            (gradient,) = ctx.saved_tensors
            return (
                grads[0][:, None].to(gradient.dtype) * gradient,
                None,
                None,
                None,
                None,
                None,
                None,
            )

    return FrozenHead.apply


def _tiles(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(weights of the tile as they are stored, its raw logits in `kind`); the buffers are used
    again for every tile."""
    import torch

    size = max(
        256,
        TILE_BYTES.get(weight.device.type, TILE_BYTES_ELSEWHERE)
        // (kind.itemsize * weight.shape[1]),
    )
    widened = (
        None
        if weight.dtype == kind
        else weight.new_empty(min(size, weight.shape[0]), weight.shape[1], dtype=kind)
    )
    logits = hidden.new_empty(hidden.shape[0] * min(size, weight.shape[0]))
    for start in range(0, weight.shape[0], size):
        tile = weight[start : start + size]
        exact = tile if widened is None else widened[: tile.shape[0]].copy_(tile)
        out = logits[: hidden.shape[0] * tile.shape[0]].view(hidden.shape[0], tile.shape[0])
        torch.mm(hidden, exact.t(), out=out)
        yield tile, out if bias is None else out.add_(bias[start : start + size])
