"""How many new events would teach something: what decides whether a turn of the wheel is due.

A count of events says little. A rater who presses the same thumb again says nothing new, and
neither does a thumb about a text that was judged the same way before. Bad answers alone teach
nothing, as long as too few good ones are known to compare them with. What counts is what the data
plan could use: a judgement, an edit or a comparison that was not there at the last turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop.trigger_types import NewEvents
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import (
    NewFeedback,
    RecordedText,
    answers_of,
    comparisons,
    equal_answers,
    judgements_of,
    new_feedback,
    signals,
)
from thumbwheel.rewards.ledger import traces_with_new_feedback
from thumbwheel.rewards.types import Judgement, PairComparison
from thumbwheel.training.data_plan import learners

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""Before the first turn everything is new."""
NOTHING_NEW = "says what was known before"
DUPLICATE = "the same text was judged so before"
ONE_SIDED = "bad, and too few good answers are known to compare it with"
QUOTA = "beyond the quota of its rater"


@dataclass(frozen=True)
class _Finding:
    """Something that a judgement says now and did not say before. Equal ones about equal texts are
    one finding."""

    kind: str
    content: tuple[Any, ...]
    feedback_ids: tuple[str, ...]


def new_events(
    ws: Workspace,
    agent: Agent,
    rules: DatasetConfig,
    since: datetime | None,
    per_rater: int | None = None,
) -> NewEvents:
    """Count the feedback recorded after `since` (None: ever) about answers of `agent`, and how much
    of it is informative. At most `per_rater` findings of one rater count; the unnamed ones of a
    source are one rater."""
    start = since or BEGINNING
    with ws.db.read() as connection:
        fresh = {event.id: event for event in new_feedback(connection, agent, start)}
        if not fresh:
            return NewEvents(0, 0)
        touched = traces_with_new_feedback(ws, agent, start)
        answered = answers_of(connection, agent, touched)
        equal = equal_answers(connection, agent, answered)
        others = touched.union(*equal.values())
        before = judgements_of(connection, agent, others, start, rules.label)
        after = judgements_of(connection, agent, touched, None, rules.label)
        compared = [event for event in fresh.values() if event.kind == "preference"]
        new_comparisons = list(_new_comparisons(connection, agent, start)) if compared else []
        good_answers = sum(signal.good for signal in signals(connection, agent))

    left_out: Counter[str] = Counter()
    findings: list[_Finding] = []
    for trace_id in sorted(answered):
        judgement = after.get(trace_id)
        if judgement is None or answered[trace_id].text is None:
            continue
        new = list(_findings(judgement, before.get(trace_id), answered[trace_id], rules))
        if not new:
            left_out[NOTHING_NEW] += 1
        earlier = [before[other] for other in equal[trace_id] if other in before]
        for finding in new:
            if _was_known(finding, earlier):
                left_out[DUPLICATE] += 1
            else:
                findings.append(finding)
    findings += new_comparisons

    enough_good = good_answers >= _good_answers_needed(rules)
    kinds = _counted(findings, fresh, enough_good, per_rater, left_out)
    return NewEvents(len(fresh), kinds.total(), dict(kinds), dict(left_out))


def _counted(
    findings: Collection[_Finding],
    fresh: Mapping[str, NewFeedback],
    enough_good: bool,
    per_rater: int | None,
    left_out: Counter[str],
) -> Counter[str]:
    """Return kind -> number of findings that count; the reasons of the others are counted in
    `left_out`."""
    kinds: Counter[str] = Counter()
    seen: set[tuple[Any, ...]] = set()
    by_speaker: Counter[str] = Counter()
    for finding in findings:
        speakers = {fresh[name].speaker for name in finding.feedback_ids if name in fresh}
        if (finding.kind, *finding.content) in seen:
            left_out[DUPLICATE] += 1
        elif finding.kind == "bad" and not enough_good:
            left_out[ONE_SIDED] += 1
        elif per_rater and speakers and all(by_speaker[name] >= per_rater for name in speakers):
            left_out[QUOTA] += 1
        else:
            seen.add((finding.kind, *finding.content))
            kinds[finding.kind] += 1
            by_speaker.update(speakers)
    return kinds


def _findings(
    judgement: Judgement, earlier: Judgement | None, answer: RecordedText, rules: DatasetConfig
) -> Iterator[_Finding]:
    """Yield the findings in `judgement` that were not in `earlier`, the judgement at the last
    turn."""
    text = (answer.prompt_id, answer.text)
    if judgement.good is not None and (earlier is None or earlier.good != judgement.good):
        kind = "good" if judgement.good else "bad"
        yield _Finding(kind, text, judgement.feedback_ids)
    if judgement.edit is not None:
        edited = judgement.edit.text
        if earlier is None or earlier.edit is None or earlier.edit.text != edited:
            yield _Finding("edit", (*text, edited), judgement.edit.feedback_ids)
    if judgement.value is not None and earlier is not None and earlier.value is not None:
        # a number that is new comes with its verdict; only one that has moved says more
        moved = abs(judgement.value.unit - earlier.value.unit)
        if judgement.good == earlier.good and rules.margin is not None and moved > rules.margin:
            yield _Finding("number", (*text, judgement.value.unit), judgement.value.feedback_ids)


def _was_known(finding: _Finding, earlier: Collection[Judgement]) -> bool:
    """Return whether an equal text had the same judgement at the last turn."""
    if finding.kind in ("good", "bad"):
        return any(judgement.good is (finding.kind == "good") for judgement in earlier)
    if finding.kind == "edit":
        edits = {judgement.edit.text for judgement in earlier if judgement.edit}
        return finding.content[-1] in edits
    return False


def _new_comparisons(
    connection: sa.Connection, agent: Agent, since: datetime
) -> Iterator[_Finding]:
    """Yield a finding for each comparison that is decided now, and was undecided or decided the
    other way at the last turn."""
    before = {_pair(comparison): comparison for comparison in comparisons(connection, agent, since)}
    for comparison in comparisons(connection, agent):
        earlier = before.get(_pair(comparison))
        settled = earlier is not None and earlier.decided and earlier.better == comparison.better
        if comparison.decided and not settled:
            content = (comparison.better, comparison.worse)
            yield _Finding("comparison", content, comparison.feedback_ids)


def _pair(comparison: PairComparison) -> frozenset[str]:
    return frozenset((comparison.better, comparison.worse))


def _good_answers_needed(rules: DatasetConfig) -> int:
    """Return the number of good answers that a method needs before it can also learn from bad ones:
    the least of all methods."""
    needs = []
    for name, learner in learners().items():
        if learner.enough is not None:
            each_label = learner.enough.by_settings(name, rules.plan).each_label
            if each_label:
                needs.append(each_label)
    return min(needs, default=1)
