"""Feedback resolution: what the feedback in force says about each trace and about each pair of
compared traces.

Lives here: the streams of it. Does not live here: what one statement means and the rule for raters
that contradict each other (`reading`), scores of reward functions (`functions/`), rows of datasets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations, groupby
from operator import itemgetter

import sqlalchemy as sa

from thumbwheel.db.batches import batches
from thumbwheel.models.types import Agent
from thumbwheel.rewards import feedback_queries, store
from thumbwheel.rewards.aggregate import judge, resolve, verdict_of
from thumbwheel.rewards.types import (
    DominantRater,
    FeedbackScope,
    Judgement,
    LabelConfig,
    PairComparison,
    Preference,
    Signal,
    TargetCounts,
)


def judgements(
    connection: sa.Connection,
    agent: Agent,
    as_of: datetime | None = None,
    config: LabelConfig | None = None,
    scope: FeedbackScope | None = None,
) -> Iterator[Judgement]:
    """Yield one judgement for every trace of `agent` that feedback in force at `as_of` (default:
    now) is about, streamed.

    The traces of one prompt stand together, in the order of `traces.input_id, traces.id`.
    """
    rows = feedback_queries.statements(connection, agent.id, as_of, scope=scope)
    rule = config or LabelConfig()
    for trace_id, group in groupby(rows, key=itemgetter(0)):
        yield judge(trace_id, [statement for _, statement in group], rule)


def judgements_of(
    connection: sa.Connection,
    agent: Agent,
    trace_ids: Collection[str],
    as_of: datetime | None = None,
    config: LabelConfig | None = None,
) -> dict[str, Judgement]:
    """Return the judgements of these traces; a trace without feedback in force at `as_of` has
    none."""
    rule = config or LabelConfig()
    judged = {}
    for batch in batches(sorted(trace_ids)):
        rows = feedback_queries.statements(connection, agent.id, as_of, among=batch)
        for trace_id, group in groupby(rows, key=itemgetter(0)):
            judged[trace_id] = judge(trace_id, [statement for _, statement in group], rule)
    return judged


@dataclass(frozen=True)
class NewFeedback:
    """A piece of feedback in force that was recorded after some time; its speaker is the rater,
    else the source."""

    id: str
    kind: str
    speaker: str


def new_feedback(connection: sa.Connection, agent: Agent, since: datetime) -> list[NewFeedback]:
    """Return the feedback in force that judges answers and was recorded after `since`."""
    return [NewFeedback(*row) for row in store.new_feedback(connection, agent.id, since)]


@dataclass(frozen=True)
class RecordedText:
    """A recorded answer: its prompt, and its text where it was recorded."""

    prompt_id: str
    text: str | None


def answers_of(
    connection: sa.Connection, agent: Agent, trace_ids: Collection[str]
) -> dict[str, RecordedText]:
    """Return the recorded answers of these traces."""
    answered = {}
    for batch in batches(sorted(trace_ids)):
        for trace_id, row in store.outputs(connection, agent.id, batch).items():
            answered[trace_id] = RecordedText(*row)
    return answered


MOST_PAIRED = 16
"""Traces of a ranking up to which every two of them are a pair."""
MOST_EQUAL = 1_000
"""Answers to one prompt that are looked at for an equal text."""


def equal_answers(
    connection: sa.Connection, agent: Agent, answered: Mapping[str, RecordedText]
) -> dict[str, list[str]]:
    """Return trace -> other traces that gave the same text to the same prompt."""
    equal: dict[str, list[str]] = {}
    prompt_ids = sorted({answer.prompt_id for answer in answered.values()})
    by_text: dict[tuple[str, str], list[str]] = defaultdict(list)
    for batch in batches(prompt_ids):
        mates = store.mates(connection, agent.id, batch, MOST_EQUAL, None)
        for prompt_id, others in mates.items():
            for trace_id, text in others:
                by_text[prompt_id, text].append(trace_id)
    for trace_id, answer in answered.items():
        if answer.text is not None:
            same = by_text[answer.prompt_id, answer.text]
            equal[trace_id] = [other for other in same if other != trace_id]
    return equal


def comparisons(
    connection: sa.Connection,
    agent: Agent,
    as_of: datetime | None = None,
    scope: FeedbackScope | None = None,
) -> list[PairComparison]:
    """Return the result of the preferences in force for every pair of traces that was compared, in
    the order of the trace ids."""
    return compare_pairs(feedback_queries.preferences(connection, agent.id, as_of, scope))


def compare_pairs(preferences: Iterable[Preference]) -> list[PairComparison]:
    """Return the result of preferences for every pair of traces, by the rule for raters."""
    votes = pair_votes(preferences)
    return [_compare(pair, votes[pair]) for pair in sorted(votes)]


def pair_votes(preferences: Iterable[Preference]) -> dict[tuple[str, str], list[PairVote]]:
    """Return each pair of traces, in order of id, with the votes on it."""
    votes: dict[tuple[str, str], list[PairVote]] = defaultdict(list)
    for preference in preferences:
        for pair, vote in _sides(preference):
            votes[pair].append(vote)
    return votes


def signals(
    connection: sa.Connection,
    agent: Agent,
    as_of: datetime | None = None,
    config: LabelConfig | None = None,
) -> list[Signal]:
    """Count every kind of feedback in force, the most frequent kind first."""
    rule = config or LabelConfig()
    verdicts: dict[str, Counter[bool | None]] = defaultdict(Counter)
    raters: dict[str, set[str]] = defaultdict(set)
    for statement in feedback_queries.newest_words(connection, agent.id, as_of):
        verdicts[statement.kind][verdict_of(statement, rule)] += 1
        raters[statement.kind].add(statement.rater)
    counted = [
        Signal(kind, counts.total(), counts[True], counts[False], len(raters[kind]))
        for kind, counts in verdicts.items()
    ]
    return sorted(counted, key=lambda signal: (-signal.count, signal.kind))


def dominant_rater(
    connection: sa.Connection,
    agent: Agent,
    as_of: datetime | None = None,
    scope: FeedbackScope | None = None,
) -> DominantRater | None:
    """Return the count of the named person who gave more than half of the feedback of persons, or
    None if nobody did."""
    counts = feedback_queries.by_rater(connection, agent.id, as_of, scope)
    total = sum(count for _, count in counts)
    most = max((count for rater_id, count in counts if rater_id is not None), default=0)
    return DominantRater(most, total) if most > 1 and 2 * most > total else None


def target_counts(
    connection: sa.Connection, agent: Agent, as_of: datetime | None = None
) -> TargetCounts:
    """Count the targets of the feedback in force, by kind, those that have arrived and those
    awaited."""
    arrived: dict[str, int] = {}
    awaited: dict[str, int] = {}
    for kind, has_arrived, count in feedback_queries.targets(connection, agent.id, as_of):
        (arrived if has_arrived else awaited)[kind] = count
    return TargetCounts(arrived, awaited)


def raters_of(connection: sa.Connection, feedback_ids: Collection[str]) -> dict[str, str]:
    """Return feedback -> the rater who gave it; feedback without a named rater is left out."""
    return feedback_queries.raters_of(connection, feedback_ids)


def rater_names(connection: sa.Connection, agent: Agent) -> dict[str, str]:
    """Return rater -> its name in its source."""
    return {
        rater: name
        for rater, (name, _) in feedback_queries.rater_names(connection, agent.id).items()
    }


@dataclass(frozen=True)
class PairVote:
    """One preference, as far as one pair goes: `side` is 1 where the first is better, -1 where the
    second is, 0 for a tie."""

    feedback_id: str
    rater: str
    weight: float
    at: datetime
    side: int
    automatic: bool
    lone: bool
    recorded_at: datetime | None = None
    rater_id: str | None = None
    imported: bool = False


def _sides(preference: Preference) -> Iterator[tuple[tuple[str, str], PairVote]]:
    """Yield the pairs of traces of a preference, in order of id, with its vote.

    In a long ranking each trace is compared with those 1, 2, 4, 8, ... places behind it: the number
    of all pairs grows as the square of its length, and most of them follow from the others.
    """
    ranks = {trace_id: rank for rank, tied in enumerate(preference.ranking) for trace_id in tied}
    ranked = sorted(ranks, key=lambda trace_id: (ranks[trace_id], trace_id))
    pairs = combinations(ranked, 2) if len(ranked) <= MOST_PAIRED else _spaced(ranked)
    for first, second in sorted(map(_by_id, pairs)):
        difference = ranks[second] - ranks[first]
        side = (difference > 0) - (difference < 0)
        yield (
            (first, second),
            PairVote(
                preference.feedback_id,
                preference.rater,
                preference.weight,
                preference.at,
                side,
                preference.automatic,
                preference.lone,
                preference.recorded_at,
                preference.rater_id,
                preference.imported,
            ),
        )


def _spaced(ranked: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair each entry with those a power of two places behind it."""
    distance = 1
    while distance < len(ranked):
        yield from zip(ranked, ranked[distance:], strict=False)
        distance *= 2


def _by_id(pair: tuple[str, str]) -> tuple[str, str]:
    """Return the pair in order of id."""
    first, second = pair
    return (first, second) if first < second else (second, first)


def _compare(pair: tuple[str, str], votes: Iterable[PairVote]) -> PairComparison:
    heard = [vote for vote in votes if vote.weight > 0]
    resolution = resolve(heard, lambda vote: vote.side, lambda vote: (vote.rater,))
    side = resolution.side or 0  # a tie among raters and a plurality for "tied" decide nothing
    better, worse = pair if side >= 0 else (pair[1], pair[0])
    return PairComparison(
        better,
        worse,
        decided=bool(side),
        strength=resolution.margin(-side) if side else 0.0,
        feedback_ids=tuple(sorted(vote.feedback_id for vote in resolution.voted)),
        conflict=resolution.conflict,
        automatic=bool(resolution.voted) and all(vote.automatic for vote in resolution.voted),
    )
