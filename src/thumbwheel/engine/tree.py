"""Token trees: what every method hands to the engine, and the padding-free batches that the engine
scores.

Lives here: `Example` and `Branch` (token ids, method neutral), `Layout` (how a model can be fed),
`TreeBatch` (one forward pass) and `plan`, which packs the examples of one optimiser batch. Does not
live here: text (prompt.py), losses (training) and the model itself (score.py). A batch is a prefix
tree: what sequences have in common is in it once, position ids go on along each path, and an index
map says which row predicts which target, so that one row may predict several next tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from thumbwheel.engine.trie import Node, Run, Trie, common_prefix_length

if TYPE_CHECKING:
    import torch

READ_AT_MOST = 0.8  # of the rows: above that, picking them out costs what it saves
SHARE_AT_LEAST = (
    16  # rows: below that, gathering a shared opening costs more than computing it again
)


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
        return [at for at in range(len(self.ids)) if self.mask is None or self.mask[at]]


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
        """What it costs of a token budget, alone in a batch."""
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
    example_ids: tuple[int, ...]  # place of each example in the sequence that was planned
    input_ids: torch.Tensor  # [T]
    position_ids: torch.Tensor  # [T]
    pred_index: torch.Tensor  # [M] row whose hidden state predicts the target
    target_ids: torch.Tensor  # [M]
    last_index: torch.Tensor  # [n_branches] row of the last token of each branch
    branch_of: torch.Tensor  # [M]
    example_of: torch.Tensor  # [n_branches]
    branch_slices: tuple[slice, ...]  # of [M]
    runs: tuple[Run, ...] = field(default=())
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
    def read_rows(self) -> torch.Tensor | None:
        """The distinct rows that predict a target or end a branch; None where they are nearly all."""
        import torch

        found = torch.unique(torch.cat([self.pred_index, self.last_index]))
        return found if len(found) <= READ_AT_MOST * self.n_rows else None

    @property
    def n_branches(self) -> int:
        """Branches over all examples."""
        return len(self.branch_slices)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """All branches in order."""
        return tuple(branch for example in self.examples for branch in example.branches)

    def branch_sum(self, values: torch.Tensor) -> torch.Tensor:
        """[M] -> [n_branches], in the dtype of `values`; differentiable."""
        return values.new_zeros(self.n_branches).index_add(0, self.branch_of, values)

    def branch_count(self) -> torch.Tensor:
        """[n_branches] number of scored tokens, int64."""
        import torch

        return torch.bincount(self.branch_of, minlength=self.n_branches)

    def to(self, device: torch.device | str) -> TreeBatch:
        """The same batch with its tensors on `device`."""
        import torch

        moved = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if isinstance(getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **moved)


def plan(examples: Sequence[Example], token_budget: int, layout: Layout) -> list[TreeBatch]:
    """Pack one optimiser batch into forward passes of about `token_budget` rows each (padded kind:
    cells, padding included).

    Deterministic. Every example is in exactly one batch; one that is larger than the budget gets a
    batch of its own.
    """
    if token_budget < 1:
        raise ValueError(f"token budget {token_budget}")
    bins = (
        _pack_trees(examples, token_budget, layout.share_at_least)
        if layout.kind == "tree"
        else _pack_rows(examples, token_budget)
    )
    return [build(examples, members, layout) for members in bins]


def build(examples: Sequence[Example], members: Sequence[int], layout: Layout) -> TreeBatch:
    """One batch of the `members` of `examples`."""
    chosen = [examples[at] for at in members]
    return (
        _tree_batch(chosen, members, layout.share_at_least)
        if layout.kind == "tree"
        else _padded_batch(chosen, members)
    )


def _pack_trees(examples: Sequence[Example], budget: int, share: int) -> list[list[int]]:
    """Best fit decreasing, examples of one prompt one after the other; what opens like something in
    the bin only costs its own rows."""
    prompts = [example.prompt for example in examples]
    own = [sum(len(branch.ids) for branch in example.branches) for example in examples]
    whole: Counter[tuple[int, ...]] = Counter()
    for prompt, rows in zip(prompts, own, strict=True):
        whole[prompt] += rows
    bins: list[tuple[list[int], int]] = []
    for at in sorted(
        range(len(examples)),
        key=lambda at: (-len(prompts[at]) - whole[prompts[at]], prompts[at], at),
    ):
        room = [place for place, (_, used) in enumerate(bins) if used + own[at] <= budget]
        costs = {
            place: own[at] + len(prompts[at]) - _shared(examples, at, bins[place][0], share)
            for place in room
        }
        place = min(
            (place for place in room if bins[place][1] + costs[place] <= budget),
            key=lambda place: costs[place],
            default=None,
        )
        if place is None:
            bins.append(([at], own[at] + len(prompts[at])))
        else:
            members, used = bins[place]
            bins[place] = ([*members, at], used + costs[place])
    return [sorted(members) for members, _ in bins]


def _shared(examples: Sequence[Example], at: int, members: Sequence[int], share: int) -> int:
    common = max(
        common_prefix_length(examples[at].prompt, examples[other].prompt) for other in members
    )
    return common if common >= share else 0


def _pack_rows(examples: Sequence[Example], budget: int) -> list[list[int]]:
    """Neighbours in length share a batch as long as branches x longest row stays within the budget."""
    bins: list[list[int]] = []
    rows = 0
    for at in sorted(range(len(examples)), key=lambda at: (-examples[at].longest, at)):
        rows += len(examples[at].branches)
        if bins and rows * examples[bins[-1][0]].longest <= budget:
            bins[-1].append(at)
        else:
            bins.append([at])
            rows = len(examples[at].branches)
    return [sorted(members) for members in bins]


def _tree_batch(examples: Sequence[Example], members: Sequence[int], share: int) -> TreeBatch:
    trie = Trie()
    leaves: list[Node] = []
    for example in examples:
        end = trie.insert(trie.root, example.prompt, share)
        leaves += [trie.insert(end, branch.ids, 1) for branch in example.branches]
    flat, runs = trie.lay_out()
    paths = iter(leaf.rows() for leaf in leaves)
    index = [
        (next(paths), len(example.prompt), branch)
        for example in examples
        for branch in example.branches
    ]
    return _assemble("tree", examples, members, flat, trie.positions(), index, runs=runs)


def _padded_batch(examples: Sequence[Example], members: Sequence[int]) -> TreeBatch:
    flat: list[int] = []
    positions: list[int] = []
    index: list[tuple[Sequence[int], int, Branch]] = []
    for example in examples:
        for branch in example.branches:
            start, row = len(flat), (*example.prompt, *branch.ids)
            flat += row
            positions += range(len(row))
            index.append((range(start, start + len(row)), len(example.prompt), branch))
    return _assemble(
        "padded",
        examples,
        members,
        flat,
        positions,
        index,
        lengths=tuple(len(path) for path, _, _ in index),
    )


def _assemble(
    kind: Literal["tree", "padded"],
    examples: Sequence[Example],
    members: Sequence[int],
    flat: list[int],
    positions: list[int],
    index: Sequence[tuple[Sequence[int], int, Branch]],
    runs: tuple[Run, ...] = (),
    lengths: tuple[int, ...] = (),
) -> TreeBatch:
    import torch

    predictors: list[int] = []
    targets: list[int] = []
    slices: list[slice] = []
    for path, before, branch in index:
        start = len(targets)
        predictors += [path[before + at - 1] for at in branch.targets]
        targets += [branch.ids[at] for at in branch.targets]
        slices.append(slice(start, len(targets)))
    owners = [place for place, example in enumerate(examples) for _ in example.branches]
    counts = torch.tensor([part.stop - part.start for part in slices])
    return TreeBatch(
        kind,
        tuple(examples),
        tuple(members),
        torch.tensor(flat),
        torch.tensor(positions),
        torch.tensor(predictors, dtype=torch.long),
        torch.tensor(targets, dtype=torch.long),
        torch.tensor([path[-1] for path, _, _ in index]),
        torch.repeat_interleave(torch.arange(len(slices)), counts),
        torch.tensor(owners),
        tuple(slices),
        runs,
        lengths,
    )
