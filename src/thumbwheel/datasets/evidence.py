"""Evidence: what the traces, the resolved feedback and the cases say together, prompt by prompt,
ready for the shapes.

Lives here: reading it in the order of the prompts, and which prompts are used. Does not live here:
SQL (`store`), what is made of one prompt (`resolve`), where a prompt may be used
(`split_assignment`), rows (`shapes/`). Streams: one batch of prompts is in memory at a time,
besides the place of every prompt, the cases and the comparisons (ids only).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter, itemgetter

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.datasets import store
from thumbwheel.datasets.aggregate_prompt import SEVERAL, PromptAggregator
from thumbwheel.datasets.episode import LAST_ONLY, history
from thumbwheel.datasets.ledger_rewards import Reward, rewarded
from thumbwheel.datasets.split import group_key, share_of
from thumbwheel.datasets.split_assignment import SplitAssignment, align_by_key, assign_splits
from thumbwheel.datasets.store import TraceRow, batched
from thumbwheel.datasets.types import (
    EXCLUDED,
    Answer,
    Case,
    DatasetConfig,
    Evidence,
    Message,
    Tally,
)
from thumbwheel.rewards.label import comparisons, judgements
from thumbwheel.rewards.types import Comparison, Judgement, Scope

BATCH = 500
"""Prompts whose messages are read at once."""
UNHEARD = "no person said anything about it (require_feedback)"
KEPT_OUT = "its owner keeps it out of training and validation data"


Judged = list[tuple[TraceRow, Judgement | None]]


def read_evidence(
    connection: sa.Connection,
    agent: str,
    config: DatasetConfig,
    tally: Tally,
    as_of: datetime | None = None,
    *,
    unjudged: bool = False,
    assignment: SplitAssignment | None = None,
    scope: Scope | None = None,
    values: Mapping[str, Reward] | None = None,
) -> Iterator[Evidence]:
    """The evidence of every prompt of `agent` that feedback in force at `as_of` is about; `tally`
    is told what was met.

    With `unjudged` also the prompts of its cases and of traces that no feedback is about. `scope`
    narrows both; the settled `assignment` of the same scope may be given. `values`, trace ->
    reward, say how good the answers are, in place of what people said.
    """
    agent_id = ids.derived("agt", agent)
    assignment = assignment or assign_splits(connection, agent_id, config, scope, unjudged=unjudged)
    store.find_judged(connection, agent_id, scope)
    compared: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(
        connection, agent, as_of, replace(scope, first=None, last=None) if scope else None
    ):
        tally.notes["comparisons with disagreeing raters"] += one.conflict and not (
            scope and scope.first
        )
        compared[one.better].append(one)
    open_cases = groupby(
        store.open_cases(connection, agent_id, scope), key=lambda case: case.prompt_id
    )
    cases = {prompt_id: tuple(some) for prompt_id, some in open_cases}
    people = store.person_judged(connection, agent_id) if config.require_feedback else None
    met = set()
    for prompt, judged in _prompts(connection, agent, config, as_of, scope, values):
        first = judged[0][0]
        met.add(first.prompt_id)
        asked = cases.pop(first.prompt_id, ())
        judged = _of_people(_permitted(judged, tally), people, tally)
        if config.require_feedback and not judged:
            continue
        alone, several = _by_calls(judged)
        split = (
            assignment.usable(first.prompt_id, len(alone) or len(asked), tally)
            if alone or asked or not prompt
            else None
        )
        if not prompt or not _sampled(first.prompt_id, config, tally):
            continue
        gathered = PromptAggregator(prompt, split or "train", config, tally)
        for trace, judgement in alone if split else ():
            gathered.add(trace, judgement)
        runs = list(_runs(connection, prompt, several, tally, assignment)) if several else []
        whole = [_whole(shown, some, stands, config, tally) for shown, some, stands in runs]
        for trace, _ in judged if compared else ():
            for said in compared.pop(trace.id, ()):
                next((other for other in whole if other.met(trace.id)), gathered).compare(said)
        yield gathered.evidence(first.prompt_id, first.tools, asked if split else ())
        for resolving, (shown, some, _) in zip(whole, runs, strict=True):
            task = some[0][0].task  # the same history is another row where it served another task
            name = ids.derived("run", ids.fingerprint(shown), *([task] if task else []))
            yield resolving.evidence(name, some[0][0].tools, ())._replace(
                task=task or first.prompt_id
            )
    if unjudged and not config.require_feedback:
        rows = (
            row
            for row in store.unjudged_traces(connection, agent_id, scope)
            if row.prompt_id not in met
        )
        yield from _unjudged(connection, assignment, rows, cases, tally)


def _by_calls(judged: Judged) -> tuple[Judged, Judged]:
    """Those of one call, and runs of several."""
    return [row for row in judged if row[0].calls <= 1], [row for row in judged if row[0].calls > 1]


def _of_people(judged: Judged, people: Collection[str] | None, tally: Tally) -> Judged:
    """The traces that a person said something about; all where `people` is None."""
    if people is None:
        return judged
    heard = [row for row in judged if row[0].id in people]
    if len(heard) < len(judged):
        tally.drops[UNHEARD] += len(judged) - len(heard)
    return heard


def _permitted(judged: Judged, tally: Tally) -> Judged:
    """Without the traces that their owner keeps out of training and validation."""
    permitted = [row for row in judged if row[0].mark != EXCLUDED]
    if len(permitted) < len(judged):
        tally.drops[KEPT_OUT] += len(judged) - len(permitted)
    return permitted


def _runs(
    connection: sa.Connection,
    prompt: list[Message],
    judged: Judged,
    tally: Tally,
    assignment: SplitAssignment,
) -> Iterator[tuple[list[Message], Judged, str]]:
    """Runs of several steps by what their last answer was shown, with the split of that; those that
    cannot be used are counted."""
    steps = store.run_steps(connection, [trace.id for trace, _ in judged])
    found: dict[tuple[str, str | None], tuple[list[Message], Judged]] = {}
    for trace, judgement in judged:
        shown = history(prompt, steps.get(trace.id, []), trace.output)
        if isinstance(shown, str):
            tally.drops[shown] += 1
            continue
        tally.notes[LAST_ONLY] += 1
        found.setdefault((ids.fingerprint(shown), trace.task), (shown, []))[1].append(
            (trace, judgement)
        )
    for shown, some in (found[key] for key in sorted(found, key=str)):
        if (stands := assignment.usable_run(shown, len(some), tally)) is not None:
            yield shown, some, stands


def _whole(
    shown: list[Message], some: Judged, place: str, config: DatasetConfig, tally: Tally
) -> PromptAggregator:
    resolving = PromptAggregator(shown, place, config, tally, whole=True)
    for trace, judgement in some:
        resolving.add(trace, judgement)
    return resolving


def _unjudged(
    connection: sa.Connection,
    assignment: SplitAssignment,
    traces: Iterable[TraceRow],
    cases: dict[str, tuple[Case, ...]],
    tally: Tally,
) -> Iterator[Evidence]:
    """What was asked and never judged, in traces and in cases; there are no answers in it."""
    asked = (
        (prompt_id, list(some), cases.pop(prompt_id, ()))
        for prompt_id, some in groupby(traces, key=attrgetter("prompt_id"))
    )

    def alone() -> Iterator[tuple[str, list[TraceRow], tuple[Case, ...]]]:
        yield from (
            (prompt_id, [], some) for prompt_id, some in cases.items()
        )  # those that the traces have left by then

    for batch in batched(chain(asked, alone()), BATCH):
        chains = store.prompts(connection, [prompt_id for prompt_id, _, _ in batch])
        for prompt_id, rows, own in batch:
            permitted = [row for row, _ in _permitted([(row, None) for row in rows], tally)]
            if all(row.calls > 1 for row in permitted) and not own:
                tally.drops[SEVERAL] += len(permitted)
                continue
            split = assignment.usable(prompt_id, 1, tally)
            if split is None or not _sampled(prompt_id, assignment.config, tally):
                continue
            gathered = PromptAggregator(chains[prompt_id], split, assignment.config, tally)
            for row in permitted:
                gathered.ask(row)
            yield gathered.evidence(prompt_id, rows[0].tools if rows else None, own)


def _sampled(prompt_id: str, config: DatasetConfig, tally: Tally) -> bool:
    if config.sample < 1 and share_of("sample", prompt_id) >= config.sample:
        tally.drops[f"not in the sample of {config.sample:g} of the prompts"] += 1
        return False
    return True


def _prompts(
    connection: sa.Connection,
    agent: str,
    config: DatasetConfig,
    as_of: datetime | None,
    scope: Scope | None,
    values: Mapping[str, Reward] | None,
) -> Iterator[tuple[list[Message], Judged]]:
    """The messages of each prompt ([] where they cannot be read) and its traces, each with what was
    judged about it."""
    agent_id = ids.derived("agt", agent)
    said = judgements(connection, agent, as_of, config.label, scope)
    traces = store.judged_traces(connection)
    rows = align_by_key(traces, attrgetter("id"), said, attrgetter("trace_id"))
    if values is not None:
        rows = (
            (trace, rewarded(judgement, trace.id, values.get(trace.id), config.label))
            for trace, judgement in rows
        )
    grouped = (
        (prompt_id, list(some))
        for prompt_id, some in groupby(rows, key=lambda row: row[0].prompt_id)
    )
    messages = store.judged_prompts(connection, agent_id, scope)
    for (_, judged), prompt in align_by_key(grouped, itemgetter(0), messages, itemgetter(0)):
        yield prompt[1] if prompt else [], judged


def merged(every: Iterable[Evidence], tally: Tally) -> Iterator[Evidence]:
    """Prompts that differ in white space, case and Unicode forms only as one: the original with the
    most answers, by id where several have as many. Runs of one task are one too, each answer with
    the prompt of its own run. All of it is held in memory."""
    groups: dict[bytes | tuple[str, str], list[Evidence]] = defaultdict(list)
    for one in every:
        groups[(one.task, one.split) if one.task else group_key(one.prompt, one.tools)].append(one)
    for some in groups.values():
        yield (
            some[0] if len(some) == 1 else _as_task(some) if some[0].task else _as_one(some, tally)
        )


def _as_task(some: list[Evidence]) -> Evidence:
    every = [
        (one, answer)
        for one in sorted(some, key=lambda one: one.prompt_id)
        for answer in one.answers
    ]
    if not every:
        return some[0]
    asked = tuple(trace for one in some for trace in one.asked)
    answers = tuple(answer._replace(prompt=one.prompt) for one, answer in every)
    return every[0][0]._replace(answers=answers, edges=(), asked=asked)


def _as_one(some: list[Evidence], tally: Tally) -> Evidence:
    shown = min(some, key=lambda one: (-len(one.answers), one.prompt_id))
    answers: dict[str, Answer] = {}
    for one in sorted(some, key=lambda one: (one is not shown, one.prompt_id)):
        for answer in one.answers:
            if answer.text.strip() in answers:
                tally.drops["the same answer to nearly the same prompt: counted once"] += 1
            answers.setdefault(answer.text.strip(), answer)
    order = sorted(answers, key=ids.fingerprint)
    asked = tuple(trace for one in some for trace in one.asked)
    return shown._replace(answers=tuple(answers[text] for text in order), edges=(), asked=asked)
