"""Attention over a whole prefix tree by one kernel, where a device launches kernels: FlexAttention.

The rows of a tree lie depth first, so that row k is on the path of row q where k <= q < `ends[k]`,
the end of the subtree below k. Blocks of `BLOCK` x `BLOCK` rows in which that holds nowhere are
never computed. A processor has no launches to save, and goes run by run (attention.py).

The kernel is compiled by Triton, which needs a C compiler at hand. A trial on the device decides:
where it fails or computes something else, attention goes run by run there too, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from thumbwheel.core.log import say

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.trie import RowRun

BLOCK = 128
"""Rows of a block, in queries and in keys."""
DEVICES = ("cuda",)
"""Kinds of devices on which the kernel is tried."""
LEAST_HEAD_SIZE = 16
"""Numbers of a query: the kernel takes no fewer."""
TOLERANCE = 0.03
"""Largest difference to the plain computation in the trial, of the largest value (bf16)."""

Kernel = Callable[..., Any]
"""(query [1, heads, T, d], key, value [1, kv heads, T, d], score_mod=, block_mask=, scale=,
enable_gqa=) -> [1, heads, T, d]."""


def usable(query: torch.Tensor) -> bool:
    """Return whether the kernel attends to the tree of `query` [1, heads, T, d]; fewer rows than a
    block would need another kernel, which is not worth compiling."""
    rows, head_size = query.shape[2:]
    if query.device.type not in DEVICES or query.dtype.itemsize > 4:
        return False
    if rows < BLOCK or head_size < LEAST_HEAD_SIZE:
        return False
    return kernel(query.device.type) is not None


def block_mask(runs: Sequence[RowRun], rows: int, window: int | None, device: torch.device) -> Any:
    """Return torch's BlockMask of the tree of `runs`, which has `rows` rows. `window` counts
    distances along a path."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    whole = -(-rows // BLOCK) * BLOCK
    ends, positions = _ends_and_positions(runs, whole)

    # what can be seen at all between two blocks, and where all of it is seen
    block_ends, block_positions = ends.view(-1, BLOCK), positions.view(-1, BLOCK)
    starts = torch.arange(0, whole, BLOCK)
    query_starts, key_starts = starts[:, None], starts[None]
    query_lasts, key_lasts = query_starts + BLOCK - 1, key_starts + BLOCK - 1
    sees = (key_starts <= query_lasts) & (query_starts < block_ends.amax(1)[None])
    sees_all = (key_lasts <= query_starts) & (query_lasts < block_ends.amin(1)[None])
    if window is not None:
        farthest = block_positions.amax(1)[:, None] - block_positions.amin(1)[None]
        sees_all &= farthest < window

    ends, positions = ends.to(device), positions.to(device)
    distance = rows if window is None else window

    def on_path(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < ends[key])

    def in_window(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        near: torch.Tensor = positions[query] - positions[key] < distance
        return (key <= query) & (query < ends[key]) & near

    return BlockMask.from_kv_blocks(
        *_listed(sees & ~sees_all),
        *_listed(sees_all),
        BLOCK_SIZE=BLOCK,
        mask_mod=on_path if window is None else in_window,
        seq_lengths=(rows, rows),
    ).to(device)


def _ends_and_positions(runs: Sequence[RowRun], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each row, the end of the subtree below it and its distance from the root. Rows
    after the last run see only themselves."""
    import torch

    ends, positions = torch.arange(1, rows + 1), torch.zeros(rows, dtype=torch.long)
    for run in runs:
        ends[run.start : run.stop] = run.stop
        depth = run.prefix_rows
        positions[run.start : run.stop] = torch.arange(depth, depth + run.stop - run.start)
        # a later run below the same prefix ends later
        for start, stop in run.prefix:
            ends[start:stop] = run.stop
    return ends, positions


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for flags [q blocks, k blocks], the number of set flags of each row, and their column
    numbers, the set ones first."""
    import torch

    counts = blocks.sum(1, dtype=torch.int32)
    numbers = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return counts[None, None], numbers.to(torch.int32)[None, None]


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Return softmax(cap(q k^T * scaling)) v under `mask`: query [1, heads, T, d] -> [1, heads, T,
    d]."""

    def capped(score: torch.Tensor, *index: Any) -> torch.Tensor:
        assert softcap is not None  # noqa: S101 - taken only where there is one
        return softcap * (score / softcap).tanh()

    attention = kernel(query.device.type)
    assert attention is not None  # noqa: S101 - the caller has asked `usable`
    output: torch.Tensor = attention(
        query,
        key,
        value,
        score_mod=None if softcap is None else capped,
        block_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output


@cache
def kernel(device_type: str) -> Kernel | None:
    """Compile FlexAttention for any number of rows; return None and log the reason if a trial on
    the device failed."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Kernel = torch.compile(flex_attention, dynamic=True)
    try:
        problem = _difference(compiled, torch.device(device_type))
    except Exception as error:  # noqa: BLE001 - compilers raise what they like
        problem = f"it failed ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    if problem:
        say(f"Attention goes run by run, which is slower: FlexAttention was tried, and {problem}.")
        return None
    return compiled


def _difference(attention: Kernel, device: torch.device) -> str:
    """Describe how `attention` differs from the plain computation in a small tree, forward and
    backward; empty if it does not."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from thumbwheel.engine.trie import RowRun

    # three blocks, of which the last is not full; forks and ends of runs lie inside blocks
    rows, fork, second = 3 * BLOCK - BLOCK // 6, 3 * BLOCK // 4, 3 * BLOCK // 2
    runs = [RowRun(0, second, ()), RowRun(second, rows, ((0, fork),))]
    ends, _ = _ends_and_positions(runs, rows)
    row = torch.arange(rows)
    dense = ((row[None] <= row[:, None]) & (row[:, None] < ends[None])).to(device)

    draw = torch.Generator().manual_seed(0)
    sides: list[list[torch.Tensor]] = []
    tensors = [torch.randn(1, heads, rows, 64, generator=draw) for heads in (4, 2, 2)]
    for is_plain in (False, True):
        inputs = [each.to(device, torch.bfloat16).requires_grad_() for each in tensors]
        if is_plain:
            query, key, value = inputs
            key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
            output = scaled_dot_product_attention(query, key, value, attn_mask=dense)
        else:
            mask = block_mask(runs, rows, None, device)
            output = attention(*inputs, block_mask=mask, enable_gqa=True)
        gradients = torch.autograd.grad(output.float().square().sum(), inputs)
        sides.append([output.detach(), *gradients])
    for result, expected in zip(*sides, strict=True):
        gap = float((result - expected).abs().max() / expected.abs().max())
        if not gap <= TOLERANCE:
            return f"differed from the plain computation by {gap:.1e} of the largest value"
    return ""
