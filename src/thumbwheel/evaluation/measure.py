"""Fresh answers, judged by what their cases ask; and which cases count for a comparison. Runs no
model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.evaluation.types import Answer, Answers, Case, Judged
from thumbwheel.rewards import function as rewards
from thumbwheel.rewards.checker import OwnerSettings, checker, checker_of
from thumbwheel.rewards.function import Score, Status

REASON = 200
"""Characters of a reason that are kept."""
UNANSWERED = Judged(
    "", None, None, False, None, {"status": "unanswered", "reason": "this side has no answer"}
)


def judge(cases: Sequence[Case], replies: Sequence[Answers], owner: OwnerSettings) -> list[Judged]:
    """What the checker of each case, with the settings that its owner gives it, says about the
    first answer to it."""
    answered = [place for place, one in enumerate(replies) if one]
    given = {place: replies[place][0] for place in answered}
    texts = [given[place].text.strip() for place in answered]
    scores = score([cases[place] for place in answered], texts, owner)
    judged = {
        place: _judged(given[place], text, one)
        for place, text, one in zip(answered, texts, scores, strict=True)
    }
    return [judged.get(place, UNANSWERED) for place in range(len(replies))]


def _judged(answer: Answer, text: str, one: Score) -> Judged:
    return Judged(
        text,
        one.value,
        one.well_formed,
        answer.finish == "stop",
        answer.tokens,
        {"status": str(one.status), **one.evidence},
    )


def score(cases: Sequence[Case], texts: Sequence[str], owner: OwnerSettings) -> list[Score]:
    """One score per answer, by the checker that its case names, else by the one that its kind of
    reference has.

    A case whose checker is unknown, has impossible settings, or brings one that only the owner may
    set says nothing about any answer (`checkers`).
    """
    found: dict[int, Score] = {}
    for function, places in _checkers(cases, owner):
        if isinstance(function, str):
            found.update((place, Score.none(Status.NOT_APPLICABLE, function)) for place in places)
            continue
        scores = function.score(
            [
                rewards.Case(texts[place], cases[place].reference, cases[place].prompt)
                for place in places
            ]
        )
        found.update(zip(places, scores, strict=True))
    return [found[place] for place in range(len(cases))]


def checkers(cases: Sequence[Case], owner: OwnerSettings) -> list[str]:
    """The checkers of the cases with their versions, and why some cannot be used; installing what
    has them changes it."""
    found = {
        one if isinstance(one, str) else f"{type(one).__name__} {one.version}"
        for one, _ in _checkers(cases, owner)
    }
    return sorted(found)


def _checkers(
    cases: Sequence[Case], owner: OwnerSettings
) -> Iterator[tuple[rewards.RewardFunction[Any] | str, list[int]]]:
    """The checker of some cases, or why there is none, with their places."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, case in enumerate(cases):
        settings = json.dumps(case.checker_config or {}, sort_keys=True)
        groups.setdefault((case.checker or checker_of(case.reference), settings), []).append(place)
    for (name, settings), places in groups.items():
        try:
            yield (
                checker(name, json.loads(settings), None, f"case {cases[places[0]].id!r}", owner),
                places,
            )
        except (NotFound, ConfigError) as error:
            yield f"the checker cannot be used: {error}", places


def blocked(judgements: Iterable[Score | Judged]) -> Counter[str]:
    """Why how many could not be given for want of what judges."""
    waiting = (
        one
        for one in judgements
        if (one.status if isinstance(one, Score) else one.evidence["status"]) == Status.BLOCKED
    )
    return Counter(str(one.evidence.get("reason"))[:REASON] for one in waiting)


def paired(before: Sequence[Judged], after: Sequence[Judged]) -> Iterator[tuple[int, float, float]]:
    """(place, value before, value after) of the cases that at least one side could be judged on.

    An answer that its checker failed on (too deep, too long), or that has nothing to judge (no
    code), is no success when the other side's answer was judged: leaving the case out would reward
    that. A case on which no side has a value is left out.
    """
    for place, (first, second) in enumerate(zip(before, after, strict=True)):
        values = [_value(first), _value(second)]
        if any(one.value is not None for one in (first, second)) and None not in values:
            yield place, float(values[0] or 0.0), float(values[1] or 0.0)


def _value(one: Judged) -> float | None:
    gone = (
        one.value is None
        and one.evidence["status"] in (Status.FAILED, Status.NOT_APPLICABLE)
        and one is not UNANSWERED
    )
    return 0.0 if gone else one.value


def unjudged(before: Sequence[Judged], after: Sequence[Judged], places: set[int]) -> Counter[str]:
    """Why the answers besides those at `places` do not count, and how many."""
    both = enumerate(zip(before, after, strict=True))
    return Counter(_unjudged(*two) for place, two in both if place not in places)


def _unjudged(before: Judged, after: Judged) -> str:
    if any(one is UNANSWERED for one in (before, after)):
        return "a side has no answer"
    if waiting := blocked((before, after)):
        return f"the checker waits: {next(iter(waiting))}"
    said = {one.evidence.get("reason") for one in (before, after)}
    return (
        str(said.pop())
        if len(said) == 1 and None not in said
        else "the checker could judge neither answer"
    )
