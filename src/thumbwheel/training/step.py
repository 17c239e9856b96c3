"""One optimiser batch: planned under the token budget, scored by the engine, turned into a loss by the method, summed and divided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from thumbwheel.engine.refcache import RefCache, reference_logp, references
from thumbwheel.engine.score import LAST, LOGP, Role, ScoreEngine
from thumbwheel.engine.tree import Example, TreeBatch
from thumbwheel.training.algorithm import Algorithm, Apply, Metrics, Outcome, Scored, Totals
from thumbwheel.training.memory import Budget
from thumbwheel.training.order import Order

if TYPE_CHECKING:
    import torch

Known: TypeAlias = "dict[bytes, torch.Tensor]"


class Stepper:
    """The steps of a method that learns from recorded answers."""

    def __init__(self, engine: ScoreEngine, algorithm: Algorithm[Any], cache: RefCache, token_budget: int) -> None:
        self.engine, self.algorithm, self._cache, self.budget = engine, algorithm, cache, Budget(engine, token_budget)

    def groups(self) -> list[dict[str, Any]]:
        """One for all."""
        return []

    def order(self, items: Sequence[Example]) -> Order:
        """Shuffled."""
        return Order.of(len(items), self.algorithm.config)

    def train(self, items: Sequence[Example], step: int, apply: Apply) -> Outcome:
        """One update."""
        outcome = self.budget.run(items, lambda: self.run(items, grad=True))
        return replace(outcome, metrics={"grad_norm": apply(outcome.loss)} | outcome.metrics)

    def evaluate(self, items: Sequence[Example]) -> Outcome:
        """The items as one batch."""
        import torch

        with torch.no_grad():
            return self.budget.run(items, lambda: self.run(items, grad=False))

    def examples(self, items: Sequence[Example]) -> Sequence[Example]:
        """Themselves."""
        return items

    def rehearse(self, units: Sequence[Example]) -> None:
        """Forward and backward, without an update."""
        self.run(units, grad=True)
        self.engine.drop_gradients()

    def state(self) -> dict[str, Any]:
        """The token budget; all else follows from the rows."""
        return {"budget": self.budget.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The token budget."""
        self.budget.restore(state["budget"])

    def close(self) -> None:
        """The cache's connection."""
        self._cache.close()

    def run(self, examples: Sequence[Example], grad: bool) -> Outcome:
        """The loss of `examples` as one optimiser batch, whatever number of forward passes the budget makes of it.

        With `grad` the gradients are added to the adapter's.
        """

        totals = self.algorithm.totals(examples)
        losses: list[torch.Tensor] = []
        found: list[Metrics] = []
        tokens = 0
        each = self.engine.backward if grad else self.engine.each
        for block in self.algorithm.blocks(examples):
            baseline = self.algorithm.baseline(block, partial(self._sums, block))
            known = self._references(block) if self.algorithm.reference else None
            for batch, (loss, metrics) in each(block, self.budget.tokens, partial(self._lost, totals, baseline, known, grad)):
                losses.append(loss)
                found.append(metrics)
                tokens += batch.n_rows
        return Outcome(float(sum(losses)), self.algorithm.derived(means(found)), tokens)

    def _lost(
        self, totals: Totals, baseline: Any, known: Known | None, grad: bool, engine: ScoreEngine, batch: TreeBatch
    ) -> tuple[torch.Tensor, Metrics]:
        """(loss, metrics) of one micro-batch, whose references are `known`."""
        batch = batch.to(engine.device)
        reference = None if known is None else reference_logp(engine, batch, known)
        role, want = (Role.REWARD, LAST) if self.algorithm.judges else (Role.POLICY, LOGP)
        found = engine.score(batch, role, want, grad)
        out = self.algorithm.loss(Scored(batch, found.logp, reference, found.last), totals, baseline)
        return out.loss, out.metrics

    def _sums(self, beside: Sequence[Example], examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums a branch without gradient, for baselines. References are found together with those of `beside`, whose prompts they share;
        they are cached too, since dev rows and another run of the same seed pair up alike."""
        import torch

        known = self._references([*beside, *examples])
        sums = [found for _, found in self.engine.each(examples, self.budget.tokens, partial(_both, known))]
        return torch.cat([policy for policy, _ in sums]), torch.cat([reference for _, reference in sums])

    def _references(self, examples: Sequence[Example]) -> Known:
        return references(self.engine, examples, self.budget.tokens, self._cache)


def _both(known: Known, engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums a branch of policy and reference."""
    batch = batch.to(engine.device)
    return batch.branch_sum(engine.score(batch, Role.POLICY).logp), batch.branch_sum(reference_logp(engine, batch, known))


def means(found: Sequence[Metrics]) -> dict[str, float]:
    """The metrics of several micro-batches as one."""
    names = dict.fromkeys(name for metrics in found for name in metrics)
    sums = {name: [metrics[name] for metrics in found if name in metrics] for name in names}
    counts = {name: sum(count for _, count in parts) for name, parts in sums.items()}
    return {name: float(sum(total for total, _ in parts)) / counts[name] for name, parts in sums.items() if counts[name]}
