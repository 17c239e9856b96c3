"""Planning: what is in a batch, what is shared, and that nothing is lost, split or reordered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models.token_families import PAIRS, trees
from thumbwheel.engine.tree import Branch, Example, Layout, build, plan


@given(
    examples=trees(most=6),
    budget=st.integers(1, 120),
    kind=st.sampled_from(["tree", "padded"]),
    share=st.integers(1, 20),
)
def test_every_path_reads_its_sequence(examples, budget, kind, share):
    layout = Layout(kind, share_at_least=share)
    batches = plan(examples, budget, layout)
    assert sorted(index for batch in batches for index in batch.example_ids) == list(
        range(len(examples))
    )
    assert [batch.input_ids.tolist() for batch in plan(examples, budget, layout)] == [
        batch.input_ids.tolist() for batch in batches
    ]
    for batch in batches:
        assert batch.examples == tuple(examples[index] for index in batch.example_ids)
        for index, (branch, part) in enumerate(
            zip(batch.branches, batch.branch_slices, strict=True)
        ):
            owner = batch.examples[int(batch.example_of[index])]
            assert batch.target_ids[part].tolist() == [
                branch.ids[offset] for offset in branch.targets
            ]
            last = batch.last_index[index]
            assert (batch.input_ids[last], batch.position_ids[last]) == (
                branch.ids[-1],
                len(owner.prompt) + len(branch.ids) - 1,
            )
            assert batch.position_ids[batch.pred_index[part]].tolist() == [
                len(owner.prompt) + offset - 1 for offset in branch.targets
            ]
            whole = (*owner.prompt, *branch.ids)
            assert batch.input_ids[batch.pred_index[part]].tolist() == [
                whole[len(owner.prompt) + offset - 1] for offset in branch.targets
            ]
        assert batch.branch_count().tolist() == [len(branch.targets) for branch in batch.branches]


@given(examples=trees(most=5), share=st.integers(1, 10))
def test_runs_spell_out_every_sequence(examples, share):
    batch = build(examples, range(len(examples)), Layout("tree", share_at_least=share))
    assert [run.start for run in batch.runs] == [0, *(run.stop for run in batch.runs)][
        : len(batch.runs)
    ]
    assert batch.runs[-1].stop == batch.n_rows
    spelled = set()
    for run in batch.runs:
        rows = [
            row
            for start, stop in [*run.prefix, (run.start, run.stop)]
            for row in range(start, stop)
        ]
        assert batch.position_ids[rows].tolist() == list(range(len(rows)))
        ids = tuple(batch.input_ids[rows].tolist())
        spelled |= {ids[:end] for end in range(1, len(ids) + 1)}
    assert all(
        (*example.prompt, *branch.ids) in spelled
        for example in examples
        for branch in example.branches
    )


def test_common_openings_are_computed_once():
    system = tuple(range(100, 140))
    examples = [
        Example((*system, number), (Branch((1, 2, 3)), Branch((1, 2, 4))), "g")
        for number in range(5)
    ]
    batch = build(examples, range(5), Layout())
    assert batch.n_rows == len(system) + 5 * (1 + 3 + 1)
    assert build(examples, range(5), Layout("padded")).n_rows == 5 * 2 * (len(system) + 4)
    assert len(plan(examples, 75, Layout())) == 1  # the shared rows do not count again


def test_short_openings_of_strangers_are_not_cut():
    examples = [Example((1, 2, 3, number), (Branch((9,)),), "g") for number in (7, 8)]
    assert build(examples, [0, 1], Layout(share_at_least=4)).n_rows == 10
    assert build(examples, [0, 1], Layout(share_at_least=3)).n_rows == 7


def test_the_length_of_an_opening_is_counted_from_the_start():
    stem = (1, 2, 3, 4, 5)
    prompts = [(*stem, 10, 11, 12), stem, (*stem, 10, 11, 99)]
    examples = [
        Example(prompt, (Branch((50 + index,)),), "g") for index, prompt in enumerate(prompts)
    ]
    assert build(examples, range(3), Layout(share_at_least=6)).n_rows == 8 + 1 + 3


def test_an_example_is_never_split_and_may_exceed_the_budget():
    batches = plan(PAIRS, 1, Layout())
    assert len(batches) == len(PAIRS) and all(len(batch.branches) == 2 for batch in batches)
    with pytest.raises(ValueError, match="budget"):
        plan(PAIRS, 0, Layout())


def test_branch_sum_is_differentiable():
    batch = build(PAIRS, range(3), Layout())
    values = torch.arange(len(batch.target_ids), dtype=torch.float64, requires_grad=True)
    sums = batch.branch_sum(values)
    assert sums.tolist() == [float(values[part].sum()) for part in batch.branch_slices]
    (sums * torch.arange(6)).sum().backward()
    assert values.grad.tolist() == [float(branch) for branch in batch.branch_of]


def test_impossible_examples_are_refused():
    with pytest.raises(ValueError, match="prompt token"):
        Example((), (Branch((1,)),), "g")
    with pytest.raises(ValueError, match="at least one token"):
        Branch(())
    with pytest.raises(ValueError, match="mask of 1"):
        Branch((1, 2), (True,))
