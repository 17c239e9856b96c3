"""Supervised fine-tuning on good answers: mean negative log-likelihood a token over the optimiser
batch, turn-end token included.

With `weighting: reward` it learns from all answers that have a number, each as much as its own
number says (advantage-weighted regression, Peng et al. 2019, arXiv 1910.00177).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.core.errors import DataError
from thumbwheel.datasets.learner import Enough
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    LossOut,
    Row,
    Scored,
    SplitRows,
    Totals,
    fitted,
    likelihood,
    targets,
)
from thumbwheel.training.group import spread
from thumbwheel.training.types import Metric, TrainConfig

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder

GOOD, REST = "sample", "rest"
RATIO_LIMIT = 10.0
"""Most that one answer counts in `ratio/good`."""


class SftConfig(TrainConfig):
    """Settings of sft."""

    min_steps: int = Field(default=50, ge=1)
    """Fewest optimiser steps: over few rows there are more epochs than num_train_epochs, up to
    16."""
    metric_for_best_model: Metric = "ratio/good"
    """The dev metric that compares the checkpoints with each other and with the base. The dev loss
    would always speak for the base: most of the good answers are its own, on prompts where it was
    right anyway."""
    weigh_judgements: bool = True
    """Let a liked answer weigh as much as its thumb is likely to be right, by how often its rater
    seems to press the wrong one."""
    weighting: Literal["none", "reward"] = "none"
    """none learns from good answers alike; reward from every answer with a number (`scored`), by
    exp((number - centre) / temperature)."""
    weight_centre: float | None = None
    """Number that weighs 1; unset, the mean of the training rows."""
    weight_temperature: float | None = Field(default=None, gt=0)
    """How much better weighs e times as much; unset, the standard deviation of the training
    rows."""
    weight_limit: float = Field(default=20.0, ge=1)
    """Most that an answer may weigh."""


class Sft(Algorithm[SftConfig]):
    """-sum_t w log p(y_t | x, y_<t) / sum of w over the scored tokens of the optimiser batch."""

    name: ClassVar[str] = "sft"
    title: ClassVar[str] = "SFT"
    needs: ClassVar[str] = "chats"
    enough: ClassVar[Enough | None] = Enough("good answers", minimum=50, ready=200)
    """Fewer good answers overfit their wording (LIMA needed 1,000 for style; single habits show
    from about 50)."""
    reference: ClassVar[bool] = False
    good_roles: ClassVar[frozenset[str]] = frozenset({GOOD})
    rate: ClassVar[float] = 5e-4
    pretrained_rate: ClassVar[float | None] = 3e-4
    Config: ClassVar[type[TrainConfig]] = SftConfig

    @classmethod
    def shape(cls, config: SftConfig) -> str:
        """Return `scored` if rewards weigh the answers, else the shape of good answers."""
        return "scored" if config.weighting == "reward" else cls.needs

    @classmethod
    def judged_split(cls, config: SftConfig) -> str | None:
        """Return "train" if judgements weigh good answers that would otherwise all weigh the same,
        else None."""
        weighs = config.weigh_judgements and config.weighting == "none"
        return "train" if weighs else None

    @classmethod
    def resolve_config(cls, config: SftConfig, rows: SplitRows) -> SftConfig:
        """Return `config` with centre and temperature of the weights taken from the training rows.
        Raises DataError if all rows have the same number."""
        if config.weighting == "none":
            return config
        values = [float(row["value"]) for row in rows]
        temperature = config.weight_temperature or spread(values)
        if not temperature:
            raise DataError(
                f"{len(rows)} scored training rows",
                "all have the same number, so none weighs more",
                "Use weighting none",
            )
        centre = config.weight_centre
        if centre is None:
            centre = sum(values) / len(values)
        return config.model_copy(
            update={"weight_centre": centre, "weight_temperature": temperature}
        )

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return one branch, made of the token ids that the model produced if they were
        captured."""
        from thumbwheel.engine.prompt import TargetText

        captured_ids = row.get("token_ids")
        if captured_ids is not None:
            captured_ids = tuple(captured_ids)
        answer = TargetText(row["completion"], row.get("finish_reason"), captured_ids)
        (tokens,) = fitted(row, [answer], builder, self.config.max_length, notes)
        weight = 1.0 if self.config.weighting == "none" else self._weight(float(row["value"]))
        branch = Branch(tokens.completion_ids, role=GOOD if weight >= 1 else REST)
        row_weight = float(row["weight"]) * weight
        return Example(tokens.prompt_ids, (branch,), str(row["group"]), row_weight)

    def _weight(self, value: float) -> float:
        """Return exp((value - centre) / temperature), at most `weight_limit`."""
        centre, temperature = self.config.weight_centre, self.config.weight_temperature
        assert centre is not None  # noqa: S101 - resolved before any row is read
        assert temperature is not None  # noqa: S101
        return math.exp(min((value - centre) / temperature, math.log(self.config.weight_limit)))

    def totals(self, examples: Sequence[Example]) -> Totals:
        """Return the weight of the rows and the weighted tokens of all answers, never 0."""
        weight = sum(example.weight for example in examples)
        tokens = 0.0
        for example in examples:
            tokens += example.weight * sum(targets(branch) for branch in example.branches)
        return Totals(max(weight, 1e-12), max(tokens, 1e-12))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """Return this micro-batch's share of the mean loss, by row, and its metrics.

        `ratio/good` is p(answer) / p_base(answer), averaged over the good answers of the dev rows.
        Where they were sampled from the base, it estimates how many times as often as the base the
        model gives a good answer (inverse propensity weighting with clipped weights: Horvitz and
        Thompson 1952; Bottou et al. 2013, arXiv 1209.2355).
        """
        policy, reference, _ = scored.sums()
        good = scored.having(GOOD)
        metrics = likelihood(scored, good.to(policy))
        metrics["logps/chosen"] = scored.mean(policy, good)
        if scored.reference is not None:
            ratios = (policy - reference).exp().clamp(max=RATIO_LIMIT)
            metrics["ratio/good"] = scored.mean(ratios, good)
        loss = -scored.by_row(policy * scored.weights()) / totals.good_tokens
        return LossOut(loss, metrics)
