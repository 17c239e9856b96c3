"""Attention over a prefix tree, registered with transformers as an attention implementation `NAME`.

On a GPU one kernel attends to the whole tree (block_attention.py), elsewhere it goes run by run.

The tree travels as the forward argument `tree`, never as global state, so that a recomputed forward
(gradient checkpointing) sees the same one. Without that argument the implementation is
transformers' own SDPA, so generation and plain forwards of the same model go on working. Distances
(sliding windows) are counted along a path of the tree, not by row number. Which models may be fed
trees is decided in capability.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from thumbwheel.engine import block_attention
from thumbwheel.engine.trie import RowRun

if TYPE_CHECKING:
    import torch

NAME = "thumbwheel_tree"
EXPLICIT_MAX_SCORES = 1024 * 1024
"""Query rows x key rows up to which scores are held in memory. Beyond that the memory is worth more
than the time."""


@dataclass(eq=False)
class TreeMask:
    """The runs of one batch, how its rows are cut, and the additive masks that the layers share."""

    runs: tuple[RowRun, ...]
    cuts: list[int]  # lengths of the pieces between all borders of runs and prefixes
    pieces: list[range]  # of each run: the pieces that it consists of
    prefix_pieces: list[list[int]]  # of each run: the pieces before it on its path, in path order
    rows: torch.Tensor | None = None  # rows whose hidden states are read; None: all
    calls: int = 0
    windows: list[int | None] = field(default_factory=list)
    _masks: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)
    _block_masks: dict[int | None, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, runs: Sequence[RowRun], n_rows: int, read_rows: torch.Tensor | None = None
    ) -> TreeMask:
        """Build the mask of a batch of `n_rows` rows; `read_rows` are the rows whose output is
        read."""
        # cut the rows at every border of a run or of an interval of a prefix
        borders = {0, n_rows}
        for run in runs:
            borders |= {run.start, run.stop}
            for interval in run.prefix:
                borders |= set(interval)
        ordered = sorted(borders)
        piece_at = {border: piece for piece, border in enumerate(ordered)}
        cuts = [stop - start for start, stop in pairwise(ordered)]

        # name the pieces of each run, and of the path in front of it
        pieces: list[range] = []
        prefix_pieces: list[list[int]] = []
        for run in runs:
            pieces.append(range(piece_at[run.start], piece_at[run.stop]))
            before: list[int] = []
            for start, stop in run.prefix:
                before += range(piece_at[start], piece_at[stop])
            prefix_pieces.append(before)
        return cls(tuple(runs), cuts, pieces, prefix_pieces, read_rows)

    def bias(self, run_index: int, like: torch.Tensor, window: int | None) -> torch.Tensor | None:
        """Return the additive mask [q, k] of a run in the dtype of `like`, or None if plain causal
        attention gives the same."""
        run = self.runs[run_index]
        prefix_rows, run_rows = run.prefix_rows, run.stop - run.start
        if window is not None and window >= prefix_rows + run_rows:
            window = None
        if prefix_rows == 0 and window is None:
            return None
        key = (prefix_rows, run_rows, window, like.dtype, like.device)
        if key not in self._masks:
            self._masks[key] = causal_bias(prefix_rows, run_rows, window, like)
        return self._masks[key]

    def block_mask(self, like: torch.Tensor, window: int | None) -> Any:
        """Return the mask of the whole batch, for block_attention.py; `like` [1, heads, T, d]."""
        if window not in self._block_masks:
            mask = block_attention.block_mask(self.runs, like.shape[2], window, like.device)
            self._block_masks[window] = mask
        return self._block_masks[window]


def causal_bias(
    prefix_rows: int, run_rows: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """Return [run_rows, prefix_rows + run_rows]: 0 for a key that a query sees, -inf for the
    others.

    A query sees the keys at distances 0 to `window` - 1 before it, all of them without a window.
    """
    import torch

    length = prefix_rows + run_rows
    query_positions = torch.arange(prefix_rows, length, device=like.device)
    key_positions = torch.arange(length, device=like.device)
    distance = query_positions[:, None] - key_positions
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return like.new_zeros(run_rows, length).masked_fill_(hidden, -math.inf)


@cache
def register() -> str:
    """Register `NAME` with transformers and return it."""
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
    """Attend with transformers' attention signature: query [1, heads, T, d], key and value [1, kv
    heads, T, d] -> [1, T, heads, d]."""
    if tree is None:
        return _plain(module, query, key, value, attention_mask, dropout, scaling, softcap, rest)
    if rest.get("s_aux") is not None or rest.get("position_bias") is not None:
        raise NotImplementedError("attention sinks and position biases")
    tree.calls += 1
    tree.windows.append(sliding_window)
    return _attend_tree(query, key, value, tree, scaling, sliding_window, softcap), None


def _attend_tree(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with one kernel if the device has one, else run by run: the queries of a run attend to
    the keys and values of its whole path."""
    import torch

    if block_attention.usable(query):
        mask = tree.block_mask(query, window)
        attended = block_attention.attend(query, key, value, mask, scaling, softcap)
        return attended.transpose(1, 2)

    query_pieces = query.split(tree.cuts, dim=2)
    key_pieces = key.split(tree.cuts, dim=2)
    value_pieces = value.split(tree.cuts, dim=2)
    outputs = []
    for run_index, run_pieces in enumerate(tree.pieces):
        path = [*tree.prefix_pieces[run_index], *run_pieces]
        q = _join([query_pieces[piece] for piece in run_pieces])
        k = _join([key_pieces[piece] for piece in path])
        v = _join([value_pieces[piece] for piece in path])
        bias = tree.bias(run_index, q, window)
        outputs.append(attend_run(q, k, v, bias, scaling, softcap))
    return torch.cat(outputs, dim=2).transpose(1, 2)


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
    """Return softmax(cap(q k^T * scaling) + bias) v of one run, [1, heads, q, d]; no `bias` means
    causal.

    Without soft-capping it is torch's SDPA, or on a CPU in half precision `explicit_attention`,
    which is faster there for up to EXPLICIT_MAX_SCORES scores.
    """
    import torch.nn.functional as F

    grouped = q.shape[1] != k.shape[1]
    n_scores = q.shape[2] * k.shape[2]
    half_on_cpu = q.device.type == "cpu" and q.dtype.itemsize == 2
    if softcap is None and half_on_cpu and n_scores <= EXPLICIT_MAX_SCORES:
        return explicit_attention(q, k, v, bias, scaling)

    # repeat the heads of keys and values where nothing below does that by itself; CUDA has no fast
    # kernel for grouped heads together with a mask
    masked_on_cuda = q.device.type == "cuda" and bias is not None
    if grouped and (softcap is not None or masked_on_cuda):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        grouped = False
    if softcap is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=bias is None, scale=scaling, enable_gqa=grouped
        )

    # soft-capping as written, with a softmax in fp32 (fp64 in fp64 models)
    scores = q @ k.transpose(2, 3) * _scale(q, scaling)
    capped = softcap * (scores / softcap).tanh()
    if bias is None:
        bias = causal_bias(0, q.shape[2], None, q)
    exact = capped.double() if q.dtype.itemsize == 8 else capped.float()
    return (exact + bias).softmax(-1).to(q.dtype) @ v


