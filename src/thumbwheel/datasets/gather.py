"""Evidence: what the traces, the resolved feedback and the cases say together, prompt by prompt, ready for the shapes.

Lives here: equal texts become one answer, edits become answers, comparisons become edges; what may not be used (gold prompts,
prompts that stand in a stricter split) is left out and counted. Does not live here: SQL (`store`), rows (`shapes/`).
Streams: one batch of prompts is in memory at a time, besides the split of every prompt, the cases and the comparisons (ids only).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, groupby
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.datasets import store
from thumbwheel.datasets.split import group_of, prompt_key, split_of, strictest
from thumbwheel.datasets.store import GOLD, TraceRow, batched
from thumbwheel.datasets.types import Answer, Asked, Case, DatasetConfig, Edge, Evidence, Message, Tally
from thumbwheel.rewards.label import comparisons, judgements
from thumbwheel.rewards.types import Comparison, Judgement, Value

BATCH = 500
"""Prompts whose messages are read at once."""


def gather(
    connection: sa.Connection, agent: str, config: DatasetConfig, tally: Tally, as_of: datetime | None = None, *, unjudged: bool = False
) -> Iterator[Evidence]:
    """The evidence of every prompt of `agent` that feedback in force at `as_of` is about; `tally` is told what was met.

    With `unjudged` also the prompts of its cases and of traces that no feedback is about.
    """
    agent_id = ids.derived("agt", agent)
    places = _Places(connection, agent_id, config)
    compared: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(connection, agent, as_of):
        tally.notes["comparisons with disagreeing raters"] += one.conflict
        compared[one.better].append(one)
    cases = {prompt_id: tuple(some) for prompt_id, some in groupby(store.open_cases(connection, agent_id), key=lambda case: case.prompt_id)}
    met = set()
    for prompt, judged in _prompts(connection, agent, config, as_of):
        first = judged[0][0]
        met.add(first.prompt_id)
        asked = cases.pop(first.prompt_id, ())
        if (place := places.usable(first.prompt_id, len(judged), tally)) is None:
            continue
        gathered = _Prompt(prompt, place, config, tally)
        for trace, judgement in judged:
            gathered.add(trace, judgement)
        for trace, _ in judged:
            for one in compared.pop(trace.id, ()):
                gathered.compare(one)
        yield gathered.evidence(first.prompt_id, first.tools, asked)
    if unjudged:
        rows = (row for row in store.unjudged_traces(connection, agent_id) if row.prompt_id not in met)
        yield from _unjudged(connection, places, rows, cases, tally)


def _unjudged(
    connection: sa.Connection, places: _Places, traces: Iterable[TraceRow], cases: dict[str, tuple[Case, ...]], tally: Tally
) -> Iterator[Evidence]:
    """What was asked and never judged, in traces and in cases; there are no answers in it."""
    asked = ((prompt_id, list(some), cases.pop(prompt_id, ())) for prompt_id, some in groupby(traces, key=lambda trace: trace.prompt_id))

    def alone() -> Iterator[tuple[str, list[TraceRow], tuple[Case, ...]]]:
        yield from ((prompt_id, [], some) for prompt_id, some in cases.items())  # those that the traces have left by then

    for batch in batched(chain(asked, alone()), BATCH):
        chains = store.prompts(connection, [prompt_id for prompt_id, _, _ in batch])
        for prompt_id, rows, own in batch:
            places.learn(prompt_id, chains.get(prompt_id, []), rows)
            if (place := places.usable(prompt_id, 1, tally)) is None:
                continue
            gathered = _Prompt(chains[prompt_id], place, places.config, tally)
            for row in rows:
                gathered.ask(row)
            yield gathered.evidence(prompt_id, rows[0].tools if rows else None, own)


class _Places:
    """The only split that a prompt may be used in, or GOLD. A feedback case is held where its prompt belongs, so that training cannot
    see a case of the gate."""

    def __init__(self, connection: sa.Connection, agent_id: str, config: DatasetConfig) -> None:
        self.config = config
        self._keys: dict[str, bytes] = {}
        self._found: dict[bytes, str] = {}
        cases = store.case_inputs(connection, agent_id)
        asked = ((prompt_id, GOLD if basis == GOLD else split_of(group_of(prompt_id), config)) for prompt_id, basis in cases)
        groups = store.judged_groups(connection, agent_id)
        judged = ((prompt_id, split_of(group_of(prompt_id, session_id), config)) for prompt_id, session_id in groups)
        for source in (asked, judged):
            for some in batched(source, BATCH):
                chains = store.prompts(connection, {prompt_id for prompt_id, _ in some if prompt_id not in self._keys})
                self._keys |= {prompt_id: prompt_key(messages) for prompt_id, messages in chains.items()}
                for prompt_id, place in some:
                    if key := self._keys.get(prompt_id):
                        before = self._found.get(key, place)
                        self._found[key] = GOLD if GOLD in (before, place) else strictest(before, place)

    def learn(self, prompt_id: str, prompt: list[Message], traces: Iterable[TraceRow]) -> None:
        """A prompt that nobody judged stands where an equal one does, else where its own traces have it."""
        if prompt and prompt_id not in self._keys:
            key = self._keys[prompt_id] = prompt_key(prompt)
            own = [split_of(group_of(prompt_id, trace.session_id), self.config) for trace in traces]
            self._found.setdefault(key, strictest(*own))

    def usable(self, prompt_id: str, count: int, tally: Tally) -> str | None:
        """Its split; None where it is gold or cannot be read, which is counted `count` times."""
        place = self._found[self._keys[prompt_id]] if prompt_id in self._keys else None
        if place is None:
            tally.drops["the prompt cannot be read back: a message is missing"] += count
        elif place == GOLD:
            tally.drops["a gold case asks the same"] += count
        return None if place == GOLD else place


Judged = list[tuple[TraceRow, Judgement | None]]


def _prompts(
    connection: sa.Connection, agent: str, config: DatasetConfig, as_of: datetime | None
) -> Iterator[tuple[list[Message], Judged]]:
    """The messages of each prompt ([] where they cannot be read) and its traces, each with what was judged about it."""
    said = judgements(connection, agent, as_of, config.label)
    following = next(said, None)

    def with_judgement(rows: Iterable[TraceRow]) -> Judged:
        nonlocal following
        judged: Judged = []
        for row in rows:
            own = following if following is not None and following.trace_id == row.id else None
            following = next(said, None) if own else following
            judged.append((row, own))
        return judged

    rows = store.judged_traces(connection, ids.derived("agt", agent))
    grouped = ((prompt_id, with_judgement(some)) for prompt_id, some in groupby(rows, key=lambda row: row.prompt_id))
    for some in batched(grouped, BATCH):
        chains = store.prompts(connection, [prompt_id for prompt_id, _ in some])
        for prompt_id, judged in some:
            yield chains.get(prompt_id, []), judged


@dataclass(frozen=True)
class _Vote:
    """`signed` is the strength, negative against the text."""

    signed: float
    origin: str
    feedback_ids: tuple[str, ...]


@dataclass
class _Draft:
    """A distinct text and what was found about it so far."""

    text: str
    group: str
    votes: list[_Vote] = field(default_factory=list)
    conflict: bool = False
    corrected: bool = False
    traces: list[TraceRow] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    own: TraceRow | None = None
    """The first trace whose output it is; None for the text of an edit that nobody gave as an answer."""

    def answer(self) -> Answer:
        """The rule once more, over the votes of all traces with this text."""
        total = sum(vote.signed for vote in self.votes)
        size = sum(abs(vote.signed) for vote in self.votes)
        good = None if abs(total) < 1e-9 else total > 0
        winning = [vote for vote in self.votes if good is not None and (vote.signed > 0) is good]
        origins = [vote.origin for vote in winning if vote.origin != "correction"] or [vote.origin for vote in winning]
        subjects = sorted({trace.subject_id for trace in self.traces if trace.subject_id})
        tokens = self.own.token_ids if self.own else None
        return Answer(
            text=self.text,
            good=good,
            strength=0.0 if good is None else max(abs(vote.signed) for vote in winning) * abs(total) / size,
            conflict=self.conflict or len({vote.signed > 0 for vote in self.votes}) > 1,
            origin=origins[0] if origins else "",
            corrected=self.corrected,
            group=self.group,
            feedback_ids=tuple(sorted({one for vote in self.votes for one in vote.feedback_ids})),
            trace_ids=tuple(sorted({trace.id for trace in self.traces})),
            subject_ids=tuple(subjects),
            finish_reason=self.own.finish_reason if self.own else None,
            token_ids=tuple(tokens) if tokens else None,
            value=Value.mean([(value, 1.0) for value in self.values]),
            logps=_logps(self.own),
        )


def _logps(trace: TraceRow | None) -> tuple[float, ...] | None:
    """Captured log-probabilities, one for each captured token; anything else is none."""
    if trace is None or not trace.token_ids or not trace.logps or len(trace.logps) != len(trace.token_ids):
        return None
    return tuple(float(one) for one in trace.logps)


class _Prompt:
    """Collects the answers and edges of one prompt."""

    def __init__(self, prompt: list[Message], split: str, config: DatasetConfig, tally: Tally) -> None:
        self._prompt, self._split, self._config, self._tally = prompt, split, config, tally
        self._drafts: dict[str, _Draft] = {}
        self._met: set[str] = set()
        self._asked: list[Asked] = []
        self._of_trace: dict[str, str] = {}
        self._edges: list[tuple[str, str, str, float, tuple[str, ...]]] = []

    def add(self, trace: TraceRow, judgement: Judgement | None) -> None:
        """A trace of this prompt, with what was judged about it."""
        self._met.add(trace.id)
        if not self.ask(trace):
            return
        group = self._asked[-1].group
        text = (trace.output or "").strip()
        if text:
            self._own(trace, text, group, judgement)
        else:
            self._tally.drops["the trace has no output"] += 1
        if judgement:
            self._note(judgement)
        if judgement and judgement.edit:
            self._edit(trace, text, group, judgement)

    def ask(self, trace: TraceRow) -> bool:
        """Whether this trace asked the prompt in a way that one answer of a model can be about."""
        group = group_of(trace.prompt_id, trace.session_id)
        if split_of(group, self._config) != self._split:
            self._tally.drops[f"the prompt also stands in {self._split}"] += 1
            return False
        if trace.calls > 1:
            self._tally.drops["the answer took several model or tool steps"] += 1
            return False
        self._asked.append(Asked(group, trace.id, trace.subject_id))
        return True

    def _own(self, trace: TraceRow, text: str, group: str, judgement: Judgement | None) -> None:
        draft = self._drafts.setdefault(text, _Draft(trace.output or "", group))
        if draft.own is not None:
            self._tally.drops["the same answer to the same prompt: counted once"] += 1
        else:
            draft.own, draft.text, draft.group = trace, trace.output or "", group
        draft.traces.append(trace)
        self._of_trace[trace.id] = text
        if judgement and judgement.good is not None and judgement.strength:
            signed = judgement.strength if judgement.good else -judgement.strength
            draft.votes.append(_Vote(signed, _origin(judgement), judgement.feedback_ids))
        draft.conflict = draft.conflict or bool(judgement and judgement.conflict)
        if judgement and judgement.value:
            draft.values.append(judgement.value)

    def _note(self, judgement: Judgement) -> None:
        self._tally.notes["answers with disagreeing raters"] += judgement.conflict
        self._tally.notes["answers whose raters disagree evenly"] += judgement.conflict and judgement.good is None
        self._tally.notes["answers with different corrections"] += judgement.edit_conflict
        if judgement.edit_conflict and judgement.edit is None:
            self._tally.drops["different corrections without a majority"] += 1

    def _edit(self, trace: TraceRow, original: str, group: str, judgement: Judgement) -> None:
        assert judgement.edit is not None  # noqa: S101 - narrows the type; the caller has checked it
        text = judgement.edit.text.strip()
        if not text or text == original:
            self._tally.drops["the correction changes nothing"] += 1
            return
        draft = self._drafts.setdefault(text, _Draft(judgement.edit.text, group))
        draft.votes.append(_Vote(1.0, "correction", judgement.edit.feedback_ids))
        draft.traces.append(trace)
        if original:
            self._drafts[original].corrected = True
            self._edges.append((text, original, "correction", 1.0, judgement.edit.feedback_ids))

    def compare(self, one: Comparison) -> None:
        """What the preferences say about two traces, at least one of which is of this prompt."""
        better, worse = self._of_trace.get(one.better), self._of_trace.get(one.worse)
        if better is None or worse is None:
            known = {one.better, one.worse} <= self._met
            self._tally.drops["one of the compared answers was left out" if known else "the compared answers have different prompts"] += 1
        elif better == worse:
            self._tally.drops["the compared answers are the same text"] += 1
        elif not one.decided:
            self._tally.drops["no majority for either answer" if one.conflict else "the compared answers are tied"] += 1
        else:
            self._edges.append((better, worse, "preference", one.strength, one.feedback_ids))

    def evidence(self, prompt_id: str, tools: list[dict[str, Any]] | None, cases: tuple[Case, ...]) -> Evidence:
        """What was collected; answers in the order of a hash of their text, so that no choice depends on when or where they came from."""
        if cases and split_of(group_of(prompt_id), self._config) != self._split:
            self._tally.drops[f"the prompt also stands in {self._split}"] += len(cases)
            cases = ()
        order = sorted(self._drafts, key=ids.fingerprint)
        places = {text: place for place, text in enumerate(order)}
        answers = tuple(self._drafts[text].answer() for text in order)
        return Evidence(prompt_id, self._prompt, tools, self._split, answers, tuple(self._merged(places)), cases, tuple(self._asked))

    def _merged(self, places: dict[str, int]) -> Iterator[Edge]:
        """One edge for each pair of texts; comparisons of equal texts in several traces are summed, and may cancel out."""
        pairs: dict[tuple[int, int], list[tuple[float, str, tuple[str, ...]]]] = defaultdict(list)
        for above, below, origin, strength, feedback_ids in self._edges:
            first, second = places[above], places[below]
            signed = strength if first < second else -strength
            pairs[min(first, second), max(first, second)].append((signed, origin, feedback_ids))
        for (first, second), found in sorted(pairs.items()):
            total = sum(signed for signed, _, _ in found)
            if abs(total) < 1e-9:
                self._tally.drops["comparisons of the same two texts contradict each other"] += 1
                continue
            better, worse = (first, second) if total > 0 else (second, first)
            if len(found) > 1:
                self._tally.drops["the same pair of texts: counted once"] += len(found) - 1
            named = tuple(sorted({one for _, _, own in found for one in own}))
            yield Edge(better, worse, _leading(found, total), abs(total) / len(found), named)


def _leading(found: Sequence[tuple[float, str, tuple[str, ...]]], total: float) -> str:
    """correction before preference, among those that point to the side that won."""
    return min(origin for signed, origin, _ in found if signed * total > 0)


def _origin(judgement: Judgement) -> str:
    if judgement.kind != "thumb":
        return judgement.kind or ""
    return "upvote" if judgement.good else "downvote"
