"""The rule for raters that contradict each other (`types.RULE`), and what single statements say.

The rule has three steps, and `resolve` takes them in this order:

1. `people_first`: what checkers and models said counts only where no person spoke.
2. `newest_per_speaker`: the newest vote of each rater counts, and all votes without rater and time.
3. `count`: the side with the most weight wins (a plurality). A tie decides nothing.

`judge` applies it to the statements about one trace, `label.comparisons` to the preferences about a
pair of traces. `datasets.aggregate_prompt` applies it to equal texts and to pairs of texts. There
each trace or comparison is one vote, with the strength that it was judged with, so only steps 1 and
3 are left. No step depends on the order of the votes.

A statement that says nothing has no value; missing is never 0 or 0.5. To read a new kind of
feedback, add a reader to READERS and the kind to `store.JUDGING`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from thumbwheel.rewards.types import Edit, Judgement, LabelConfig, Statement, Value, Verdict


class Vote(Protocol):
    """A statement, or what is left of some after they were resolved."""

    @property
    def weight(self) -> float: ...

    @property
    def automatic(self) -> bool:
        """Whether no person said it."""


class TimedVote(Vote, Protocol):
    """A vote of one rater at one time."""

    @property
    def feedback_id(self) -> str: ...

    @property
    def at(self) -> datetime:
        """When it was said."""

    @property
    def lone(self) -> bool:
        """Whether it has neither rater nor time."""

    @property
    def recorded_at(self) -> datetime | None:
        """When it was imported."""

    @property
    def imported(self) -> bool:
        """Whether a file or another server says it, and nobody known here."""


T = TypeVar("T")
V = TypeVar("V", bound=Vote)
TV = TypeVar("TV", bound=TimedVote)
S = TypeVar("S", bound=Hashable)
SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
ROUNDING = 1e-9
"""4 of 1..5 stars lies at 0.75 and 0.6 of 0..1 at 0.6 exactly; neither a boundary nor a tie may
depend on rounding."""


class Resolution(NamedTuple, Generic[V, S]):
    """What votes come to by the rule."""

    side: S | None
    """The side with the most weight; None for a tie, and without votes."""
    weights: Mapping[S, float]
    """Side -> weight of its votes."""
    latest: Sequence[V]
    """The votes that count, also those for no side."""
    voted: Sequence[V]
    """The votes that count for a side."""
    winners: Sequence[V]
    """The votes for `side`."""
    conflict: bool
    """Whether a rater contradicts another one, or himself."""

    def lead(self, against: S) -> float:
        """Return how much more weight the winning side has than `against`; 0 without a winner."""
        if self.side is None:
            return 0.0
        return self.weights[self.side] - self.weights.get(against, 0.0)

    def margin(self, against: S) -> float:
        """Return `lead` as a share of all weight."""
        total = math.fsum(self.weights.values())
        return self.lead(against) / total if total else 0.0


def resolve(
    votes: Iterable[TV],
    side: Callable[[TV], S | None],
    speaker: Callable[[TV], tuple[str, ...]],
) -> Resolution[TV, S]:
    """Return the side that the raters take, by the rule. A vote whose `side` is None counts for no
    side, but replaces earlier votes of its speaker."""
    latest, torn = newest_per_speaker(people_first(votes), speaker, side)
    return count(latest, side, torn=torn)


def people_first(
    votes: Iterable[T], automatic: Callable[[T], bool] = attrgetter("automatic")
) -> list[T]:
    """Return the votes of people, or all votes if no person is among them."""
    everything = list(votes)
    people = [vote for vote in everything if not automatic(vote)]
    return people or everything


def _said_at(vote: TimedVote) -> tuple[bool, datetime, datetime]:
    """Return the sort key of a speaker's votes: votes sent by an app of the home come after
    imported ones, then by time; at equal times the later import is the newer one."""
    return not vote.imported, vote.at, vote.recorded_at or vote.at


def newest_per_speaker(
    votes: Iterable[TV], speaker: Callable[[TV], tuple[str, ...]], meaning: Callable[[TV], Any]
) -> tuple[list[TV], bool]:
    """Return the newest vote of each speaker, and whether a speaker contradicts himself at the same
    instant: such a speaker does not count.

    Among several of the same instant one without a meaning (None) gives way to one that has one.
    Votes with neither rater nor time all count: they may come from different persons, and their
    order in a file means nothing.
    """
    by_speaker: dict[tuple[str, ...], list[TV]] = defaultdict(list)
    for vote in votes:
        by_speaker[speaker(vote)].append(vote)
    latest: list[TV] = []
    torn = False
    for votes_of_one in by_speaker.values():
        if len(votes_of_one) == 1:
            latest.append(votes_of_one[0])
            continue
        last = max(map(_said_at, votes_of_one))
        final = [vote for vote in votes_of_one if _said_at(vote) == last]
        meanings = {meaning(vote) for vote in final} - {None}
        if all(vote.lone for vote in final):
            latest.extend(final)
        elif len(meanings) > 1:
            torn = True
        else:
            latest.append(min(final, key=lambda vote: (meaning(vote) is None, vote.feedback_id)))
    return latest, torn


def count(
    votes: Sequence[V], side: Callable[[V], S | None], *, torn: bool = False
) -> Resolution[V, S]:
    """Return the side with the most weight. `torn`: whether a rater who contradicts himself was
    left out."""
    by_side: dict[S, list[V]] = {}
    voted: list[V] = []
    for vote in votes:
        vote_side = side(vote)
        if vote_side is not None:
            voted.append(vote)
            by_side.setdefault(vote_side, []).append(vote)
    # fsum, so that the order of votes changes no bit
    weights = {name: math.fsum([vote.weight for vote in of]) for name, of in by_side.items()}
    winner = plurality(weights)
    winners = [] if winner is None else by_side[winner]
    return Resolution(winner, weights, votes, voted, winners, torn or len(weights) > 1)


def plurality(weights: Mapping[S, float]) -> S | None:
    """Return the side with the most weight, or None for a tie at the top or without sides."""
    if len(weights) < 2:
        return next(iter(weights), None)
    most = max(weights.values())
    leading = [side for side in weights if math.isclose(weights[side], most, rel_tol=ROUNDING)]
    return leading[0] if len(leading) == 1 else None


def judge(trace_id: str, statements: Iterable[Statement], config: LabelConfig) -> Judgement:
    """Judge one trace by its `statements`, by the rule. A rater of weight 0 is not counted."""
    heard = [statement for statement in statements if statement.weight > 0]
    if len(heard) == 1:
        return _judge_single(trace_id, heard[0], config)

    # Good or bad. A label that is no verdict (a topic) is no opinion.
    verdicts = {statement.feedback_id: verdict_of(statement, config) for statement in heard}
    opinions: list[Statement] = []
    for statement in heard:
        is_verdict = verdicts[statement.feedback_id] is not None
        if statement.kind != "correction" and (statement.kind != "label" or is_verdict):
            opinions.append(statement)
    resolution = resolve(opinions, lambda s: verdicts[s.feedback_id], speaker_of)
    good = resolution.side
    kind = min(resolution.winners, key=_when).kind if resolution.winners else None

    # The number: of the newest word of each speaker. A rating and a thumb may be given at once, and
    # both are the newest word.
    preferred = people_first(opinions)
    last_times = {speaker_of(statement): _said_at(statement) for statement in resolution.latest}
    numbers = [s for s in preferred if last_times.get(speaker_of(s)) == _said_at(s)]

    edit, edit_conflict = agreed_edit(heard)
    judgement = Judgement(
        trace_id,
        good,
        strength=None if good is None else resolution.margin(not good),
        kind=kind,
        feedback_ids=tuple(sorted(statement.feedback_id for statement in resolution.voted)),
        conflict=resolution.conflict,
        edit=edit,
        edit_conflict=edit_conflict,
        value=mean_value(numbers, config),
        automatic=_all_automatic(resolution.voted),
    )
    if judgement.value is None and len(preferred) < len(opinions):
        computed = mean_value([s for s in opinions if s.automatic], config)
        values = [] if computed is None else beside_verdict([computed], judgement)
        return judgement._replace(value=values[0] if values else None)
    return judgement


def _judge_single(trace_id: str, statement: Statement, config: LabelConfig) -> Judgement:
    """Apply the rule to a single statement, the usual case of a build with a million traces."""
    value = mean_value((statement,), config)
    if statement.kind == "correction":
        edit, _ = agreed_edit((statement,))
        return Judgement(trace_id, None, None, None, (), False, edit, False, value)
    good = verdict_of(statement, config)
    if good is None:
        return Judgement(trace_id, None, None, None, (), False, None, False, value)
    return Judgement(
        trace_id,
        good,
        1.0,
        statement.kind,
        (statement.feedback_id,),
        False,
        None,
        False,
        value,
        statement.automatic,
    )


def _all_automatic(votes: Sequence[Vote]) -> bool:
    return bool(votes) and all(vote.automatic for vote in votes)


def beside_verdict(computed: Sequence[Value], verdict: Verdict | Judgement) -> list[Value]:
    """Return the numbers of an answer that people judged without a number, when checkers or models
    have `computed` some.

    The computed numbers stay where all lie on the side that people took. Where one contradicts
    people, their verdict alone is the number: the end of the scale that it means, nearer to the
    middle the more they disagree. A draw among people is no number.
    """
    good = verdict.good
    mean = Value.mean([(value, 1.0) for value in computed])
    if good is None or mean is None:
        return []
    if all(value.sides_with(good) for value in computed):
        return list(computed)
    value = verdict_value(verdict, mean.scale)
    return [] if value is None else [value]


def verdict_value(verdict: Verdict | Judgement, scale: tuple[float, float]) -> Value | None:
    """Return the verdict good or bad as a number on `scale`, or None if it is neither."""
    if verdict.good is None:
        return None
    margin = verdict.strength or 0.0
    unit = (1 + margin if verdict.good else 1 - margin) / 2
    return Value(unit, scale, verdict.kind or "", verdict.feedback_ids, verdict=True)


def verdict_of(statement: Statement, config: LabelConfig) -> bool | None:
    """Return whether one statement calls the answer good (True), bad (False) or neither (None)."""
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
    """Return (position of the number on its scale from 0 to 1, the scale), or None for a value that
    is no number or lies outside its scale."""
    number = statement.value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if statement.scale:
        low, high = statement.scale["min"], statement.scale["max"]
    else:
        low, high = SCALES[statement.kind]
    if not low <= number <= high or low == high:
        return None
    return (number - low) / (high - low), (low, high)


def mean_value(
    statements: Iterable[Statement], config: LabelConfig, kinds: Container[str] = SCALES
) -> Value | None:
    """Return the weighted mean of the numbers of `kinds` that the raters gave, the newest of each
    rater, or None if there are none."""
    rated = [s for s in statements if s.kind in kinds and scale_position(s) is not None]
    if len(rated) < 2:
        return _as_value(rated[0], config) if rated else None
    latest, _ = newest_per_speaker(rated, speaker_of, lambda statement: statement.value)
    return Value.mean([(_as_value(statement, config), statement.weight) for statement in latest])


def _as_value(statement: Statement, config: LabelConfig) -> Value:
    position = scale_position(statement)
    assert position is not None  # noqa: S101 - narrows the type; the caller has checked it
    unit, scale = position
    if statement.kind == "outcome" and (statement.name or "").casefold() in config.bad_outcomes:
        unit = 1 - unit
    return Value(unit, scale, statement.kind, (statement.feedback_id,), statement.automatic)


def _label(statement: Statement, config: LabelConfig) -> bool | None:
    if isinstance(statement.value, bool):
        word, applies = statement.name or "", statement.value
    else:
        word, applies = str(statement.value), True
    if word.casefold() in config.good_labels:
        return applies
    return not applies if word.casefold() in config.bad_labels else None


def _outcome(statement: Statement, config: LabelConfig) -> bool | None:
    verdict = _number(statement, config)
    if isinstance(statement.value, bool):
        verdict = statement.value
    if verdict is None or (statement.name or "").casefold() not in config.bad_outcomes:
        return verdict
    return not verdict


READERS: dict[str, Callable[[Statement, LabelConfig], bool | None]] = {
    "thumb": _thumb,
    "rating": _number,
    "score": _number,
    "label": _label,
    "outcome": _outcome,
}


def speaker_of(statement: Statement) -> tuple[str, ...]:
    """Return the key of the speaker: a newer opinion of a rater replaces his older ones. An outcome
    is a separate fact and replaces no opinion."""
    if statement.kind == "outcome":
        return statement.rater, f"outcome:{statement.name or ''}"
    return (statement.rater,)


def agreed_edit(statements: Iterable[Statement]) -> tuple[Edit | None, bool]:
    """Return the correction that the raters agree on by the rule, or None, and whether they
    differ."""
    edits = [s for s in statements if s.kind == "correction" and isinstance(s.value, str)]
    if not edits:  # a million traces have none
        return None, False
    resolution = resolve(edits, lambda edit: str(edit.value), speaker_of)
    if resolution.side is None:
        return None, resolution.conflict
    feedback_ids = tuple(sorted(edit.feedback_id for edit in resolution.winners))
    edit = Edit(resolution.side, feedback_ids, _all_automatic(resolution.winners))
    return edit, resolution.conflict


def _when(statement: Statement) -> tuple[datetime, str]:
    return statement.at, statement.feedback_id


def of_kinds(statements: Iterable[Statement], *kinds: str) -> tuple[Statement, ...]:
    """Return the statements of these kinds, without those of raters of weight 0."""
    return tuple(
        statement for statement in statements if statement.kind in kinds and statement.weight > 0
    )
