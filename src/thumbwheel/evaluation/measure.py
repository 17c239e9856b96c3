"""Fresh answers, judged by the checkers of their cases; and which cases count in a comparison. Runs
no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.evaluation.types import Answers, HeldOutCase, JudgedAnswer, ModelAnswer
from thumbwheel.rewards import function as rewards
from thumbwheel.rewards.checker import OwnerSettings, checker, checker_of
from thumbwheel.rewards.function import JudgementStatus, Score

REASON = 200
"""Characters of a stored reason."""
UNANSWERED = JudgedAnswer(
    "", None, None, False, None, {"status": "unanswered", "reason": "this side has no answer"}
)


def judge(
    cases: Sequence[HeldOutCase], replies: Sequence[Answers], owner: OwnerSettings
) -> list[JudgedAnswer]:
    """Judge the first answer to each case by the case's checker with the settings of its owner."""
    answered = [index for index, reply in enumerate(replies) if reply]
    answers = [replies[index][0] for index in answered]
    texts = [answer.text.strip() for answer in answers]
    scores = score([cases[index] for index in answered], texts, owner)
    judged = [UNANSWERED] * len(replies)
    for index, answer, text, answer_score in zip(answered, answers, texts, scores, strict=True):
        judged[index] = _judged(answer, text, answer_score)
    return judged


def _judged(answer: ModelAnswer, text: str, score: Score) -> JudgedAnswer:
    return JudgedAnswer(
        text,
        score.value,
        score.well_formed,
        answer.finish == "stop",
        answer.tokens,
        {"status": str(score.status), **score.evidence},
    )


def score(
    cases: Sequence[HeldOutCase],
    texts: Sequence[str],
    owner: OwnerSettings,
    scorer: Callable[[rewards.RewardFunction[Any], Sequence[rewards.Case]], list[Score]] = (
        lambda function, answered: function.score(answered)
    ),
) -> list[Score]:
    """Return one score per answer, by the checker that its case names, else by the default for the
    kind of its reference. `scorer` applies a checker to answers.

    A case whose checker cannot be used (unknown, impossible settings, a setting that only the owner
    may set) gives no value.
    """
    scores: list[Score | None] = [None] * len(cases)
    for group in _checker_groups(cases, owner):
        if isinstance(group.checker, str):
            group_scores = [Score.none(JudgementStatus.NOT_APPLICABLE, group.checker)] * len(
                group.indices
            )
        else:
            answered = [
                rewards.Case(texts[index], cases[index].reference, cases[index].prompt)
                for index in group.indices
            ]
            group_scores = scorer(group.checker, answered)
        for index, case_score in zip(group.indices, group_scores, strict=True):
            scores[index] = case_score
    return [case_score for case_score in scores if case_score is not None]


def checkers(cases: Sequence[HeldOutCase], owner: OwnerSettings) -> list[str]:
    """Return the checkers of the cases with their versions, and the reasons why some cannot be
    used. The list changes when a missing checker is installed."""
    names = set()
    for group in _checker_groups(cases, owner):
        if isinstance(group.checker, str):
            names.add(group.checker)
        else:
            names.add(f"{type(group.checker).__name__} {group.checker.version}")
    return sorted(names)


@dataclass
class _CheckerGroup:
    """Cases (by index) with the same checker and settings; the reason instead of the checker where
    it cannot be used."""

    checker: rewards.RewardFunction[Any] | str
    indices: list[int]


def _checker_groups(cases: Sequence[HeldOutCase], owner: OwnerSettings) -> Iterator[_CheckerGroup]:
    indices_of: dict[tuple[str, str], list[int]] = {}
    for index, case in enumerate(cases):
        name = case.checker or checker_of(case.reference)
        settings = json.dumps(case.checker_config or {}, sort_keys=True)
        indices_of.setdefault((name, settings), []).append(index)
    for (name, settings), indices in indices_of.items():
        where = f"case {cases[indices[0]].id!r}"
        try:
            function = checker(name, json.loads(settings), None, where, owner)
        except (NotFound, ConfigError) as error:
            yield _CheckerGroup(f"the checker cannot be used: {error}", indices)
        else:
            yield _CheckerGroup(function, indices)


def blocked(judgements: Iterable[Score | JudgedAnswer]) -> Counter[str]:
    """Return reason -> judgements that failed because their judge was not available."""
    reasons = Counter[str]()
    for judgement in judgements:
        if isinstance(judgement, Score):
            status: Any = judgement.status
        else:
            status = judgement.evidence["status"]
        if status == JudgementStatus.BLOCKED:
            reasons[str(judgement.evidence.get("reason"))[:REASON]] += 1
    return reasons


@dataclass(frozen=True)
class PairedValue:
    """The values of both answers to one case; `index` is the case's."""

    index: int
    before: float
    after: float


def paired(before: Sequence[JudgedAnswer], after: Sequence[JudgedAnswer]) -> Iterator[PairedValue]:
    """Yield the values of the cases that count: at least one answer could be judged.

    An answer on which the checker failed (too deep, too long), or that has nothing to judge (no
    code), counts as wrong when the other answer was judged. Leaving the case out would reward such
    answers. A case for which neither answer has a value is left out.
    """
    for index, (first, second) in enumerate(zip(before, after, strict=True)):
        if first.value is None and second.value is None:
            continue
        value_before, value_after = _value(first), _value(second)
        if value_before is not None and value_after is not None:
            yield PairedValue(index, float(value_before), float(value_after))


def _value(judged: JudgedAnswer) -> float | None:
    could_not_judge = judged.evidence["status"] in (
        JudgementStatus.FAILED,
        JudgementStatus.NOT_APPLICABLE,
    )
    if judged.value is None and judged is not UNANSWERED and could_not_judge:
        return 0.0
    return judged.value


def unjudged(
    before: Sequence[JudgedAnswer], after: Sequence[JudgedAnswer], counted: set[int]
) -> Counter[str]:
    """Return reason -> cases that do not count: those whose index is not in `counted`."""
    reasons = Counter[str]()
    for index, (first, second) in enumerate(zip(before, after, strict=True)):
        if index not in counted:
            reasons[_why_unjudged(first, second)] += 1
    return reasons


def _why_unjudged(before: JudgedAnswer, after: JudgedAnswer) -> str:
    if before is UNANSWERED or after is UNANSWERED:
        return "a side has no answer"
    if blocked_reasons := blocked((before, after)):
        return f"the checker waits: {next(iter(blocked_reasons))}"
    reason = before.evidence.get("reason")
    if reason is not None and reason == after.evidence.get("reason"):
        return str(reason)
    return "the checker could judge neither answer"
