"""What statements say, without the database: one as good, bad or neither, all of them about one
answer by the rule (`types.RULE`).

Does not live here: where statements come from (`store`, `label`). A statement that says nothing has
no value; missing is never 0 or 0.5. To read a new kind of feedback, add a reader to READERS and the
kind to `store.JUDGING`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from thumbwheel.rewards.types import Edit, Judgement, LabelConfig, Statement, Value


class TimedStatement(Protocol):
    """What has a time and a name: a statement, or a vote."""

    @property
    def feedback_id(self) -> str:
        """Of the piece of feedback."""

    @property
    def at(self) -> datetime:
        """When it was said."""

    @property
    def lone(self) -> bool:
        """Whether it has neither rater nor time."""

    @property
    def automatic(self) -> bool:
        """Whether no person said it."""


T = TypeVar("T", bound=TimedStatement)
SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
ROUNDING = 1e-9
"""4 of 1..5 stars lies at 0.75 and 0.6 of 0..1 at 0.6 exactly; a boundary must not depend on
rounding."""


def judge(trace_id: str, statements: Iterable[Statement], config: LabelConfig) -> Judgement:
    """What `said` says about one trace, by the rule. A rater of weight 0 is not heard."""
    heard = [s for s in statements if s.weight > 0]
    if len(heard) == 1:
        return _alone(trace_id, heard[0], config)
    votes = {s.feedback_id: verdict_of(s, config) for s in heard if s.kind != "correction"}
    opinions = [
        s
        for s in heard
        if s.kind != "correction" and (s.kind != "label" or votes[s.feedback_id] is not None)
    ]
    preferred = people_first(opinions)
    counted, torn = (
        newest_per_speaker(preferred, speaker_of, lambda s: votes[s.feedback_id])
        if len(preferred) > 1
        else (preferred, False)
    )
    last_times = {
        speaker_of(s): s.at for s in counted
    }  # a rating and a thumb may be given at once, and both are the newest word
    for_, against = (
        sorted((s for s in counted if votes[s.feedback_id] is side), key=_when)
        for side in (True, False)
    )
    gain, loss = (math.fsum(s.weight for s in side) for side in (for_, against))
    good = None if gain == loss else gain > loss
    edit, edit_conflict = agreed_edit(heard)
    judgement = Judgement(
        trace_id,
        good,
        None if good is None else abs(gain - loss) / (gain + loss),
        None if good is None else (for_ if good else against)[0].kind,
        tuple(sorted(s.feedback_id for s in (*for_, *against))),
        torn or bool(for_ and against),
        edit,
        edit_conflict,
        mean_value([s for s in preferred if last_times.get(speaker_of(s)) == s.at], config),
        bool(for_ or against) and all(s.automatic for s in (*for_, *against)),
    )
    if judgement.value is None and len(preferred) < len(opinions):
        computed = mean_value([s for s in opinions if s.automatic], config)
        return judgement._replace(value=beside_verdict(judgement, computed))
    return judgement


def beside_verdict(judgement: Judgement, computed: Value | None) -> Value | None:
    """The number of an answer that people judged without a number, where checkers or models have
    `computed` one.

    The computed number stands where it lies on the side that people took. Where it contradicts them
    their verdict stands alone, as the end of the scale that it means, nearer to the middle the more
    they disagree. A draw among people is no number.
    """
    if computed is None or judgement.good is None or computed.sides_with(judgement.good):
        return computed if judgement.good is not None else None
    return verdict_value(judgement, computed.scale)


def verdict_value(judgement: Judgement, scale: tuple[float, float]) -> Value | None:
    """What people called good or bad as a number on `scale`; None where they called it neither."""
    if judgement.good is None:
        return None
    margin = judgement.strength or 0.0
    unit = (1 + margin if judgement.good else 1 - margin) / 2
    return Value(unit, scale, judgement.kind or "", judgement.feedback_ids, verdict=True)


P = TypeVar("P", bound="_Spoken")


class _Spoken(Protocol):
    """What a person said, or not."""

    @property
    def automatic(self) -> bool:
        """Whether no person said it."""


def people_first(statements: Iterable[P]) -> list[P]:
    """What people said; all of it where no person is among them."""
    everything = list(statements)
    people = [s for s in everything if not s.automatic]
    return people or everything


def _alone(trace_id: str, statement: Statement, config: LabelConfig) -> Judgement:
    """The rule for what one rater says and nobody else, which is most of what there is."""
    vote = None if statement.kind == "correction" else verdict_of(statement, config)
    edit, value = (
        agreed_edit((statement,))[0] if statement.kind == "correction" else None,
        mean_value((statement,), config),
    )
    if vote is None:
        return Judgement(trace_id, None, None, None, (), False, edit, False, value)
    return Judgement(
        trace_id,
        vote,
        1.0,
        statement.kind,
        (statement.feedback_id,),
        False,
        edit,
        False,
        value,
        statement.automatic,
    )


def verdict_of(statement: Statement, config: LabelConfig) -> bool | None:
    """Good (True), bad (False) or neither (None) as one statement has it."""
    return READERS[statement.kind](statement, config) if statement.kind in READERS else None


def _thumb(statement: Statement, config: LabelConfig) -> bool | None:
    return statement.value if isinstance(statement.value, bool) else None


def _number(statement: Statement, config: LabelConfig) -> bool | None:
    position = scale_position(statement)
    if position is None:
        return None
    share, _ = position
    if share >= config.good_from - ROUNDING:
        return True
    return False if share <= config.bad_to + ROUNDING else None


def scale_position(statement: Statement) -> tuple[float, tuple[float, float]] | None:
    """(where the number lies on its scale from 0 to 1, the scale); None for what is no number, or
    none of its scale."""
    if isinstance(statement.value, bool) or not isinstance(statement.value, int | float):
        return None
    low, high = (
        (statement.scale["min"], statement.scale["max"])
        if statement.scale
        else SCALES[statement.kind]
    )
    return (
        ((statement.value - low) / (high - low), (low, high))
        if low <= statement.value <= high and low != high
        else None
    )


def mean_value(
    statements: Iterable[Statement], config: LabelConfig, kinds: Container[str] = SCALES
) -> Value | None:
    """The weighted mean of what the raters gave as numbers of `kinds`, the newest of each."""
    numbers = [
        statement
        for statement in statements
        if statement.kind in kinds and scale_position(statement) is not None
    ]
    if len(numbers) < 2:
        return _as_value(numbers[0], config) if numbers else None
    latest, _ = newest_per_speaker(numbers, speaker_of, lambda statement: statement.value)
    return Value.mean([(_as_value(statement, config), statement.weight) for statement in latest])


def _as_value(statement: Statement, config: LabelConfig) -> Value:
    position = scale_position(statement)
    assert position is not None  # noqa: S101 - narrows the type; the caller has checked it
    share, scale = position
    turned = (
        statement.kind == "outcome" and (statement.name or "").casefold() in config.bad_outcomes
    )
    return Value(
        1 - share if turned else share,
        scale,
        statement.kind,
        (statement.feedback_id,),
        statement.automatic,
    )


def _label(statement: Statement, config: LabelConfig) -> bool | None:
    applies = statement.value if isinstance(statement.value, bool) else True
    word = (
        statement.name or "" if isinstance(statement.value, bool) else str(statement.value)
    ).casefold()
    if word in config.good_labels:
        return applies
    return not applies if word in config.bad_labels else None


def _outcome(statement: Statement, config: LabelConfig) -> bool | None:
    verdict = statement.value if isinstance(statement.value, bool) else _number(statement, config)
    bad = (statement.name or "").casefold() in config.bad_outcomes
    return verdict if verdict is None or not bad else not verdict


READERS: dict[str, Callable[[Statement, LabelConfig], bool | None]] = {
    "thumb": _thumb,
    "rating": _number,
    "score": _number,
    "label": _label,
    "outcome": _outcome,
}


def speaker_of(statement: Statement) -> tuple[str, ...]:
    """Who speaks: all opinions of a rater replace each other, an outcome is a fact of its own and
    replaces no opinion."""
    return (
        (statement.rater, f"outcome:{statement.name or ''}")
        if statement.kind == "outcome"
        else (statement.rater,)
    )


def agreed_edit(statements: Iterable[Statement]) -> tuple[Edit | None, bool]:
    """The correction that the raters settled on, and whether they differ."""
    edits = people_first(
        s for s in statements if s.kind == "correction" and isinstance(s.value, str)
    )
    if len(edits) < 2:  # the rule below comes to the same; a million traces have one statement each
        return (
            Edit(edits[0].value, (edits[0].feedback_id,), edits[0].automatic) if edits else None
        ), False
    latest, torn = newest_per_speaker(edits, speaker_of, lambda s: s.value)
    weights: dict[str, float] = defaultdict(float)
    for statement in latest:
        weights[statement.value] += statement.weight
    leading = [text for text, weight in weights.items() if weight == max(weights.values())]
    conflict = torn or len(weights) > 1
    if len(leading) != 1:
        return None, conflict
    chosen = [s for s in latest if s.value == leading[0]]
    return Edit(
        leading[0], tuple(sorted(s.feedback_id for s in chosen)), all(s.automatic for s in chosen)
    ), conflict


def newest_per_speaker(
    statements: Iterable[T], speaker: Callable[[T], tuple[str, ...]], meaning: Callable[[T], Any]
) -> tuple[list[T], bool]:
    """The newest of each voice, and whether a voice contradicts itself at the same instant: such a
    voice does not count.

    Among several of the same instant one that means nothing (None) gives way to one that does.
    Those with neither rater nor time all count: nobody knows that they are one person's, and their
    order in a file means nothing.
    """
    by_speaker: dict[tuple[str, ...], list[T]] = defaultdict(list)
    for statement in statements:
        by_speaker[speaker(statement)].append(statement)
    latest, torn = [], False
    for statements_of_one in by_speaker.values():
        if len(statements_of_one) == 1:
            latest.append(statements_of_one[0])
            continue
        last = max(s.at for s in statements_of_one)
        final = sorted(
            (s for s in statements_of_one if s.at == last),
            key=lambda s: (meaning(s) is None, s.feedback_id),
        )
        if all(s.lone for s in final):
            latest.extend(final)
        elif len({meaning(s) for s in final if meaning(s) is not None}) > 1:
            torn = True
        else:
            latest.append(final[0])
    return latest, torn


def _when(statement: Statement) -> tuple[datetime, str]:
    return statement.at, statement.feedback_id


def of_kinds(statements: Iterable[Statement], *kinds: str) -> tuple[Statement, ...]:
    """The statements of these kinds, without those of raters that nobody hears (weight 0)."""
    return tuple(
        statement for statement in statements if statement.kind in kinds and statement.weight > 0
    )