def _scale(q: torch.Tensor, scaling: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scaling is None else scaling


def explicit_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Return softmax(q k^T * scaling + bias) v, written out as two batched products and a softmax.

    On a CPU in bf16 it is twice as fast as torch's flash kernel, forward and backward.
    """
    heads, length, size = q.shape[1:]
    kv_heads = k.shape[1]
    if bias is None:
        bias = causal_bias(0, length, None, q)
    # the queries of all heads that share a key head are rows of one product
    rows = (q * _scale(q, scaling)).reshape(kv_heads, heads // kv_heads * length, size)
    output: torch.Tensor = _explicit_function()(rows, k[0], v[0], bias)
    return output.view(1, heads, length, -1)


@cache
def _explicit_function() -> Any:
    """Return the function (rows [kv heads, n * q, d], keys and values [kv heads, k, d], bias [q,
    k]) -> [kv heads, n * q, d].

    The probabilities, a quarter of the tensors that a forward pass would store, are computed again
    in the backward pass. The class is created on first use because torch may not be imported with
    this module.
    """
    import torch

    def probabilities(rows: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = rows @ k.transpose(1, 2)
        return scores.view(len(k), -1, *bias.shape).add_(bias).softmax(-1).view_as(scores)

    class ExplicitAttention(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
        ) -> torch.Tensor:
            ctx.save_for_backward(rows, k, v, bias)
            return probabilities(rows, k, bias) @ v

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            rows, k, v, bias = ctx.saved_tensors
            (d_output,) = gradients
            p = probabilities(rows, k, bias)
            # output = p v; p = softmax(s); s = rows k^T + bias
            d_v = p.transpose(1, 2) @ d_output
            d_p = d_output @ v.transpose(1, 2)
            d_s = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
            d_rows = d_s @ k
            d_k = d_s.transpose(1, 2) @ rows
            return d_rows, d_k, d_v, None

    return ExplicitAttention.apply


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
    """Attend without a tree: by SDPA, or with soft-capping, which SDPA lacks, by `attend_run`."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if softcap is None:
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, **rest
        )
    bias = mask
    if mask is not None and mask.dtype.itemsize == 1:
        # a row of padding sees nothing; -inf in all of a row would make it nan
        lowest = torch.finfo(query.dtype).min
        bias = query.new_zeros(mask.shape).masked_fill_(~mask, lowest)
    elif mask is None and query.shape[2] == 1:
        bias = query.new_zeros(1, key.shape[2])
    return attend_run(query, key, value, bias, scaling, softcap).transpose(1, 2).contiguous(), None
