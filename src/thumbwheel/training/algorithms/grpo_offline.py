"""The group-advantage loss over recorded answers: several to one prompt, each with what it turned
out to be worth. Nothing is sampled.

An advantage belongs to the recorded text that earned it. The clip keeps the policy near the model
that answered: its own log-probs where they were captured, else the base's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import (
    Algorithm,
    DropRow,
    LossOut,
    Metrics,
    Row,
    Scored,
    Totals,
    fitted,
    likelihood,
    mean,
    targets,
    with_margin,
)
from thumbwheel.training.group import (
    KlEstimator,
    Level,
    Normaliser,
    clip_metrics,
    clipped,
    flat,
    group_advantages,
    kl,
    ratios,
)
from thumbwheel.training.types import RewardDrivenConfig, TrainConfig

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder, TargetText, TokenRow
    from thumbwheel.engine.tree import TreeBatch

GOOD, BAD = "better", "worse"


class GrpoOfflineConfig(RewardDrivenConfig):
    """Settings of grpo_offline."""

    loss_type: Normaliser = "dapo"
    """What the loss is divided by: dapo tokens, grpo answers and each by its tokens, dr_grpo
    answers times max_length."""
    scale_rewards: Literal["group", "none"] = "group"
    """Standard deviation that advantages are divided by: that of the group, or none."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability ratio to the model that answered may fall before it is clipped."""
    epsilon_high: float | None = Field(default=None, gt=0)
    """How far it may rise; unset, as far as it may fall."""
    importance_sampling_level: Level = "token"
    """Ratios a token, or one of the whole answer."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the base in the loss, besides the clip."""
    kl_estimator: KlEstimator = "k3"
    """How that KL is estimated."""


@dataclass(frozen=True, slots=True)
class Recorded(Branch):
    """A recorded answer with its advantage in its group, and the log-probs of its tokens where they
    were captured."""

    advantage: float = 0.0
    logps: tuple[float, ...] | None = None


