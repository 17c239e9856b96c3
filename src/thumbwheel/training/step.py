"""One optimiser batch: planned under the token budget, scored by the engine, turned into a loss by the method, summed and divided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.refcache import RefCache, reference_logp
from thumbwheel.engine.score import LAST, LOGP, Role, ScoreEngine
from thumbwheel.engine.tree import Example, TreeBatch, plan
from thumbwheel.training.algorithm import Algorithm, Apply, Metrics, Outcome, Scored
from thumbwheel.training.memory import Budget
from thumbwheel.training.order import Order

if TYPE_CHECKING:
    import torch


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
        import torch

        totals = self.algorithm.totals(examples)
        losses: list[torch.Tensor] = []
        found: list[Metrics] = []
        tokens = 0
        for block in self.algorithm.blocks(examples):
            baseline = self.algorithm.baseline(block, partial(self._sums, block))
            for batch in self._plan(block):
                out = self.algorithm.loss(self._scored(batch, grad), totals, baseline)
                if grad:
                    torch.autograd.backward(out.loss)
                losses.append(out.loss.detach())
                found.append(out.metrics)
                tokens += batch.n_rows
        return Outcome(float(sum(losses)), self.algorithm.derived(means(found)), tokens)

    def _plan(self, examples: Sequence[Example]) -> list[TreeBatch]:
        return [batch.to(self.engine.device) for batch in plan(examples, self.budget.tokens, self.engine.layout)]

    def _scored(self, batch: TreeBatch, grad: bool) -> Scored:
        reference = reference_logp(self.engine, batch, self._cache) if self.algorithm.reference else None
        role, want = (Role.REWARD, LAST) if self.algorithm.judges else (Role.POLICY, LOGP)
        found = self.engine.score(batch, role, want, grad)
        return Scored(batch, found.logp, reference, found.last)

    def _sums(self, beside: Sequence[Example], examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums a branch without gradient, for baselines. References are found together with those of `beside`, whose prompts they share;
        they are cached too, since dev rows and another run of the same seed pair up alike."""
        import torch

        for batch in self._plan([*beside, *examples]):
            reference_logp(self.engine, batch, self._cache)
        policy: list[torch.Tensor] = []
        reference: list[torch.Tensor] = []
        for batch in self._plan(examples):
            policy.append(batch.branch_sum(self.engine.score(batch, Role.POLICY).logp))
            reference.append(batch.branch_sum(reference_logp(self.engine, batch, self._cache)))
        return torch.cat(policy), torch.cat(reference)


def means(found: Sequence[Metrics]) -> dict[str, float]:
    """The metrics of several micro-batches as one."""
    names = dict.fromkeys(name for metrics in found for name in metrics)
    sums = {name: [metrics[name] for metrics in found if name in metrics] for name in names}
    counts = {name: sum(count for _, count in parts) for name, parts in sums.items()}
    return {name: float(sum(total for total, _ in parts)) / counts[name] for name, parts in sums.items() if counts[name]}
