"""Evidence: what the traces, the resolved feedback and the cases say together, prompt by prompt, ready for the shapes.

Lives here: reading it in the order of the prompts, and which prompts are used. Does not live here: SQL (`store`), what is made of one
prompt (`resolve`), where a prompt may be used (`places`), rows (`shapes/`).
Streams: one batch of prompts is in memory at a time, besides the place of every prompt, the cases and the comparisons (ids only).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter, itemgetter

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.datasets import store
from thumbwheel.datasets.places import Places, aligned
from thumbwheel.datasets.resolve import Resolving
from thumbwheel.datasets.split import group_key, share_of
from thumbwheel.datasets.store import TraceRow, batched
from thumbwheel.datasets.types import Answer, Case, DatasetConfig, Evidence, Message, Tally
from thumbwheel.rewards.label import comparisons, judgements
from thumbwheel.rewards.types import Comparison, Judgement, Scope

BATCH = 500
"""Prompts whose messages are read at once."""


def gather(
    connection: sa.Connection,
    agent: str,
    config: DatasetConfig,
    tally: Tally,
    as_of: datetime | None = None,
    *,
    unjudged: bool = False,
    places: Places | None = None,
    scope: Scope | None = None,
) -> Iterator[Evidence]:
    """The evidence of every prompt of `agent` that feedback in force at `as_of` is about; `tally` is told what was met.

    With `unjudged` also the prompts of its cases and of traces that no feedback is about. `scope` narrows both; the settled `places`
    of the same scope may be given.
    """
    agent_id = ids.derived("agt", agent)
    places = places or Places(connection, agent_id, config, scope)
    compared: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(connection, agent, as_of, replace(scope, first=None, last=None) if scope else None):
        tally.notes["comparisons with disagreeing raters"] += one.conflict and not (scope and scope.first)
        compared[one.better].append(one)
    open_cases = groupby(store.open_cases(connection, agent_id, scope), key=lambda case: case.prompt_id)
    cases = {prompt_id: tuple(some) for prompt_id, some in open_cases}
    met = set()
    for prompt, judged in _prompts(connection, agent, config, as_of, scope):
        first = judged[0][0]
        met.add(first.prompt_id)
        asked = cases.pop(first.prompt_id, ())
        if (place := places.usable(first.prompt_id, len(judged), tally)) is None or not _sampled(first.prompt_id, config, tally):
            continue
        gathered = Resolving(prompt, place, config, tally)
        for trace, judgement in judged:
            gathered.add(trace, judgement)
        for trace, _ in judged:
            for one in compared.pop(trace.id, ()):
                gathered.compare(one)
        yield gathered.evidence(first.prompt_id, first.tools, asked)
    if unjudged and not config.require_feedback:
        rows = (row for row in store.unjudged_traces(connection, agent_id, scope) if row.prompt_id not in met)
        yield from _unjudged(connection, places, rows, cases, tally)


def _unjudged(
    connection: sa.Connection, places: Places, traces: Iterable[TraceRow], cases: dict[str, tuple[Case, ...]], tally: Tally
) -> Iterator[Evidence]:
    """What was asked and never judged, in traces and in cases; there are no answers in it."""
    asked = ((prompt_id, list(some), cases.pop(prompt_id, ())) for prompt_id, some in groupby(traces, key=attrgetter("prompt_id")))

    def alone() -> Iterator[tuple[str, list[TraceRow], tuple[Case, ...]]]:
        yield from ((prompt_id, [], some) for prompt_id, some in cases.items())  # those that the traces have left by then

    for batch in batched(chain(asked, alone()), BATCH):
        chains = store.prompts(connection, [prompt_id for prompt_id, _, _ in batch])
        for prompt_id, rows, own in batch:
            places.learn(prompt_id, chains.get(prompt_id, []), rows)
            if (place := places.usable(prompt_id, 1, tally)) is None or not _sampled(prompt_id, places.config, tally):
                continue
            gathered = Resolving(chains[prompt_id], place, places.config, tally)
            for row in rows:
                gathered.ask(row)
            yield gathered.evidence(prompt_id, rows[0].tools if rows else None, own)


def _sampled(prompt_id: str, config: DatasetConfig, tally: Tally) -> bool:
    if config.sample < 1 and share_of("sample", prompt_id) >= config.sample:
        tally.drops[f"not in the sample of {config.sample:g} of the prompts"] += 1
        return False
    return True


Judged = list[tuple[TraceRow, Judgement | None]]


def _prompts(
    connection: sa.Connection, agent: str, config: DatasetConfig, as_of: datetime | None, scope: Scope | None
) -> Iterator[tuple[list[Message], Judged]]:
    """The messages of each prompt ([] where they cannot be read) and its traces, each with what was judged about it."""
    agent_id = ids.derived("agt", agent)
    said = judgements(connection, agent, as_of, config.label, scope)
    traces = store.judged_traces(connection, agent_id, scope)
    rows = aligned(traces, attrgetter("id"), said, attrgetter("trace_id"))
    grouped = ((prompt_id, list(some)) for prompt_id, some in groupby(rows, key=lambda row: row[0].prompt_id))
    messages = store.judged_prompts(connection, agent_id, scope)
    for (_, judged), prompt in aligned(grouped, itemgetter(0), messages, itemgetter(0)):
        yield prompt[1] if prompt else [], judged


def merged(every: Iterable[Evidence], tally: Tally) -> Iterator[Evidence]:
    """Prompts that differ in white space, case and Unicode forms only as one: the original with the most answers, by id where several
    have as many. All of it is held in memory."""
    groups: dict[bytes, list[Evidence]] = defaultdict(list)
    for one in every:
        groups[group_key(one.prompt, one.tools)].append(one)
    for some in groups.values():
        yield some[0] if len(some) == 1 else _as_one(some, tally)


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
    return replace(shown, answers=tuple(answers[text] for text in order), edges=(), asked=asked)