class GrpoOffline(Algorithm[GrpoOfflineConfig]):
    """min(r A, clip(r) A) over the tokens of recorded answers, r the ratio to the model that gave
    them."""

    name: ClassVar[str] = "grpo_offline"
    title: ClassVar[str] = "GRPO on recorded answers"
    needs: ClassVar[str] = "groups"
    good_roles: ClassVar[frozenset[str]] = frozenset({GOOD})
    rate: ClassVar[float] = 1e-4
    regularizer_setting: ClassVar[str | None] = "beta"
    Config: ClassVar[type[TrainConfig]] = GrpoOfflineConfig

    def example(self, row: Row, builder: PromptBuilder, notes: Counter[str]) -> Example:
        """Return one branch per answer. Raises DropRow for a group whose answers all have the same
        value, since it teaches nothing."""
        from thumbwheel.engine.prompt import TargetText

        if flat(row["values"]):
            raise DropRow("all answers to the prompt are worth the same")
        captured_ids = [None if ids is None else tuple(ids) for ids in row["token_ids"]]
        recorded = zip(row["completions"], row["finish_reasons"], captured_ids, strict=True)
        answers = [TargetText(text, finish, ids) for text, finish, ids in recorded]
        shared, token_rows = self._fitted(row, answers, builder, notes)
        (advantages,) = group_advantages([row["values"]], self.config.scale_rewards)

        branches: list[Branch] = []
        for tokens, ids, logps, advantage in zip(
            token_rows, captured_ids, row["logps"], advantages, strict=True
        ):
            # Captured log-probs are of use only where they are those of these very tokens.
            logps_fit = (
                logps is not None and tokens.completion_ids == ids and len(logps) == len(ids)
            )
            notes["answers whose captured log-probs fit other tokens"] += (
                logps is not None and not logps_fit
            )
            # What of the prompt is not shared belongs to the branch, and is not learned.
            prompt_rest = tokens.prompt_ids[shared:]
            learned = None
            if prompt_rest:
                learned = (False,) * len(prompt_rest) + (True,) * len(tokens.completion_ids)
            advantage = advantage or 0.0
            branch = Recorded(
                (*prompt_rest, *tokens.completion_ids),
                learned,
                GOOD if advantage > 0 else BAD,
                advantage,
                tuple(logps) if logps_fit else None,
            )
            branches.append(branch)
        prompt = token_rows[0].prompt_ids[:shared]
        return Example(prompt, tuple(branches), str(row["group"]), float(row["weight"]))

    def _fitted(
        self, row: Row, answers: Sequence[TargetText], builder: PromptBuilder, notes: Counter[str]
    ) -> tuple[int, Sequence[TokenRow]]:
        """Return the number of tokens that the prompts have in common, and the tokens of all
        answers; the runs of a task share their beginning only. Raises DropRow if they share no
        token."""
        max_length = self.config.max_length
        prompts = row.get("prompts")
        if not prompts:
            shared_rows = fitted(row, answers, builder, max_length, notes)
            return len(shared_rows[0].prompt_ids), shared_rows
        token_rows = [
            fitted({**row, "prompt": prompt}, [answer], builder, max_length, notes)[0]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        shared = 0
        for tokens in zip(*(tokens.prompt_ids for tokens in token_rows), strict=False):
            if len(set(tokens)) > 1:
                break
            shared += 1
        if not shared:
            raise DropRow("the runs of the task begin with different tokens")
        return shared, token_rows

    def totals(self, examples: Sequence[Example]) -> Totals:
        """Return the weighted numbers of answers and of their tokens, never 0."""
        answers = sum(example.weight * len(example.branches) for example in examples)
        tokens = 0.0
        for example in examples:
            tokens += example.weight * sum(targets(branch) for branch in example.branches)
        return Totals(max(answers, 1e-12), max(tokens, 1e-12))

    def loss(self, scored: Scored, totals: Totals, baseline: Any) -> LossOut:
        """Return sum_t w_t (-min(r_t A_t, clip(r_t) A_t) + beta KL_t), this micro-batch's share by
        row, and its metrics."""
        config, batch, logp, reference = self.config, scored.batch, scored.logp, scored.reference
        assert reference is not None  # noqa: S101 - narrows the type
        epsilon_low, epsilon_high = config.epsilon, config.epsilon_high or config.epsilon
        advantages = logp.new_tensor([branch.advantage for branch in _recorded(batch.branches)])
        advantage = advantages[batch.branch_of]

        ratio = ratios(logp, _old(batch, reference), batch, config.importance_sampling_level)
        losses = clipped(ratio, advantage, epsilon_low, epsilon_high)
        metrics = self._likelihood(scored)
        metrics |= clip_metrics(ratio.detach(), advantage, epsilon_low, epsilon_high)
        if config.beta:
            divergence = kl(config.kl_estimator, logp, reference, ratio)
            metrics["kl"] = mean(divergence)
            losses = losses + config.beta * divergence
        by_branch = batch.branch_sum(self._token_weights(scored, totals) * losses)
        return LossOut(scored.by_row(by_branch), metrics)

    def _token_weights(self, scored: Scored, totals: Totals) -> torch.Tensor:
        """Return the weight [M] of every token in the loss."""
        weights, lengths = scored.weights(), scored.batch.branch_count()
        if self.config.loss_type == "dapo":
            by_branch = weights / totals.good_tokens
        elif self.config.loss_type == "grpo":
            by_branch = weights / totals.weight / lengths
        else:
            by_branch = weights / totals.weight / self.config.max_length
        return by_branch[scored.batch.branch_of]

    def _likelihood(self, scored: Scored) -> Metrics:
        policy, reference, _ = scored.sums()
        good = scored.having(GOOD)
        log_ratio = policy - reference
        return likelihood(scored, good.to(policy)) | {
            "rewards/chosen": scored.mean(log_ratio, good),
            "rewards/rejected": scored.mean(log_ratio, ~good),
        }

    def derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add `rewards/margins`: how much more likely good answers have become than bad ones, in
        nats."""
        return with_margin(metrics)


def _recorded(branches: Sequence[Branch]) -> list[Recorded]:
    """Narrow the type of the branches, which are all of the class that `example` creates."""
    return [branch for branch in branches if isinstance(branch, Recorded)]


def _old(batch: TreeBatch, reference: torch.Tensor) -> torch.Tensor:
    """Return the log-probs [M] under the model that answered, or the base's for answers without
    captured ones."""
    import torch

    parts: list[torch.Tensor] = []
    for branch, tokens in zip(_recorded(batch.branches), batch.branch_slices, strict=True):
        if branch.logps is None:
            parts.append(reference[tokens])
        else:
            parts.append(reference.new_tensor(branch.logps))
    return torch.cat(parts)
