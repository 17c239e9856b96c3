"""One optimiser batch: planned under the token budget, scored by the engine, turned into a loss by
the method, summed and divided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from thumbwheel.core import log
from thumbwheel.engine.lora import is_zero_update
from thumbwheel.engine.refcache import RefCache, batch_reference_logp, branch_key, reference_logps
from thumbwheel.engine.score import LAST, LOGP, Role, ScoreEngine
from thumbwheel.engine.tree import Example, TreeBatch
from thumbwheel.training.algorithm import Algorithm, Apply, Metrics, Scored, StepResult, Totals
from thumbwheel.training.memory import Budget
from thumbwheel.training.order import Order
from thumbwheel.training.replay import Replay

if TYPE_CHECKING:
    import torch

ReferenceLogps: TypeAlias = "dict[bytes, torch.Tensor]"


class RecordedRunner:
    """The steps of a method that learns from recorded answers."""

    def __init__(
        self,
        engine: ScoreEngine,
        algorithm: Algorithm[Any],
        cache: RefCache,
        token_budget: int,
        replay: Replay | None = None,
    ) -> None:
        self.engine, self.algorithm, self._cache, self._replay = engine, algorithm, cache, replay
        self.budget = Budget(engine, token_budget)

    def groups(self) -> list[dict[str, Any]]:
        return []

    def order(self, items: Sequence[Example]) -> Order:
        return Order.of(len(items), self.algorithm.config)

    def train(self, items: Sequence[Example], step: int, apply: Apply) -> StepResult:
        unchanged = step == 0 and is_zero_update(self.engine.model)
        self.engine.draw_dropout(step)

        def attempt() -> StepResult:
            outcome = self.run(items, grad=True, unchanged=unchanged)
            if self._replay is None:
                return outcome
            nats = self._replay.backward(self.engine, step, self.budget.tokens)
            return replace(outcome, metrics=outcome.metrics | {"replay_kl": nats})

        outcome = self.budget.run(items, attempt)
        return replace(outcome, metrics={"grad_norm": apply(outcome.loss)} | outcome.metrics)

    def evaluate(self, items: Sequence[Example]) -> StepResult:
        """Evaluate the items as one batch."""
        import torch

        unchanged = is_zero_update(self.engine.model)
        what = "measuring the base" if unchanged else "measuring the adapter"

        def measured() -> StepResult:
            # Less memory begins the batch anew, and with it the count.
            with log.progress(what, len(items), "dev rows") as advance:
                return self.run(items, grad=False, unchanged=unchanged, advance=advance)

        with torch.no_grad():
            return self.budget.run(items, measured)

    def examples(self, items: Sequence[Example]) -> Sequence[Example]:
        return items

    def rehearse(self, units: Sequence[Example]) -> None:
        """Run forward and backward, without an update."""
        self.run(units, grad=True)
        self.engine.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return the token budget; everything else follows from the rows."""
        return {"budget": self.budget.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.budget.restore(state["budget"])

    def base_logps(self, examples: Sequence[Example]) -> list[float]:
        """Return the base's log-probability of each example's one answer, in nats."""
        references = self._references(examples)
        identity = self.engine.reference_identity
        return [
            float(
                references[branch_key(identity, example.prompt, example.branches[0])].double().sum()
            )
            for example in examples
        ]

    def close(self) -> None:
        self._cache.close()

    def run(
        self,
        examples: Sequence[Example],
        grad: bool,
        unchanged: bool = False,
        advance: log.Advance | None = None,
    ) -> StepResult:
        """Return the loss of `examples` as one optimiser batch, in as many forward passes as the
        budget requires.

        With `grad` the gradients are added to the adapter's. `unchanged`: the adapter changes
        nothing yet, so the policy's own log-probs are the reference. Log-probs of another pass
        differ by rounding, and rounding would decide which of two equal rewards is larger.
        `advance` is called after each micro-batch with its number of examples.
        """
        totals = self.algorithm.totals(examples)
        each_batch = self.engine.backward if grad else self.engine.map_batches
        compared = self.algorithm.reference if grad else self.algorithm.dev_reference
        losses: list[torch.Tensor] = []
        by_batch: list[Metrics] = []
        example_numbers: list[int] = []
        tokens = block_start = 0
        for block in self.algorithm.blocks(examples):
            baseline = self.algorithm.baseline(block, partial(self._sums, block, unchanged))
            references = self._references(block) if compared else None
            work = partial(self._loss, totals, baseline, references, grad, unchanged)
            for batch, (_, (loss, metrics)) in each_batch(block, self.budget.tokens, work):
                losses.append(loss)
                by_batch.append(metrics)
                example_numbers += [block_start + number for number in batch.example_ids]
                tokens += batch.n_rows
                if advance is not None:
                    advance(len(set(batch.example_ids)))
            block_start += len(block)
        total = float(sum(loss.sum() for loss in losses))
        metrics_of_all = self.algorithm.derived(means(by_batch))
        rows = {} if grad else self._rows(losses, by_batch, example_numbers)
        return StepResult(total, metrics_of_all, tokens, rows=rows)

    def _rows(
        self,
        losses: Sequence[torch.Tensor],
        by_batch: Sequence[Metrics],
        example_numbers: Sequence[int],
    ) -> dict[str, list[float | None]]:
        """Return metric -> the value of each example; `example_numbers` gives the example of each
        row of the micro-batches."""
        import torch

        # A row's value is its share of the metric times the count of rows, so that their mean is
        # the metric.
        count = len(example_numbers)
        by_name: dict[str, list[float]] = {}
        if all(loss.dim() for loss in losses):
            by_name["loss"] = (torch.cat(list(losses)).detach().double() * count).tolist()
        for name in by_batch[0]:
            parts = [metrics[name] for metrics in by_batch]
            if not all(sums.dim() for sums, _ in parts):
                continue
            counted = float(sum(float(torch.as_tensor(counts).sum()) for _, counts in parts))
            if counted:
                sums = torch.cat([sums for sums, _ in parts]).double()
                by_name[name] = (sums * count / counted).tolist()

        by_row = [
            self.algorithm.derived(dict(zip(by_name, values, strict=True)))
            for values in zip(*by_name.values(), strict=True)
        ]
        if not by_row:
            return {}
        order = sorted(range(count), key=lambda row: example_numbers[row])
        return {name: [by_row[row][name] for row in order] for name in by_row[0]}

    def _loss(
        self,
        totals: Totals,
        baseline: Any,
        references: ReferenceLogps | None,
        grad: bool,
        unchanged: bool,
        engine: ScoreEngine,
        batch: TreeBatch,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, Metrics]]:
        """Return (loss, (the loss by row if the method gives one, metrics)) of one micro-batch."""
        batch = batch.to(engine.device)
        if self.algorithm.produces_reward_model:
            scores = engine.score(batch, Role.REWARD, LAST, grad)
        else:
            scores = engine.score(batch, Role.POLICY, LOGP, grad)
        reference = None
        if references is not None and unchanged:
            reference = scores.logp.detach()
        elif references is not None:
            reference = batch_reference_logp(engine, batch, references)
        scored = Scored(batch, scores.logp, reference, scores.last)
        out = self.algorithm.loss(scored, totals, baseline)
        return out.loss.sum(), (out.loss.detach(), out.metrics)

    def _sums(
        self, beside: Sequence[Example], unchanged: bool, examples: Sequence[Example]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return policy and reference sums per branch without gradient, for baselines. References
        are computed together with those of `beside`, whose prompts they share, and cached, since
        dev rows and another run of the same seed form the same pairs."""
        import torch

        references = self._references([*beside, *examples])

        def sums(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, torch.Tensor]:
            batch = batch.to(engine.device)
            policy = batch.branch_sum(engine.score(batch, Role.POLICY).logp)
            return policy, batch.branch_sum(batch_reference_logp(engine, batch, references))

        policy_sums: list[torch.Tensor] = []
        reference_sums: list[torch.Tensor] = []
        for _, (policy, reference) in self.engine.map_batches(examples, self.budget.tokens, sums):
            policy_sums.append(policy)
            reference_sums.append(reference)
        policy = torch.cat(policy_sums)
        return policy, policy if unchanged else torch.cat(reference_sums)

    def _references(self, examples: Sequence[Example]) -> ReferenceLogps:
        return reference_logps(self.engine, examples, self.budget.tokens, self._cache)


def means(by_batch: Sequence[Metrics]) -> dict[str, float]:
    """Average the metrics of several micro-batches."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for metrics in by_batch:
        for name, (total, count) in metrics.items():
            if not isinstance(count, float | int):
                count = float(count.sum())
            sums[name] = sums.get(name, 0.0) + float(total.sum())
            counts[name] = counts.get(name, 0.0) + count
    return {name: total / counts[name] for name, total in sums.items() if counts[name]}
