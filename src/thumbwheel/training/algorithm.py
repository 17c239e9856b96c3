"""The contract of a training method: rows -> token-level examples, and log-probs -> a loss. Nothing
else is a method's business.

To add a method: one file in `algorithms/` with a subclass of `Algorithm` (it learns from recorded
answers; here) or `OnlineAlgorithm` (it learns from its own fresh answers; online.py) and its
`Config`, and one line in that folder's table. What else there is to know of it are its fields: the
shape that it needs, how much feedback is enough, what holds it near the base. A method sees rows,
token ids and log-probs; the model, the optimiser, files and the database belong to others.

A loss is divided by the totals of the whole optimiser batch and summed over its micro-batches, so
that the token budget changes memory and never the gradient. Metrics travel as (sum, count) for the
same reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from thumbwheel.datasets.learner import Enough
from thumbwheel.engine.score import NOT_REQUESTED
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.memory import Budget
from thumbwheel.training.order import Order
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder, TargetText, TokenRow
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import TreeBatch

C = TypeVar("C", bound=TrainConfig)
Row = Mapping[str, Any]


class SplitRows(Protocol):
    """Rows of one split. They may come from a file: every loop then reads them anew."""

    def __iter__(self) -> Iterator[Row]: ...

    def __len__(self) -> int: ...


Metrics = dict[str, tuple["torch.Tensor", "torch.Tensor | float"]]
"""name -> (sum, count): of a whole micro-batch, or of each of its rows, [examples].

Those by which a checkpoint may be chosen come by row."""
Score = Callable[[Sequence[Example]], tuple["torch.Tensor", "torch.Tensor"]]
"""No-grad sums in nats over the branches of some examples, in the order of the forward passes:
(policy, reference), each [branches]."""


class DropRow(Exception):
    """This row cannot be trained on; the text is the reason that is counted."""


@dataclass
class Prepared:
    """The items that a method makes of rows. `rows` has the number of each item's row; `dropped`
    and `notes` count by reason.

    `tokens` are counted after truncation, each prompt once an item; `scored` are those that are
    scored, 0 where answers come later.
    """

    items: list[Any] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    tokens: int = 0
    scored: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class StepResult:
    """Loss and metrics of one step, as plain numbers; `tokens` were computed.

    `stop` is a reason to end the run that is no failure, with the best adapter from before this
    step or evaluation; `unfit` one why the adapter of this evaluation must not be the best.
    """

    loss: float
    metrics: dict[str, float]
    tokens: int
    stop: str | None = None
    unfit: str | None = None
    rows: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Of an evaluation: metric -> a value for each item, whose mean is the metric; None where an
    item has none."""


Apply = Callable[[float], float]
"""Given the loss, clips the gradients that are in place, updates the parameters and returns the
gradient's norm. Raises DivergedError before anything has changed."""


class DivergedError(Exception):
    """This update must not be made; the text is the reason."""


class MethodRunner(Protocol):
    """What the loop drives: a method on one model."""

    engine: ScoreEngine
    budget: Budget

    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of the optimiser; an empty list means one group of everything
        that trains."""

    def order(self, items: Sequence[Any]) -> Order:
        """Return the order that assigns items to steps."""

    def train(self, items: Sequence[Any], step: int, apply: Apply) -> StepResult:
        """Train one step on `items`, the `step`-th of the run counted from 0, and call `apply` once
        or several times."""

    def evaluate(self, items: Sequence[Any]) -> StepResult:
        """Return loss and metrics of the dev items, computed without gradient."""

    def examples(self, items: Sequence[Any]) -> Sequence[Example]:
        """Return examples of the sizes that a step on `items` scores; their tokens may be
        arbitrary."""

    def rehearse(self, units: Sequence[Example]) -> None:
        """Run forward and backward as a step on `units` of its budget does, and leave nothing
        behind."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs besides adapter, optimiser and schedule: plain
        values and tensors."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""

    def close(self) -> None:
        """Close processes and files."""


