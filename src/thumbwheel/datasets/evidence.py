"""Reads evidence prompt by prompt: traces, resolved feedback and cases, ready for the shapes.

This module reads in the order of the prompt ids and decides which prompts are used. SQL is in
`store`, aggregation over one prompt in `aggregate_prompt`, the split of a prompt in
`split_assignment`, rows in `shapes/`. It streams: one batch of prompts is in memory at a time,
besides the split of every prompt, the cases and the comparisons (ids only).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.datasets import store
from thumbwheel.datasets.aggregate_prompt import SEVERAL, PromptAggregator
from thumbwheel.datasets.episode import LAST_ONLY, history
from thumbwheel.datasets.ledger_rewards import TraceReward, with_reward
from thumbwheel.datasets.split import group_key, share_of
from thumbwheel.datasets.split_assignment import SplitAssignment, align_by_key, assign_splits
from thumbwheel.datasets.store import TraceRow
from thumbwheel.datasets.types import (
    EXCLUDED,
    DatasetConfig,
    Evidence,
    JudgedText,
    JudgingCase,
    Message,
    Tally,
)
from thumbwheel.db.batches import batches
from thumbwheel.db.message_chains import conversations
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import comparisons, judgements
from thumbwheel.rewards.types import FeedbackScope, Judgement, PairComparison

BATCH = 500
"""Prompts whose messages are read at once."""
WITHOUT_FEEDBACK = "no person said anything about it (require_feedback)"
KEPT_OUT = "its owner keeps it out of training and validation data"


class _JudgedTrace(NamedTuple):
    trace: TraceRow
    judgement: Judgement | None


JudgedTraces = list[_JudgedTrace]


@dataclass(frozen=True)
class _AskedPrompt:
    """A prompt with its judged traces and its cases; `prompt` is [] if it cannot be read."""

    id: str
    prompt: list[Message]
    tools: list[dict[str, Any]] | None
    judged: JudgedTraces
    cases: tuple[JudgingCase, ...]


@dataclass(frozen=True)
class _AlikeRuns:
    """Runs of one task that showed the model the same messages before its last answer, and the
    split of those messages."""

    shown: list[Message]
    judged: JudgedTraces
    split: str


def read_evidence(
    connection: sa.Connection,
    agent: Agent,
    config: DatasetConfig,
    tally: Tally,
    as_of: datetime | None = None,
    *,
    unjudged: bool = False,
    assignment: SplitAssignment | None = None,
    scope: FeedbackScope | None = None,
    values: Mapping[str, TraceReward] | None = None,
) -> Iterator[Evidence]:
    """Yield the evidence of every prompt of `agent` that feedback in force at `as_of` is about.
    Dropped and noted items are counted in `tally`.

    With `unjudged` also yield the prompts of its cases and of traces without feedback. `scope`
    narrows both; a loaded `assignment` of the same scope may be passed in. `values`, trace ->
    reward, say how good the answers are, in place of people's judgements.
    """
    agent_id = agent.id
    assignment = assignment or assign_splits(connection, agent_id, config, scope, unjudged=unjudged)

    comparisons_of = _comparisons(connection, agent, as_of, scope, tally)
    cases = _open_cases(connection, agent_id, scope)
    judged_by_people: set[str] | None = None
    if config.require_feedback:
        judged_by_people = store.person_judged(connection, agent_id)

    seen_prompts = set()
    for prompt, all_judged in _prompts(connection, agent, config, as_of, scope, values):
        first = all_judged[0].trace
        prompt_id = first.prompt_id
        seen_prompts.add(prompt_id)
        prompt_cases = cases.pop(prompt_id, ())
        permitted = _without_excluded(all_judged, tally)
        judged = _only_by_people(permitted, judged_by_people, tally)
        if judged or not config.require_feedback:
            asked = _AskedPrompt(prompt_id, prompt, first.tools, judged, prompt_cases)
            yield from _judged(connection, assignment, asked, comparisons_of, tally)
    if unjudged and not config.require_feedback:
        traces = store.unjudged_traces(connection, agent_id, scope)
        unseen = (trace for trace in traces if trace.prompt_id not in seen_prompts)
        yield from _unjudged(connection, assignment, unseen, cases, tally)


def _comparisons(
    connection: sa.Connection,
    agent: Agent,
    as_of: datetime | None,
    scope: FeedbackScope | None,
    tally: Tally,
) -> dict[str, list[PairComparison]]:
    """Return all comparisons by the id of their better trace. They span prompts, so each part of
    the prompts reads all of them; only the first part counts the disagreements."""
    all_prompts = replace(scope, first=None, last=None) if scope else None
    is_first_part = not (scope and scope.first)
    by_trace: dict[str, list[PairComparison]] = defaultdict(list)
    for comparison in comparisons(connection, agent, as_of, all_prompts):
        disagree = comparison.conflict and is_first_part
        tally.notes["comparisons with disagreeing raters"] += disagree
        by_trace[comparison.better].append(comparison)
    return by_trace


def _open_cases(
    connection: sa.Connection, agent_id: str, scope: FeedbackScope | None
) -> dict[str, tuple[JudgingCase, ...]]:
    """Return the cases of each prompt that are not gold."""
    cases = store.open_cases(connection, agent_id, scope)
    by_prompt = groupby(cases, key=attrgetter("prompt_id"))
    return {prompt_id: tuple(group) for prompt_id, group in by_prompt}


def _judged(
    connection: sa.Connection,
    assignment: SplitAssignment,
    asked: _AskedPrompt,
    comparisons_of: dict[str, list[PairComparison]],
    tally: Tally,
) -> Iterator[Evidence]:
    """Yield the evidence of a judged prompt, and of the runs of several steps that it began."""
    config = assignment.config

    # The split of the prompt itself. A prompt that only began runs of several steps needs none.
    single_calls = [row for row in asked.judged if row.trace.calls <= 1]
    several_calls = [row for row in asked.judged if row.trace.calls > 1]
    split = None
    if single_calls or asked.cases or not asked.prompt:
        count = len(single_calls) or len(asked.cases)
        split = assignment.usable_split(asked.id, count, tally)
    if not asked.prompt or not _sampled(asked.id, config, tally):
        return

    # The answers to it, and those of runs, which answer the whole history that they were shown.
    # A comparison is added where its answers are.
    aggregator = PromptAggregator(asked.prompt, split or "train", config, tally)
    if split:
        for trace, judgement in single_calls:
            aggregator.add(trace, judgement)
    runs: list[_AlikeRuns] = []
    if several_calls:
        runs = list(_runs(connection, asked.prompt, several_calls, tally, assignment))
    run_aggregators = [_aggregate_run(run, config, tally) for run in runs]
    if comparisons_of:
        left_out = set() if split else {trace.id for trace, _ in single_calls}
        for trace, comparison in _taken(asked.judged, comparisons_of, left_out, tally):
            with_trace = (part for part in run_aggregators if part.has_trace(trace.id))
            next(with_trace, aggregator).compare(comparison)

    yield aggregator.evidence(asked.id, asked.tools, asked.cases if split else ())
    for run_aggregator, run in zip(run_aggregators, runs, strict=True):
        first_run = run.judged[0].trace
        identity = [ids.fingerprint(run.shown)]
        if first_run.task:  # the same history is another row if it served another task
            identity.append(first_run.task)
        evidence = run_aggregator.evidence(ids.derived("run", *identity), first_run.tools, ())
        yield evidence._replace(task=first_run.task or asked.id)


def _taken(
    judged: JudgedTraces,
    comparisons_of: dict[str, list[PairComparison]],
    left_out: Collection[str],
    tally: Tally,
) -> Iterator[tuple[TraceRow, PairComparison]]:
    """Take the comparisons of the judged traces out of `comparisons_of`, each with its trace; those
    of two traces that were left out are counted alone."""
    for trace, _ in judged:
        for comparison in comparisons_of.pop(trace.id, ()):
            if comparison.better in left_out and comparison.worse in left_out:
                tally.drops["the compared answers were left out with their prompt"] += 1
            else:
                yield trace, comparison


def _only_by_people(
    judged: JudgedTraces, judged_by_people: Collection[str] | None, tally: Tally
) -> JudgedTraces:
    """Return the traces with feedback of a person; all if `judged_by_people` is None."""
    if judged_by_people is None:
        return judged
    by_people = [row for row in judged if row.trace.id in judged_by_people]
    if len(by_people) < len(judged):
        tally.drops[WITHOUT_FEEDBACK] += len(judged) - len(by_people)
    return by_people


def _without_excluded(judged: JudgedTraces, tally: Tally) -> JudgedTraces:
    """Leave out the traces that their owner keeps out of training and validation."""
    permitted = [row for row in judged if row.trace.mark != EXCLUDED]
    if len(permitted) < len(judged):
        tally.drops[KEPT_OUT] += len(judged) - len(permitted)
    return permitted


def _runs(
    connection: sa.Connection,
    prompt: list[Message],
    judged: JudgedTraces,
    tally: Tally,
    assignment: SplitAssignment,
) -> Iterator[_AlikeRuns]:
    """Yield runs of several steps, grouped by the messages shown to their last answer and by task;
    runs that cannot be used are counted."""
    steps = store.run_steps(connection, [trace.id for trace, _ in judged])
    groups: dict[tuple[str, str | None], tuple[list[Message], JudgedTraces]] = {}
    for row in judged:
        trace = row.trace
        shown = history(prompt, steps.get(trace.id, []), trace.output)
        if isinstance(shown, str):
            tally.drops[shown] += 1
            continue
        tally.notes[LAST_ONLY] += 1
        key = (ids.fingerprint(shown), trace.task)
        _, group = groups.setdefault(key, (shown, []))
        group.append(row)
    for key in sorted(groups, key=str):
        shown, group = groups[key]
        split = assignment.usable_run_split(shown, len(group), tally)
        if split is not None:
            yield _AlikeRuns(shown, group, split)


def _aggregate_run(run: _AlikeRuns, config: DatasetConfig, tally: Tally) -> PromptAggregator:
    aggregator = PromptAggregator(run.shown, run.split, config, tally, whole_runs=True)
    for trace, judgement in run.judged:
        aggregator.add(trace, judgement)
    return aggregator


def _unjudged(
    connection: sa.Connection,
    assignment: SplitAssignment,
    traces: Iterable[TraceRow],
    cases: dict[str, tuple[JudgingCase, ...]],
    tally: Tally,
) -> Iterator[Evidence]:
    """Yield evidence without answers: the prompts of traces and cases that nobody judged."""

    def with_cases() -> Iterator[tuple[str, list[TraceRow], tuple[JudgingCase, ...]]]:
        for prompt_id, traces_of_prompt in groupby(traces, key=attrgetter("prompt_id")):
            yield prompt_id, list(traces_of_prompt), cases.pop(prompt_id, ())
        # the cases without a trace, which are those left by now
        for prompt_id, prompt_cases in cases.items():
            yield prompt_id, [], prompt_cases

    for batch in batches(with_cases(), BATCH):
        messages = conversations(connection, [prompt_id for prompt_id, _, _ in batch])
        for prompt_id, rows, prompt_cases in batch:
            unjudged = [_JudgedTrace(row, None) for row in rows]
            permitted = [row.trace for row in _without_excluded(unjudged, tally)]
            if all(row.calls > 1 for row in permitted) and not prompt_cases:
                tally.drops[SEVERAL] += len(permitted)
                continue
            split = assignment.usable_split(prompt_id, 1, tally)
            if split is None or not _sampled(prompt_id, assignment.config, tally):
                continue
            aggregator = PromptAggregator(messages[prompt_id], split, assignment.config, tally)
            for row in permitted:
                aggregator.ask(row)
            tools = rows[0].tools if rows else None
            yield aggregator.evidence(prompt_id, tools, prompt_cases)


def _sampled(prompt_id: str, config: DatasetConfig, tally: Tally) -> bool:
    if config.sample < 1 and share_of("sample", prompt_id) >= config.sample:
        tally.drops[f"not in the sample of {config.sample:g} of the prompts"] += 1
        return False
    return True


def _prompts(
    connection: sa.Connection,
    agent: Agent,
    config: DatasetConfig,
    as_of: datetime | None,
    scope: FeedbackScope | None,
    values: Mapping[str, TraceReward] | None,
) -> Iterator[tuple[list[Message], JudgedTraces]]:
    """Yield the messages of each prompt ([] if they cannot be read) and its traces with their
    judgements."""
    agent_id = agent.id
    traces = store.judged_traces(connection, agent_id, scope)
    judged = judgements(connection, agent, as_of, config.label, scope)
    rows = align_by_key(traces, attrgetter("id"), judged, attrgetter("trace_id"))
    if values is not None:
        rows = (
            (trace, with_reward(judgement, trace.id, values.get(trace.id), config.label))
            for trace, judgement in rows
        )
    judged_traces = (_JudgedTrace(*row) for row in rows)
    by_prompt = groupby(judged_traces, key=attrgetter("trace.prompt_id"))
    grouped = ((prompt_id, list(group)) for prompt_id, group in by_prompt)
    messages = store.judged_prompts(connection, agent_id, scope)
    for (_, group), prompt in align_by_key(grouped, itemgetter(0), messages, itemgetter(0)):
        yield prompt[1] if prompt else [], group


def merge_prompts(evidence: Iterable[Evidence], tally: Tally) -> Iterator[Evidence]:
    """Merge the prompts that differ in white space, case and Unicode forms only, into the one with
    the most answers (ties: by id), and the runs of one task, each answer with the prompt of its own
    run. All of it is held in memory."""
    groups: dict[bytes | tuple[str, str], list[Evidence]] = defaultdict(list)
    for item in evidence:
        key: bytes | tuple[str, str] = group_key(item.prompt, item.tools)
        if item.task:
            key = (item.task, item.split)
        groups[key].append(item)
    for group in groups.values():
        if len(group) == 1:
            yield group[0]
        elif group[0].task:
            yield _merge_runs(group)
        else:
            yield _merge_spellings(group, tally)


def _merge_runs(group: list[Evidence]) -> Evidence:
    ordered = sorted(group, key=lambda evidence: evidence.prompt_id)
    with_answers = [evidence for evidence in ordered if evidence.answers]
    if not with_answers:
        return group[0]
    answers = []
    for evidence in with_answers:
        answers += [answer._replace(prompt=evidence.prompt) for answer in evidence.answers]
    asked = tuple(chain.from_iterable(evidence.asked for evidence in group))
    return with_answers[0]._replace(answers=tuple(answers), edges=(), asked=asked)


def _merge_spellings(group: list[Evidence], tally: Tally) -> Evidence:
    shown = min(group, key=lambda evidence: (-len(evidence.answers), evidence.prompt_id))
    ordered = sorted(group, key=lambda evidence: (evidence is not shown, evidence.prompt_id))
    answers: dict[str, JudgedText] = {}
    for evidence in ordered:
        for answer in evidence.answers:
            if answer.text.strip() in answers:
                tally.drops["the same answer to nearly the same prompt: counted once"] += 1
            answers.setdefault(answer.text.strip(), answer)
    texts = sorted(answers, key=ids.fingerprint)
    asked = tuple(chain.from_iterable(evidence.asked for evidence in group))
    return shown._replace(answers=tuple(answers[text] for text in texts), edges=(), asked=asked)
