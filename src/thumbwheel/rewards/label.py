"""Feedback resolution: what the feedback in force says about each trace and about each pair of compared traces.

Lives here: reading one statement as good, bad or neither, and the rule (`types.RULE`) for raters that contradict each other. Does not
live here: scores of reward functions (`functions/`), rows of datasets. A statement that says nothing has no value; missing is
never 0 or 0.5. To read a new kind of feedback, add a reader to READERS and the kind to `store.JUDGING`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.rewards import store
from thumbwheel.rewards.types import Comparing, Comparison, Edit, Judgement, LabelConfig, Reach, Signal, Statement, Value

S = TypeVar("S", Statement, "_Vote")
SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
EDGE = 1e-9
"""4 of 1..5 stars lies at 0.75 and 0.6 of 0..1 at 0.6 exactly; a boundary must not depend on rounding."""


def judgements(
    connection: sa.Connection, agent: str, as_of: datetime | None = None, config: LabelConfig | None = None
) -> Iterator[Judgement]:
    """One judgement for every trace of `agent` that feedback in force at `as_of` (default: now) is about, streamed.

    The traces of one prompt stand together, in the order of `traces.input_id, traces.id`.
    """
    rows = store.statements(connection, ids.derived("agt", agent), as_of)
    for trace_id, group in groupby(rows, key=itemgetter(0)):
        yield judge(trace_id, [said for _, said in group], config or LabelConfig())


def comparisons(connection: sa.Connection, agent: str, as_of: datetime | None = None) -> list[Comparison]:
    """What the preferences in force say about every pair of traces that was compared, in the order of the trace ids."""
    votes: dict[tuple[str, str], list[_Vote]] = defaultdict(list)
    for one in store.preferences(connection, ids.derived("agt", agent), as_of):
        for pair, vote in _sides(one):
            votes[pair].append(vote)
    return [_compare(pair, votes[pair]) for pair in sorted(votes)]


def signals(connection: sa.Connection, agent: str, as_of: datetime | None = None, config: LabelConfig | None = None) -> list[Signal]:
    """How much there is of every kind of feedback in force, the most frequent kind first."""
    counts: dict[str, Counter[bool | None]] = defaultdict(Counter)
    raters: dict[str, set[str]] = defaultdict(set)
    for said in store.all_in_force(connection, ids.derived("agt", agent), as_of):
        counts[said.kind][reading(said, config or LabelConfig())] += 1
        raters[said.kind].add(said.rater)
    found = [Signal(kind, one.total(), one[True], one[False], len(raters[kind])) for kind, one in counts.items()]
    return sorted(found, key=lambda signal: (-signal.count, signal.kind))


def reach(connection: sa.Connection, agent: str, as_of: datetime | None = None) -> Reach:
    """What the feedback in force is about."""
    found = store.targets(connection, ids.derived("agt", agent), as_of)
    arrived, awaited = ({kind: count for kind, there, count in found if there is side} for side in (True, False))
    return Reach(arrived, awaited)


def judge(trace_id: str, said: Iterable[Statement], config: LabelConfig) -> Judgement:
    """What `said` says about one trace, by the rule. A rater of weight 0 is not heard."""
    heard = [s for s in said if s.weight > 0]
    votes = {s.feedback_id: reading(s, config) for s in heard if s.kind != "correction"}
    opinions = [s for s in heard if s.kind != "correction" and (s.kind != "label" or votes[s.feedback_id] is not None)]
    counted, torn = _newest(opinions, _voice, lambda s: votes[s.feedback_id])
    for_, against = (sorted((s for s in counted if votes[s.feedback_id] is side), key=_when) for side in (True, False))
    gain, loss = (math.fsum(s.weight for s in side) for side in (for_, against))
    good = None if gain == loss else gain > loss
    edit, edit_conflict = _edit(heard)
    return Judgement(
        trace_id,
        good,
        None if good is None else abs(gain - loss) / (gain + loss),
        None if good is None else (for_ if good else against)[0].kind,
        tuple(sorted(s.feedback_id for s in (*for_, *against))),
        torn or bool(for_ and against),
        edit,
        edit_conflict,
        _value(opinions, config),
    )


def reading(said: Statement, config: LabelConfig) -> bool | None:
    """Good (True), bad (False) or neither (None) as one statement has it."""
    return READERS[said.kind](said, config) if said.kind in READERS else None


def _thumb(said: Statement, config: LabelConfig) -> bool | None:
    return said.value if isinstance(said.value, bool) else None


def _number(said: Statement, config: LabelConfig) -> bool | None:
    place = _place(said)
    if place is None:
        return None
    part, _ = place
    if part >= config.good_from - EDGE:
        return True
    return False if part <= config.bad_to + EDGE else None


def _place(said: Statement) -> tuple[float, tuple[float, float]] | None:
    """(where the number lies on its scale from 0 to 1, the scale); None for what is no number, or none of its scale."""
    if isinstance(said.value, bool) or not isinstance(said.value, int | float):
        return None
    low, high = (said.scale["min"], said.scale["max"]) if said.scale else SCALES[said.kind]
    return ((said.value - low) / (high - low), (low, high)) if low <= said.value <= high and low != high else None


def _value(said: Iterable[Statement], config: LabelConfig) -> Value | None:
    """The weighted mean of what the raters gave as numbers, the newest of each."""
    numbers = [one for one in said if one.kind in SCALES and _place(one) is not None]
    newest, _ = _newest(numbers, _voice, lambda one: one.value)
    return Value.mean([(_as_value(one, config), one.weight) for one in newest])


def _as_value(said: Statement, config: LabelConfig) -> Value:
    place = _place(said)
    assert place is not None  # noqa: S101 - narrows the type; the caller has checked it
    part, scale = place
    turned = said.kind == "outcome" and (said.name or "").casefold() in config.bad_outcomes
    return Value(1 - part if turned else part, scale, said.kind, (said.feedback_id,))


def _label(said: Statement, config: LabelConfig) -> bool | None:
    truth = said.value if isinstance(said.value, bool) else True
    word = (said.name or "" if isinstance(said.value, bool) else str(said.value)).casefold()
    if word in config.good_labels:
        return truth
    return not truth if word in config.bad_labels else None


def _outcome(said: Statement, config: LabelConfig) -> bool | None:
    found = said.value if isinstance(said.value, bool) else _number(said, config)
    bad = (said.name or "").casefold() in config.bad_outcomes
    return found if found is None or not bad else not found


READERS: dict[str, Callable[[Statement, LabelConfig], bool | None]] = {
    "thumb": _thumb,
    "rating": _number,
    "score": _number,
    "label": _label,
    "outcome": _outcome,
}


def _voice(said: Statement) -> tuple[str, ...]:
    """Who speaks: all opinions of a rater replace each other, an outcome is a fact of its own and replaces no opinion."""
    return (said.rater, f"outcome:{said.name or ''}") if said.kind == "outcome" else (said.rater,)


def _edit(said: Iterable[Statement]) -> tuple[Edit | None, bool]:
    edits = [s for s in said if s.kind == "correction" and isinstance(s.value, str)]
    newest, torn = _newest(edits, _voice, lambda s: s.value)
    weights: dict[str, float] = defaultdict(float)
    for one in newest:
        weights[one.value] += one.weight
    leading = [text for text, weight in weights.items() if weight == max(weights.values())]
    conflict = torn or len(weights) > 1
    if len(leading) != 1:
        return None, conflict
    return Edit(leading[0], tuple(sorted(s.feedback_id for s in newest if s.value == leading[0]))), conflict


def _newest(said: Iterable[S], voice: Callable[[S], tuple[str, ...]], meaning: Callable[[S], Any]) -> tuple[list[S], bool]:
    """The newest of each voice, and whether a voice contradicts itself at the same instant: such a voice does not count.

    Among several of the same instant one that means nothing (None) gives way to one that does.
    """
    voices: dict[tuple[str, ...], list[S]] = defaultdict(list)
    for one in said:
        voices[voice(one)].append(one)
    kept, torn = [], False
    for own in voices.values():
        last = max(s.at for s in own)
        final = sorted((s for s in own if s.at == last), key=lambda s: (meaning(s) is None, s.feedback_id))
        if len({meaning(s) for s in final if meaning(s) is not None}) > 1:
            torn = True
        else:
            kept.append(final[0])
    return kept, torn


def _when(said: Statement) -> tuple[datetime, str]:
    return said.at, said.feedback_id


@dataclass(frozen=True)
class _Vote:
    """One preference, as far as one pair goes: `side` is 1 where the first is better, -1 where the second is, 0 for a tie."""

    feedback_id: str
    rater: str
    weight: float
    at: datetime
    side: int


def _sides(one: Comparing) -> Iterator[tuple[tuple[str, str], _Vote]]:
    """Each pair of traces, in order of id, with the vote."""
    places = {trace_id: rank for rank, place in enumerate(one.ranking) for trace_id in place}
    for first, second in combinations(sorted(places), 2):
        difference = places[second] - places[first]
        yield (first, second), _Vote(one.feedback_id, one.rater, one.weight, one.at, (difference > 0) - (difference < 0))


def _compare(pair: tuple[str, str], votes: Iterable[_Vote]) -> Comparison:
    newest, torn = _newest((vote for vote in votes if vote.weight > 0), lambda vote: (vote.rater,), lambda vote: vote.side)
    weights = {side: math.fsum(vote.weight for vote in newest if vote.side == side) for side in (1, 0, -1)}
    leading = [side for side, weight in weights.items() if weight == max(weights.values()) > 0]
    side = leading[0] if len(leading) == 1 else 0
    better, worse = pair if side >= 0 else (pair[1], pair[0])
    strength = (weights[side] - weights[-side]) / math.fsum(weights.values()) if side else 0.0
    conflict = torn or sum(weight > 0 for weight in weights.values()) > 1
    return Comparison(better, worse, bool(side), strength, tuple(sorted(vote.feedback_id for vote in newest)), conflict)