@dataclass(frozen=True)
class Parts:
    """What a runner is made of: engine and prompt builder over one base, the home's cache of
    reference log-probs, a reward model where one was named."""

    engine: ScoreEngine
    builder: PromptBuilder
    cache: Path
    reward_model: Path | None = None
    checkers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the owner gives the reward functions that rows name as their checkers."""
    is_trial: bool = False
    """The runner is there to be measured, and what it learns does not matter."""


class Method(ABC, Generic[C]):
    """What every method says of itself."""

    name: ClassVar[str]
    title: ClassVar[str]
    """As people write it: DPO."""
    needs: ClassVar[str]
    """The dataset shape that it learns from."""
    also_learns_from: ClassVar[tuple[str, ...]] = ()
    """Further shapes, under other settings, that the data plan may choose instead."""
    enough: ClassVar[Enough | None] = None
    """How much feedback it needs; without it the data plan never recommends the method."""
    rate: ClassVar[float]
    """Learning rate of an adapter on a small base, as if that were 2,000 wide; see
    base_defaults.py."""
    pretrained_rate: ClassVar[float | None] = None
    """The same on a pretrained base; None where it needs no other."""
    fewest_steps: ClassVar[int] = 1
    """Optimiser steps without which few rows teach next to nothing."""
    pretrained_fewest_steps: ClassVar[int | None] = None
    """The same on a pretrained base; None where it needs no more."""
    Config: ClassVar[type[TrainConfig]]
    good_roles: ClassVar[frozenset[str]] = frozenset()
    """Roles of the branches that are good answers: the anchor and the collapse detection look at
    them."""
    regularizer_setting: ClassVar[str | None] = None
    """The setting that holds the model near what it was, where there is one."""
    produces_reward_model: ClassVar[bool] = False
    """Its result is a reward model, one number an answer, instead of a version that answers."""

    def __init__(self, config: C) -> None:
        self.config = config

    @classmethod
    def shape(cls, config: C) -> str:
        """Return the dataset shape that the method learns from under `config`."""
        return cls.needs

    @classmethod
    def judged_split(cls, config: C) -> str | None:
        """Return the split whose judged answers a run gets beside its rows, to weigh its rows or
        its judge by them, or None if the method needs none."""
        return None

    @classmethod
    def resolve_config(cls, config: C, rows: SplitRows) -> C:
        """Return `config` with the settings that depend on the training rows filled in. Raises
        DataError if the rows cannot support the method."""
        return config

    @abstractmethod
    def prepare(self, rows: Iterable[Row], builder: PromptBuilder) -> Prepared:
        """Return the items that the steps take, in the order of `rows`."""


@dataclass(frozen=True)
class Scored:
    """A micro-batch with what the model says of it.

    `logp` [targets], log-probs in nats, and `reference` where the method uses one; of a method that
    judges `last` [branches] instead.
    """

    batch: TreeBatch
    logp: torch.Tensor
    reference: torch.Tensor | None = None
    last: torch.Tensor = NOT_REQUESTED

    def sums(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (policy, reference, count) summed per branch, each [branches]."""
        policy = self.batch.branch_sum(self.logp)
        if self.reference is None:
            reference = policy.detach() * 0
        else:
            reference = self.batch.branch_sum(self.reference)
        return policy, reference, self.batch.branch_count().to(policy)

    def weights(self) -> torch.Tensor:
        """Return the row weight of every branch, [branches]."""
        weights = [example.weight for example in self.batch.examples for _ in example.branches]
        like = self.logp if self.last is None else self.last
        return like.new_tensor(weights)

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Sum `values` [branches] by row; return [examples], differentiable."""
        return values.new_zeros(len(self.batch.examples)).index_add(
            0, self.batch.example_of, values
        )

    def mean(
        self, values: torch.Tensor, having: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `values` [branches] as a metric by row: (sums, counts), detached, over the
        branches that `having` selects, or over all."""
        counts = values.new_ones(values.shape) if having is None else having.to(values)
        return self.by_row(values.detach() * counts), self.by_row(counts)

    def having(self, *roles: str) -> torch.Tensor:
        """Return a mask of the branches that have one of these roles, bool [branches]."""
        import torch

        return torch.tensor(
            [branch.role in roles for branch in self.batch.branches], device=self.logp.device
        )


@dataclass(frozen=True)
class Totals:
    """Denominators of one optimiser batch: weight of its rows, and weighted scored tokens of its
    good answers."""

    weight: float
    good_tokens: float


@dataclass(frozen=True)
class LossOut:
    """This micro-batch's share of the optimiser batch's loss, whole or by row [examples], and its
    metrics as (sum, count)."""

    loss: torch.Tensor
    metrics: Metrics


