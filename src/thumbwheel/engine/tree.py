"""Token trees: what every method hands to the engine, and the padding-free batches that the engine
scores.

`Example` and `Branch` hold token ids and know no method; `Layout` says how a model can be fed;
`TreeBatch` is one forward pass; `plan` packs the examples of one optimiser batch into such passes.

A batch is a prefix tree: what sequences have in common is in it once, position ids go on along each
path, and an index says which row predicts which target, so that one row may predict several next
tokens. Text is prompt.py's, losses are training's, the model is score.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from thumbwheel.engine.trie import Node, RowRun, Trie, common_prefix_length

if TYPE_CHECKING:
    import torch

READ_AT_MOST = 0.8
"""Share of the rows that may be picked out to be read; above it, picking costs what it saves."""
SHARE_AT_LEAST = 16
"""Rows of a common prefix; a shorter one costs more to gather than to compute again."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One completion. `mask` says which of its tokens are targets (None: all); `role` is for the
    loss to read."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...] | None = None
    role: str = "sample"

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("a branch needs at least one token")
        if self.mask is not None and len(self.mask) != len(self.ids):
            raise ValueError(f"mask of {len(self.mask)} for {len(self.ids)} tokens")

    @property
    def targets(self) -> list[int]:
        """Offsets of the scored tokens."""
        offsets = range(len(self.ids))
        return list(offsets) if self.mask is None else [i for i in offsets if self.mask[i]]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its branches; `group` names what belongs together (a prompt, a session),
    `weight` is for the loss."""

    prompt: tuple[int, ...]
    branches: tuple[Branch, ...]
    group: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.prompt or not self.branches:
            raise ValueError(
                "an example needs a prompt token and a branch: the first target has to be "
                "predicted from something"
            )

    @property
    def longest(self) -> int:
        """Tokens of the prompt and the longest branch."""
        return len(self.prompt) + max(len(branch.ids) for branch in self.branches)

    def rows(self, kind: Literal["tree", "padded"]) -> int:
        """Return the tokens of the budget that the example uses, alone in a batch."""
        if kind == "padded":
            return len(self.branches) * self.longest
        return len(self.prompt) + sum(len(branch.ids) for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is fed: as a tree, or as padded rows with the `reason` for that."""

    kind: Literal["tree", "padded"] = "tree"
    reason: str = ""
    share_at_least: int = SHARE_AT_LEAST

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})" if self.reason else self.kind


