"""Attention over a whole tree by one kernel computes what attention run by run does.

The kernel is torch's FlexAttention, which compiles on GPUs; here its plain computation runs,
forward and backward.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from tests.models.token_families import PAIRS, TREE, adapted
from thumbwheel.engine import block_attention
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, Layout, TreeBatch, build

FAMILIES = ["qwen2", "qwen2-sliding", "gemma2-softcaps"]
"""Grouped heads; windows; soft-capping."""
FORKED = (
    *PAIRS,
    Example(tuple(range(3, 40)), (Branch((41, 42, 43)), Branch((41, 42, 44, 45))), "forks twice"),
    Example(tuple(range(3, 30)), (Branch((7,)), Branch((8, 9))), "inside another prompt"),
)


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a processor for a device with the kernel, with blocks that a small tree has several of.

    torch refuses gradients of FlexAttention on a processor beforehand, although its plain
    computation has them.
    """
    monkeypatch.setattr(block_attention, "DEVICES", ("cpu",))
    monkeypatch.setattr(block_attention, "BLOCK", 16)
    monkeypatch.setattr(block_attention, "LEAST_HEAD_SIZE", 1)
    monkeypatch.setattr(block_attention, "kernel", lambda device_type: flex.flex_attention)
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)


def batch() -> TreeBatch:
    return build(FORKED, range(len(FORKED)), Layout("tree", share_at_least=4))


def scores_and_gradients(model: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    engine = ScoreEngine(copy.deepcopy(model))
    assert engine.layout.kind == "tree"
    logps = engine.score(batch(), Role.POLICY, grad=True).logp
    (logps * torch.linspace(-1, 1, len(logps))).sum().backward()
    gradients = {
        name: parameter.grad
        for name, parameter in engine.model.named_parameters()
        if parameter.grad is not None
    }
    return logps.detach(), gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_run_by_run(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(TREE[family], torch.float32)
    expected, slopes = scores_and_gradients(model)
    request.getfixturevalue("by_kernel")
    calls = []
    attend = block_attention.attend
    monkeypatch.setattr(block_attention, "attend", lambda *args: calls.append(1) or attend(*args))
    logps, gradients = scores_and_gradients(model)
    assert calls  # otherwise both would have gone run by run
    torch.testing.assert_close(logps, expected, atol=2e-5, rtol=1e-5)
    assert gradients.keys() == slopes.keys()
    for name, slope in slopes.items():
        gap = (gradients[name] - slope).norm() / slope.norm().clamp_min(1e-6)
        assert gap < 1e-4, name


@pytest.mark.parametrize("window", [None, 5])
def test_the_mask_is_the_paths_of_the_tree(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_attention, "BLOCK", 8)
    tree = batch()
    seen = torch.zeros(tree.n_rows, tree.n_rows, dtype=torch.bool)
    for run in tree.runs:
        path = [row for start, stop in run.prefix for row in range(start, stop)]
        before = len(path)
        path += range(run.start, run.stop)
        for position in range(before, len(path)):
            first = 0 if window is None else max(0, position - window + 1)
            seen[path[position], path[first : position + 1]] = True

    mask = block_attention.block_mask(tree.runs, tree.n_rows, window, torch.device("cpu"))
    rows = torch.arange(tree.n_rows)
    by_rows = mask.mask_mod(0, 0, rows[:, None], rows[None])
    assert torch.equal(by_rows, seen)

    # a block that sees nothing is left out; of one that counts as full, every row is seen
    whole = -(-tree.n_rows // 8) * 8
    blocks = torch.zeros(whole, whole, dtype=torch.bool)
    blocks[: tree.n_rows, : tree.n_rows] = seen
    blocks = blocks.view(whole // 8, 8, -1, 8).transpose(1, 2).flatten(2)
    computed = mask.to_dense()[0, 0].bool()
    assert not (blocks.any(2) & ~computed).any() and not computed.all()
    counts, numbers = mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0]
    assert counts.sum() > 0 or window is not None
    for query, count in enumerate(counts.tolist()):
        for key in numbers[query, :count].tolist():
            assert blocks[query, key].all()


def test_a_kernel_that_fails_its_trial_is_not_taken_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled for a processor it has no gradients, which is how it fails here."""
    monkeypatch.setattr(block_attention, "DEVICES", ("cpu",))
    block_attention.kernel.cache_clear()
    query = torch.zeros(1, 2, block_attention.BLOCK, 16)
    try:
        assert not block_attention.usable(query)
    finally:
        block_attention.kernel.cache_clear()
    assert "run by run, which is slower: FlexAttention was tried" in capsys.readouterr().err


def test_the_plain_computation_passes_the_trial(by_kernel: None) -> None:
    """And one that sees too much does not."""
    device = torch.device("cpu")
    assert block_attention._difference(flex.flex_attention, device) == ""

    def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: object) -> object:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )

    assert "differed" in block_attention._difference(causal, device)


def test_a_processor_goes_run_by_run() -> None:
    assert not block_attention.usable(torch.zeros(1, 2, 4096, 64))
