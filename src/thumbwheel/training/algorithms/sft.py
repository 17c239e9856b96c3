"""Supervised fine-tuning on good answers: mean negative log-likelihood a token over the optimiser batch, turn-end token included."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import Algorithm, LossOut, Row, Scored, Totals, fitted, mean
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder


class SftConfig(TrainConfig):
    """Settings of sft: those that all methods share."""


class Sft(Algorithm[SftConfig]):
    """-sum_t w log p(y_t | x, y_<t) / sum of w over the scored tokens of the optimiser batch."""

    name: ClassVar[str] = "sft"
    needs: ClassVar[str] = "chats"
    reference: ClassVar[bool] = False
    good: ClassVar[frozenset[str]] = frozenset({"sample"})
    rate: ClassVar[float] = 5e-4
    Config: ClassVar[type[TrainConfig]] = SftConfig

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """One branch; the ids that the model produced are taken where they were captured."""
        from thumbwheel.engine.prompt import Target

        captured = row.get("token_ids")
        answer = Target(row["completion"], row.get("finish_reason"), None if captured is None else tuple(captured))
        (made,) = fitted(row, [answer], builder, self.config.max_length, notes)
        return Example(made.prompt_ids, (Branch(made.completion_ids),), str(row["group"]), float(row["weight"]))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """This micro-batch's share of the mean."""
        share, metrics = self.anchor(scored, totals)
        policy, _, _ = scored.sums()
        return LossOut(share, metrics | {"logps/chosen": mean(policy)})
