"""How a trained version and its base rank answers that a caller rated: the `evaluate` methods of
the systems' trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace


@dataclass
class RatedAnswers:
    """Answers to one prompt, and what each is worth."""

    prompt: list[dict[str, Any]]
    texts: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, text: str, value: float) -> None:
        self.texts.append(text)
        self.values.append(value)


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer's log-likelihood, its tokens, and what it is worth."""

    total: float
    tokens: int
    worth: float

    @property
    def per_token(self) -> float:
        return self.total / max(1, self.tokens)


def compare_versions(
    ws: Workspace, agent: str, name: str, groups: Sequence[RatedAnswers]
) -> dict[str, Any]:
    """Return `eval_loss`, `eval_accuracy` and `eval_samples` of a version, and under `base` those
    of the model that it was trained over, under the same conditions.

    The loss is the mean negative log-likelihood of a token of the good answers, those worth more
    than 0. The accuracy is over pairs of answers to one prompt with different worth: the share of
    which the better one has the higher log-likelihood, a tie counting half. Without such a pair it
    is over pairs of any two answers, by log-likelihood a token; None if all are worth the same.
    Raises DataError where nothing can be measured.
    """
    from thumbwheel.evaluation.local_model import LocalModel
    from thumbwheel.evaluation.responders import base_of
    from thumbwheel.evaluation.types import AskLikelihood, EvaluationConfig
    from thumbwheel.models import versions

    version = versions.version(ws, agent, name)
    base = base_of(ws, version)
    local_model = LocalModel(ws, base, [version], EvaluationConfig())
    asks = [AskLikelihood(group.prompt, tuple(group.texts)) for group in groups]
    measured = []
    for model in (version, base):
        replies = local_model.responder(model).log_probabilities(asks)
        scored = []
        for group, sums in zip(groups, replies, strict=True):
            if sums:  # empty where the prompt does not fit the model
                answers = zip(sums, group.values, strict=True)
                scored.append([ScoredAnswer(*pair, value) for pair, value in answers])
        if not scored:
            raise DataError(
                f"{len(groups)} prompts",
                "there are none, or none fits the model",
                "Give examples as for the training",
            )
        measured.append(_measures(scored))
    of_version, of_base = measured
    return of_version | {"base": of_base}


def _measures(scored: Sequence[Sequence[ScoredAnswer]]) -> dict[str, Any]:
    answers = [answer for group in scored for answer in group]
    good = [answer for answer in answers if answer.worth > 0]
    tokens = sum(answer.tokens for answer in good)
    wins = [_win(better.total, worse.total) for group in scored for better, worse in _pairs(group)]
    if not wins:
        wins = [_win(better.per_token, worse.per_token) for better, worse in _pairs(answers)]
    return {
        "eval_loss": -sum(answer.total for answer in good) / tokens if tokens else None,
        "eval_accuracy": sum(wins) / len(wins) if wins else None,
        "eval_samples": len(answers),
    }


def _win(better: float, worse: float) -> float:
    return 0.5 if better == worse else float(better > worse)


def _pairs(answers: Sequence[ScoredAnswer]) -> Iterator[tuple[ScoredAnswer, ScoredAnswer]]:
    """Yield (better, worse) of every two answers with different worth."""
    for first, second in combinations(answers, 2):
        if first.worth > second.worth:
            yield first, second
        elif first.worth < second.worth:
            yield second, first
