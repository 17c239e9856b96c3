"""Attention over a prefix tree, as an attention implementation of transformers under the name
`NAME`.

The tree travels as the forward argument `tree`, never as global state, so that a recomputed forward
(gradient checkpointing) sees the same one. Without that argument the implementation is
transformers' own SDPA, so generation and plain forwards of the same model go on working. Distances
(sliding windows) are counted along the path: a sibling's rows are no distance. Does not live here:
which models may be fed trees (capability.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.trie import Run

if TYPE_CHECKING:
    import torch

NAME = "thumbwheel_tree"
EXPLICIT_UP_TO = (
    1024 * 1024
)  # query rows x key rows; beyond, the memory of the scores is worth more than the time


@dataclass(eq=False)
class TreeMask:
    """The runs of one batch, how the rows are cut, and the additive masks that the layers share."""

    runs: tuple[Run, ...]
    cuts: list[int]  # lengths of the pieces between all run and prefix borders
    pieces: list[
        range
    ]  # of each run: its prefix pieces in path order are `prefix_pieces`, its own are these
    prefix_pieces: list[list[int]]
    rows: torch.Tensor | None = None  # whose hidden states are read; None: all
    calls: int = 0
    windows: list[int | None] = field(default_factory=list)
    _masks: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[Run], rows: int, read: torch.Tensor | None = None) -> TreeMask:
        """The mask of a batch with `rows` rows, of which only those in `read` are looked at, where
        it is given."""
        borders = sorted(
            {
                0,
                rows,
                *(
                    edge
                    for run in runs
                    for edge in (run.start, run.stop, *(e for part in run.prefix for e in part))
                ),
            }
        )
        at = {border: place for place, border in enumerate(borders)}
        cuts = [stop - start for start, stop in pairwise(borders)]
        own = [range(at[run.start], at[run.stop]) for run in runs]
        prefix = [
            [piece for start, stop in run.prefix for piece in range(at[start], at[stop])]
            for run in runs
        ]
        return cls(tuple(runs), cuts, own, prefix, read)

    def bias(self, place: int, like: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """Additive [q, k] mask of a run in the dtype of `like`, or None where plain causal says the
        same."""
        run = self.runs[place]
        before, own = run.prefix_rows, run.stop - run.start
        window = window if window is not None and window < before + own else None
        if before == 0 and window is None:
            return None
        key = (before, own, window, like.dtype, like.device)
        if key not in self._masks:
            self._masks[key] = _bias(before, own, window, like)
        return self._masks[key]


def _bias(before: int, own: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    import torch

    distance = torch.arange(before, before + own, device=like.device)[:, None] - torch.arange(
        before + own, device=like.device
    )
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return like.new_zeros(own, before + own).masked_fill_(hidden, -math.inf)


@cache
def register() -> str:
    """Make `NAME` known to transformers; returns it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    tree: TreeMask | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query [1, heads, T, d], key and value [1, kv heads, T, d]
    -> [1, T, heads, d]."""
    if tree is None:
        return _plain(module, query, key, value, attention_mask, dropout, scaling, softcap, rest)
    if rest.get("s_aux") is not None or rest.get("position_bias") is not None:
        raise NotImplementedError("attention sinks and position biases")
    tree.calls += 1
    tree.windows.append(sliding_window)
    return _attend(query, key, value, tree, scaling, sliding_window, softcap), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    import torch

    queries, keys, values = (part.split(tree.cuts, dim=2) for part in (query, key, value))
    found = []
    for place, own in enumerate(tree.pieces):
        path = [*tree.prefix_pieces[place], *own]
        q = _join([queries[at] for at in own])
        k, v = _join([keys[at] for at in path]), _join([values[at] for at in path])
        found.append(attend_run(q, k, v, tree.bias(place, q, window), scaling, softcap))
    return torch.cat(found, dim=2).transpose(1, 2)


def _join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


def attend_run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """One run: [1, heads, q, d]; no `bias` means causal."""
    import torch.nn.functional as F

    grouped = q.shape[1] != k.shape[1]
    if (
        softcap is None
        and q.device.type == "cpu"
        and q.dtype.itemsize == 2
        and q.shape[2] * k.shape[2] <= EXPLICIT_UP_TO
    ):
        return _explicit(q, k, v, bias, scaling)
    if grouped and (
        softcap is not None or (q.device.type == "cuda" and bias is not None)
    ):  # CUDA has no fast kernel for both
        k, v, grouped = (
            *(part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v)),
            False,
        )
    if softcap is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=bias is None, scale=scaling, enable_gqa=grouped
        )
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    capped = softcap * (scores / softcap).tanh()
    bias = _bias(0, q.shape[2], None, q) if bias is None else bias
    exact = capped.double() if q.dtype.itemsize == 8 else capped.float()
    return (exact + bias).softmax(-1).to(q.dtype) @ v


def _explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Two batched products and a softmax: on a CPU in bf16 twice as fast as its flash kernel,
    forward and backward."""
    heads, length, size = q.shape[1:]
    kv_heads = k.shape[1]
    rows = (q * (size**-0.5 if scaling is None else scaling)).reshape(
        kv_heads, heads // kv_heads * length, size
    )
    found: torch.Tensor = _products()(
        rows, k[0], v[0], _bias(0, length, None, q) if bias is None else bias
    )
    return found.view(1, heads, length, -1)


@cache
def _products() -> Any:
    """(rows [kv heads, n * q, d], keys and values [kv heads, k, d], bias [q, k]) -> [kv heads, n *
    q, d].

    The shares, a quarter of what a forward pass would keep, are computed again in the backward
    pass.
    """
    import torch

    def shares(rows: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = rows @ k.transpose(1, 2)
        return scores.view(len(k), -1, *bias.shape).add_(bias).softmax(-1).view_as(scores)

    class Products(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
        ) -> torch.Tensor:
            ctx.save_for_backward(rows, k, v, bias)
            return shares(rows, k, bias) @ v

        @staticmethod
        def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            rows, k, v, bias = ctx.saved_tensors
            share = shares(rows, k, bias)
            slope = torch.ops.aten._softmax_backward_data(
                slopes[0] @ v.transpose(1, 2), share, -1, share.dtype
            )
            return slope @ k, slope.transpose(1, 2) @ rows, share.transpose(1, 2) @ slopes[0], None

    return Products.apply


def _plain(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
    rest: dict[str, Any],
) -> tuple[torch.Tensor, None]:
    """A forward without a tree. Soft-capping, which SDPA has not, is computed as written."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if softcap is None:
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, **rest
        )
    bias = mask
    if mask is not None and mask.dtype.itemsize == 1:
        bias = query.new_zeros(mask.shape).masked_fill_(
            ~mask, torch.finfo(query.dtype).min
        )  # padding sees nothing, and inf makes that nan
    elif mask is None and query.shape[2] == 1:
        bias = query.new_zeros(1, key.shape[2])
    return attend_run(query, key, value, bias, scaling, softcap).transpose(1, 2).contiguous(), None