class Algorithm(Method[C]):
    """A method that learns from recorded answers. `reference` says whether the loss compares with
    the base, `dev_reference` whether the metrics of the dev rows do."""

    reference: ClassVar[bool] = True
    dev_reference: ClassVar[bool] = True

    @abstractmethod
    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return the tokens of one row. Raises DropRow if the row cannot be used."""

    def prepare(self, rows: Iterable[Row], builder: PromptBuilder) -> Prepared:
        """Return the examples of `rows`, with drops and boundary mismatches counted."""
        prepared = Prepared()
        for number, row in enumerate(rows):
            try:
                example = self.example(row, builder, prepared.notes)
            except DropRow as reason:
                prepared.dropped[str(reason)] += 1
                continue
            prepared.items.append(example)
            prepared.rows.append(number)
            prepared.tokens += len(example.prompt)
            for branch in example.branches:
                prepared.tokens += len(branch.ids)
                prepared.scored += targets(branch)
        prepared.notes = +prepared.notes  # without zeros
        return prepared

    def blocks(self, examples: Sequence[Example]) -> list[Sequence[Example]]:
        """Split an optimiser batch into the parts that share one baseline."""
        return [examples]

    def baseline(self, block: Sequence[Example], score: Score) -> Any:
        """Compute the part of the loss of `block` that needs other texts; `loss` gets it as its
        argument."""
        return None

    def totals(self, examples: Sequence[Example]) -> Totals:
        """Return the denominators of an optimiser batch, never 0."""
        weight, good_tokens = 0.0, 0.0
        for example in examples:
            weight += example.weight
            for branch in example.branches:
                if branch.role in self.good_roles:
                    good_tokens += example.weight * targets(branch)
        return Totals(max(weight, 1e-12), max(good_tokens, 1e-12))

    @abstractmethod
    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """Return the share of one micro-batch in the loss, with its metrics."""

    def derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add metrics that follow from `metrics`, the means over an optimiser batch or the dev
        rows, and return them all."""
        return metrics

    def anchor(self, scored: Scored, totals: Totals) -> tuple[torch.Tensor, Metrics]:
        """Return the negative log-likelihood per token of the good answers, as this micro-batch's
        share by row, and its metric `nll/good`."""
        policy, _, _ = scored.sums()
        good = scored.having(*self.good_roles).to(policy)
        share = -scored.by_row(policy * scored.weights() * good) / totals.good_tokens
        return share, likelihood(scored, good)


def targets(branch: Branch) -> int:
    """Return the number of scored tokens of a branch."""
    return len(branch.targets)


def fitted(
    row: Row,
    answers: Sequence[TargetText],
    builder: PromptBuilder,
    max_length: int,
    notes: Counter[str],
) -> tuple[TokenRow, ...]:
    """Return the tokens of `answers` after the row's one prompt, and count dropped turns and
    boundary mismatches in `notes`. Raises DropRow with the reason if they do not fit."""
    fit = builder.fit(row["prompt"], answers, max_length, row.get("tools"))
    if fit.refused and f"exceed {max_length}" in fit.refused:
        raise DropRow(f"longer than max_length {max_length} even without its older turns")
    if fit.refused:
        raise DropRow(fit.refused)
    notes["rows that lost older turns"] += fit.dropped_turns > 0
    mismatches = sum(token_row.boundary_mismatch for token_row in fit.rows)
    notes["completions whose first token merges with the prompt"] += mismatches
    return fit.rows


def likelihood(scored: Scored, good: torch.Tensor) -> Metrics:
    """Return the metric `nll/good`: the negative log-likelihood per token of the branches that are
    `good`, by row."""
    policy, _, count = scored.sums()
    return {"nll/good": (-scored.by_row(policy.detach() * good), scored.by_row(count * good))}


def mean(values: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return `values` as a metric: (sum, count), detached."""
    return values.detach().sum(), float(values.numel())


def with_margin(metrics: dict[str, float]) -> dict[str, float]:
    """Add `rewards/margins`, the mean of the chosen minus the mean of the rejected, if `metrics`
    has both."""
    chosen, rejected = metrics.get("rewards/chosen"), metrics.get("rewards/rejected")
    if chosen is None or rejected is None:
        return metrics
    return metrics | {"rewards/margins": chosen - rejected}