@dataclass(frozen=True, slots=True, eq=False)
class TreeBatch:
    """One forward pass: T rows, M scored tokens, in the order of examples, branches, tokens.

    For the padded kind the rows are the plain sequences one after the other and `lengths` has their
    lengths.
    """

    kind: Literal["tree", "padded"]
    examples: tuple[Example, ...]
    example_ids: tuple[int, ...]  # index of each example in the sequence that was planned
    input_ids: torch.Tensor  # [T]
    position_ids: torch.Tensor  # [T]
    pred_index: torch.Tensor  # [M] row whose hidden state predicts the target
    target_ids: torch.Tensor  # [M]
    last_index: torch.Tensor  # [n_branches] row of the last token of each branch
    branch_of: torch.Tensor  # [M]
    example_of: torch.Tensor  # [n_branches]
    read_rows: torch.Tensor | None  # that predict a target or end a branch; None: nearly all
    branch_slices: tuple[slice, ...]  # of [M]
    runs: tuple[RowRun, ...] = field(default=())
    lengths: tuple[int, ...] = field(default=())

    @property
    def n_rows(self) -> int:
        """T, what the trunk computes."""
        return self.input_ids.shape[0]

    @property
    def cells(self) -> int:
        """What the trunk is given: the rows, and in the padded kind the padding."""
        return len(self.lengths) * max(self.lengths) if self.kind == "padded" else self.n_rows

    @property
    def n_branches(self) -> int:
        """Branches over all examples."""
        return len(self.branch_slices)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """All branches in order."""
        branches: list[Branch] = []
        for example in self.examples:
            branches += example.branches
        return tuple(branches)

    def branch_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum `values` [M] by branch; return [n_branches] in their dtype, differentiable."""
        return values.new_zeros(self.n_branches).index_add(0, self.branch_of, values)

    def branch_count(self) -> torch.Tensor:
        """Return the number of scored tokens of each branch, [n_branches] int64."""
        import torch

        return torch.bincount(self.branch_of, minlength=self.n_branches)

    def to(self, device: torch.device | str) -> TreeBatch:
        """Return the same batch with its tensors on `device`."""
        import torch

        moved: dict[str, Any] = {}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if isinstance(value, torch.Tensor):
                moved[attribute.name] = value.to(device)
        return replace(self, **moved)


def plan(examples: Sequence[Example], token_budget: int, layout: Layout) -> list[TreeBatch]:
    """Pack one optimiser batch into forward passes of about `token_budget` rows each (padded kind:
    cells, padding included).

    The plan is deterministic. Every example is in exactly one batch; one that is larger than the
    budget gets its own batch.
    """
    if token_budget < 1:
        raise ValueError(f"token budget {token_budget}")
    if layout.kind == "tree":
        packed = _pack_trees(examples, token_budget, layout.share_at_least)
    else:
        packed = _pack_rows(examples, token_budget)
    return [build(examples, members, layout) for members in packed]


def build(examples: Sequence[Example], members: Sequence[int], layout: Layout) -> TreeBatch:
    """Build one batch of those `examples` whose indices are `members`."""
    chosen = [examples[index] for index in members]
    if layout.kind == "tree":
        return _tree_batch(chosen, members, layout.share_at_least)
    return _padded_batch(chosen, members)


@dataclass(slots=True)
class _Bin:
    """Examples (by index) of one batch, and the rows that they take together."""

    members: list[int]
    rows: int


def _pack_trees(examples: Sequence[Example], budget: int, share_at_least: int) -> list[list[int]]:
    """Pack examples by best fit decreasing: a bin costs an example the rows that the bin does not
    share with it.

    Examples with the same prompt come one after the other.
    """
    prompts = [example.prompt for example in examples]
    branch_rows = [sum(len(branch.ids) for branch in example.branches) for example in examples]
    rows_of_prompt: Counter[tuple[int, ...]] = Counter()
    for prompt, rows in zip(prompts, branch_rows, strict=True):
        rows_of_prompt[prompt] += rows

    def largest_first(index: int) -> tuple[int, tuple[int, ...], int]:
        prompt = prompts[index]
        return -len(prompt) - rows_of_prompt[prompt], prompt, index

    bins: list[_Bin] = []
    for index in sorted(range(len(examples)), key=largest_first):
        rows_alone = branch_rows[index] + len(prompts[index])
        best, least_cost = None, rows_alone + 1
        for candidate in bins:
            if candidate.rows + branch_rows[index] > budget:
                continue  # full, even if the whole prompt is shared
            shared = max(
                common_prefix_length(prompts[index], prompts[member])
                for member in candidate.members
            )
            cost = rows_alone - shared if shared >= share_at_least else rows_alone
            if candidate.rows + cost <= budget and cost < least_cost:
                best, least_cost = candidate, cost
        if best is None:
            bins.append(_Bin([index], rows_alone))
        else:
            best.members.append(index)
            best.rows += least_cost
    return [sorted(packed.members) for packed in bins]


def _pack_rows(examples: Sequence[Example], budget: int) -> list[list[int]]:
    """Pack neighbours in length into a batch as long as branches x longest row is within the
    budget."""
    bins: list[list[int]] = []
    rows = 0
    for index in sorted(range(len(examples)), key=lambda index: (-examples[index].longest, index)):
        rows += len(examples[index].branches)
        if bins and rows * examples[bins[-1][0]].longest <= budget:
            bins[-1].append(index)
        else:
            bins.append([index])
            rows = len(examples[index].branches)
    return [sorted(members) for members in bins]


@dataclass(frozen=True, slots=True)
class _Path:
    """The row of each token of a branch and of the prompt before it."""

    rows: Sequence[int]
    prompt_length: int
    branch: Branch


def _tree_batch(
    examples: Sequence[Example], members: Sequence[int], share_at_least: int
) -> TreeBatch:
    # insert every sequence; the nodes at which branches end tell their rows after the layout
    trie = Trie()
    leaves: list[Node] = []
    for example in examples:
        prompt_end = trie.insert(trie.root, example.prompt, share_at_least)
        leaves += [trie.insert(prompt_end, branch.ids, 1) for branch in example.branches]
    ids, runs = trie.lay_out()

    paths: list[_Path] = []
    remaining = iter(leaves)
    for example in examples:
        length = len(example.prompt)
        paths += [_Path(next(remaining).rows(), length, branch) for branch in example.branches]
    return _assemble("tree", examples, members, ids, trie.positions(), paths, runs=runs)


def _padded_batch(examples: Sequence[Example], members: Sequence[int]) -> TreeBatch:
    ids: list[int] = []
    positions: list[int] = []
    paths: list[_Path] = []
    for example in examples:
        for branch in example.branches:
            sequence = (*example.prompt, *branch.ids)
            rows = range(len(ids), len(ids) + len(sequence))
            ids += sequence
            positions += range(len(sequence))
            paths.append(_Path(rows, len(example.prompt), branch))
    lengths = tuple(len(path.rows) for path in paths)
    return _assemble("padded", examples, members, ids, positions, paths, lengths=lengths)


def _assemble(
    kind: Literal["tree", "padded"],
    examples: Sequence[Example],
    members: Sequence[int],
    ids: list[int],
    positions: list[int],
    paths: Sequence[_Path],
    runs: tuple[RowRun, ...] = (),
    lengths: tuple[int, ...] = (),
) -> TreeBatch:
    import torch

    # a target is predicted by the row of the token before it
    predictors: list[int] = []
    targets: list[int] = []
    slices: list[slice] = []
    for path in paths:
        start = len(targets)
        offsets = path.branch.targets
        predictors += [path.rows[path.prompt_length + offset - 1] for offset in offsets]
        targets += [path.branch.ids[offset] for offset in offsets]
        slices.append(slice(start, len(targets)))

    example_of: list[int] = []
    for number, example in enumerate(examples):
        example_of += [number] * len(example.branches)
    target_counts = torch.tensor([part.stop - part.start for part in slices])
    last_rows = [path.rows[-1] for path in paths]
    read_rows = sorted({*predictors, *last_rows})
    reads_some = len(read_rows) <= READ_AT_MOST * len(ids)
    return TreeBatch(
        kind=kind,
        examples=tuple(examples),
        example_ids=tuple(members),
        input_ids=torch.tensor(ids),
        position_ids=torch.tensor(positions),
        pred_index=torch.tensor(predictors, dtype=torch.long),
        target_ids=torch.tensor(targets, dtype=torch.long),
        last_index=torch.tensor(last_rows),
        branch_of=torch.repeat_interleave(torch.arange(len(slices)), target_counts),
        example_of=torch.tensor(example_of),
        read_rows=torch.tensor(read_rows) if reads_some else None,
        branch_slices=tuple(slices),
        runs=runs,
        lengths=lengths,
    )
