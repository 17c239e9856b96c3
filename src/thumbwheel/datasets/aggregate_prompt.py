"""Aggregates the judged traces of one prompt to distinct answers, and to edges between them.

Equal texts become one answer, edits become answers, comparisons become edges. What may not be used
is left out and counted. Reading is in `evidence`, rows are in `shapes/`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from thumbwheel.core import ids
from thumbwheel.datasets.split import group_of
from thumbwheel.datasets.store import TraceRow
from thumbwheel.datasets.types import (
    REWARD,
    WITHHELD_JUDGEMENT,
    WITHHELD_VALUE,
    Asked,
    DatasetConfig,
    Edge,
    Evidence,
    JudgedText,
    JudgingCase,
    Message,
    Tally,
)
from thumbwheel.rewards.aggregate import beside_verdict, count, people_first
from thumbwheel.rewards.types import Edit, Judgement, PairComparison, Value, Verdict

INCOMPLETE = "the answer is not whole: the client left, the server failed, or it was too long"
SEVERAL = "the answer took several model or tool steps"


class _Vote(NamedTuple):
    """The judgement of one trace as a vote for or against its text; `weight` is its strength."""

    good: bool
    weight: float
    origin: str
    feedback_ids: tuple[str, ...]
    automatic: bool

    @property
    def computed(self) -> bool:
        """Whether no people voted themselves; a combined reward is computed, even if feedback of
        people contributed to it."""
        return self.automatic or self.origin == REWARD


@dataclass(slots=True)
class _AnswerDraft:
    """A distinct text and what was collected about it so far."""

    text: str
    group: str
    votes: list[_Vote] = field(default_factory=list)
    conflict: bool = False
    corrected: bool = False
    corrected_by_person: bool = False
    traces: list[TraceRow] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    source: TraceRow | None = None
    """The first trace whose output it is; None for the text of an edit that no trace has as its
    output."""

    @property
    def automatic(self) -> bool:
        """Whether it was called good or bad, and by no person."""
        return bool(self.votes) and all(vote.automatic for vote in self.votes)

    def answer(self) -> JudgedText:
        """Return the answer by the votes of all traces with this text, counted by the rule for
        raters (`rewards.aggregate`)."""
        self._prefer_people()
        if len(self.votes) <= 1 and len(self.traces) == 1 and len(self.values) <= 1:
            return self._single_vote_answer()
        votes = count(self.votes, _is_good)
        strength = 0.0
        if votes.side is not None:
            strongest = max([vote.weight for vote in votes.winners])
            strength = strongest * votes.margin(not votes.side)
        subject_ids = {trace.subject_id for trace in self.traces if trace.subject_id}
        return JudgedText(
            text=self.text,
            good=votes.side,
            strength=strength,
            conflict=self.conflict or votes.conflict,
            origin=_origin_of_votes(votes.winners),
            corrected=self.corrected,
            group=self.group,
            feedback_ids=self._vote_feedback_ids(),
            trace_ids=tuple(sorted({trace.id for trace in self.traces})),
            subject_ids=tuple(sorted(subject_ids)),
            value=Value.mean([(value, 1.0) for value in self.values]),
            automatic=self.automatic,
            **self._captured(),
        )

    def _verdict(self) -> Verdict:
        votes = count(self.votes, _is_good)
        margin = None if votes.side is None else votes.margin(not votes.side)
        origin = _origin_of_votes(votes.winners)
        return Verdict(votes.side, margin, origin, self._vote_feedback_ids())

    def _vote_feedback_ids(self) -> tuple[str, ...]:
        feedback_ids = chain.from_iterable(vote.feedback_ids for vote in self.votes)
        return tuple(sorted(set(feedback_ids)))

    def _captured(self) -> dict[str, Any]:
        """Return the fields captured with the first trace that output this text; empty if no trace
        did."""
        if self.source is None:
            return {}
        captured: dict[str, Any] = {"finish_reason": self.source.finish_reason}
        if self.source.token_ids:
            captured["token_ids"] = tuple(self.source.token_ids)
            captured["logps"] = _logps(self.source)
        return captured

    def _prefer_people(self) -> None:
        """Drop computed votes and numbers if people judged any of the traces; if they only edited
        it, drop those that call it good."""
        self.votes = people_first(self.votes, _is_computed_vote)
        self.values = people_first(self.values, _is_computed_value)
        by_people = bool(self.votes) and not self.votes[0].computed
        if self.values and not _is_computed_value(self.values[0]):
            if not by_people:
                self.votes = []
        elif by_people:
            if self.values:
                self.values = beside_verdict(self.values, self._verdict())
        elif self.corrected_by_person:
            self.votes = [vote for vote in self.votes if not vote.good]
            self.values = [
                value
                for value in self.values
                if not value.automatic or value.sides_with(good=False)
            ]

    def _single_vote_answer(self) -> JudgedText:
        """Return the answer of one trace with at most one vote, which is the usual case."""
        trace = self.traces[0]
        good, strength, origin = None, 0.0, ""
        feedback_ids: tuple[str, ...] = ()
        for vote in self.votes:
            good, strength, origin = vote.good, vote.weight, vote.origin
            feedback_ids = tuple(sorted(set(vote.feedback_ids)))
        return JudgedText(
            text=self.text,
            good=good,
            strength=strength,
            conflict=self.conflict,
            origin=origin,
            corrected=self.corrected,
            group=self.group,
            feedback_ids=feedback_ids,
            trace_ids=(trace.id,),
            subject_ids=(trace.subject_id,) if trace.subject_id else (),
            value=self.values[0] if self.values else None,
            automatic=self.automatic,
            **self._captured(),
        )


def _is_good(vote: _Vote) -> bool:
    return vote.good


def _is_computed_vote(vote: _Vote) -> bool:
    return vote.computed


def _is_computed_value(value: Value) -> bool:
    return value.automatic or value.kind == REWARD


def _origin_of_votes(votes: Sequence[_Vote]) -> str:
    """Return the origin of the votes. An edit gives the origin only if no other vote does."""
    origins = {vote.origin for vote in votes}
    return min(origins - {"correction"} or origins, default="")


def _logps(trace: TraceRow) -> tuple[float, ...] | None:
    """Return the captured log-probabilities, or None unless there is one for each captured
    token."""
    if not trace.logps or not trace.token_ids or len(trace.logps) != len(trace.token_ids):
        return None
    return tuple(float(logp) for logp in trace.logps)


class _TextEdge(NamedTuple):
    """A vote that one text is better than another; `automatic`: no person said so."""

    better: str
    worse: str
    origin: str
    weight: float
    feedback_ids: tuple[str, ...]
    automatic: bool


class PromptAggregator:
    """Collects the answers and edges of one prompt."""

    def __init__(
        self,
        prompt: list[Message],
        split: str,
        config: DatasetConfig,
        tally: Tally,
        *,
        whole_runs: bool = False,
    ) -> None:
        """Start without answers. With `whole_runs`, the prompt is the history of runs of several
        steps."""
        self._whole_runs = whole_runs
        self._prompt, self._split, self._config, self._tally = prompt, split, config, tally
        self._drafts: dict[str, _AnswerDraft] = {}
        self._trace_ids: set[str] = set()
        self._asked: list[Asked] = []
        self._text_of_trace: dict[str, str] = {}
        self._edges: list[_TextEdge] = []

    def add(self, trace: TraceRow, judgement: Judgement | None) -> None:
        """Add a trace of this prompt, with its judgement."""
        self._trace_ids.add(trace.id)
        if not self.ask(trace):
            return
        group = self._asked[-1].group
        text = (trace.output or "").strip()
        if trace.complete is False:
            # nobody knows how the model would have gone on
            text = ""
            self._tally.drops[INCOMPLETE] += 1
        elif text:
            self._add_output(trace, text, group, judgement)
        else:
            self._tally.drops["the trace has no output"] += 1
        if judgement:
            self._count_conflicts(judgement)
        if judgement and judgement.edit:
            self._add_edit(trace, text, group, judgement.edit)

    def ask(self, trace: TraceRow) -> bool:
        """Record that this trace asked the prompt; False for a run of several steps, whose prompt
        is its whole history."""
        group = group_of(trace.prompt_id, trace.cluster_id)
        if trace.calls > 1 and not self._whole_runs:
            self._tally.drops[SEVERAL] += 1
            return False
        self._asked.append(Asked(group, trace.id, trace.subject_id))
        return True

    def has_trace(self, trace_id: str) -> bool:
        """Return whether this trace was added."""
        return trace_id in self._trace_ids

    def _add_output(
        self, trace: TraceRow, text: str, group: str, judgement: Judgement | None
    ) -> None:
        draft = self._drafts.setdefault(text, _AnswerDraft(trace.output or "", group))
        if draft.source is not None:
            self._tally.drops["the same answer to the same prompt: counted once"] += 1
        else:
            draft.source, draft.text, draft.group = trace, trace.output or "", group
        draft.traces.append(trace)
        self._text_of_trace[trace.id] = text
        if judgement is None:
            return
        if judgement.good is not None and judgement.strength:
            draft.votes.append(
                _Vote(
                    judgement.good,
                    judgement.strength,
                    _origin(judgement),
                    judgement.feedback_ids,
                    judgement.automatic,
                )
            )
        draft.conflict = draft.conflict or judgement.conflict
        if judgement.value:
            draft.values.append(judgement.value)

    def _count_conflicts(self, judgement: Judgement) -> None:
        if judgement.conflict:
            self._tally.notes["answers with disagreeing raters"] += 1
            self._tally.notes["answers whose raters disagree evenly"] += judgement.good is None
        if judgement.edit_conflict:
            self._tally.notes["answers with different corrections"] += 1
            if judgement.edit is None:
                self._tally.drops["different corrections without a plurality"] += 1

    def _add_edit(self, trace: TraceRow, original: str, group: str, edit: Edit) -> None:
        text = edit.text.strip()
        if not text or text == original:
            self._tally.drops["the correction changes nothing"] += 1
            return
        draft = self._drafts.setdefault(text, _AnswerDraft(edit.text, group))
        draft.votes.append(_Vote(True, 1.0, "correction", edit.feedback_ids, edit.automatic))
        draft.traces.append(trace)
        if original:
            self._drafts[original].corrected = True
            self._drafts[original].corrected_by_person |= not edit.automatic
            self._edges.append(
                _TextEdge(text, original, "correction", 1.0, edit.feedback_ids, edit.automatic)
            )

    def compare(self, comparison: PairComparison) -> None:
        """Add a comparison of two traces, at least one of which is of this prompt."""
        better = self._text_of_trace.get(comparison.better)
        worse = self._text_of_trace.get(comparison.worse)
        if better is None or worse is None:
            if {comparison.better, comparison.worse} <= self._trace_ids:
                self._tally.drops["one of the compared answers was left out"] += 1
            else:
                self._tally.drops["the compared answers have different prompts"] += 1
        elif better == worse:
            self._tally.drops["the compared answers are the same text"] += 1
        elif comparison.decided:
            self._edges.append(
                _TextEdge(
                    better,
                    worse,
                    "preference",
                    comparison.strength,
                    comparison.feedback_ids,
                    comparison.automatic,
                )
            )
        elif comparison.conflict:
            self._tally.drops["no plurality for either answer"] += 1
        else:
            self._tally.drops["the compared answers are tied"] += 1

    def evidence(
        self, prompt_id: str, tools: list[dict[str, Any]] | None, cases: tuple[JudgingCase, ...]
    ) -> Evidence:
        """Return the evidence collected. The answers are in the order of a hash of their text, so
        that no choice depends on when or where they came from."""
        order = list(self._drafts)
        if len(order) > 1:
            order.sort(key=ids.fingerprint)
        all_answers = {text: self._drafts[text].answer() for text in order}

        # Answers below the minimum reward keep their position, but no judgement.
        left_out = self._below_min_reward(all_answers)
        answers = []
        for text, answer in all_answers.items():
            if text in left_out:
                answers.append(_without_judgements(answer))
            else:
                answers.append(self._without_withheld(answer))

        # Edges between the answers that are left, without those that only machines made for gate.
        edges = []
        for edge in self._edges:
            if edge.better in left_out or edge.worse in left_out:
                continue
            if not self._is_contradicted(edge, all_answers):
                edges.append(edge)
        permitted = [edge for edge in edges if not edge.automatic or self._split != "gate"]
        positions = {text: position for position, text in enumerate(order)}
        return Evidence(
            prompt_id,
            self._prompt,
            tools,
            self._split,
            tuple(answers),
            tuple(self._merged_edges(permitted, positions)),
            cases,
            tuple(self._asked),
            withheld_edges=len(edges) - len(permitted),
        )

    def _below_min_reward(self, answers: Mapping[str, JudgedText]) -> set[str]:
        """Return the texts whose number is below `min_reward`, and texts that are only edits of
        them. A verdict is no number."""
        min_reward = self._config.min_reward
        if min_reward is None:
            return set()
        below = set()
        for text, answer in answers.items():
            value = answer.value
            if value is not None and value.raw < min_reward and not value.verdict:
                below.add(text)
        if not below:
            return below
        reason = f"the number of the answer is below min_reward ({min_reward:g})"
        self._tally.drops[reason] += len(below)
        originals_of: dict[str, set[str]] = defaultdict(set)
        for edge in self._edges:
            if edge.origin == "correction":
                originals_of[edge.better].add(edge.worse)
        only_edits = set()
        for text, originals in originals_of.items():
            if originals <= below and self._drafts[text].source is None:
                only_edits.add(text)
        return below | only_edits

    def _without_withheld(self, answer: JudgedText) -> JudgedText:
        """Return the answer without judgements that may not be used: judgements by checkers and
        models alone cannot fill the gate, which has to catch the errors that they miss."""
        if self._split != "gate":
            return answer
        withheld = set()
        if answer.automatic:
            answer = answer._replace(good=None, strength=0.0, origin="", feedback_ids=())
            withheld.add(WITHHELD_JUDGEMENT)
        if answer.value is not None and answer.value.automatic:
            answer = answer._replace(value=None)
            withheld.add(WITHHELD_VALUE)
        return answer._replace(withheld=frozenset(withheld)) if withheld else answer

    def _is_contradicted(self, edge: _TextEdge, answers: Mapping[str, JudgedText]) -> bool:
        """Return whether people called the better side of a computed comparison bad and the worse
        good."""
        better, worse = answers[edge.better], answers[edge.worse]
        judged = better.by_people and worse.by_people
        if edge.automatic and judged and worse.good and not better.good:
            self._tally.drops["a computed comparison that people contradict"] += 1
            return True
        return False

    def _merged_edges(
        self, edges: Iterable[_TextEdge], positions: Mapping[str, int]
    ) -> Iterator[Edge]:
        """Yield at most one edge for each pair of texts: comparisons of equal texts in several
        traces are counted by the rule for raters, and may cancel out."""
        pairs: dict[tuple[str, str], list[_TextEdge]] = defaultdict(list)
        for edge in edges:
            first, second = sorted((edge.better, edge.worse), key=lambda text: positions[text])
            pairs[first, second].append(edge)
        for first, second in sorted(
            pairs, key=lambda pair: tuple(positions[text] for text in pair)
        ):
            counted = people_first(pairs[first, second])
            votes = count(counted, lambda edge: edge.better)
            if votes.side is None:
                self._tally.drops["comparisons of the same two texts contradict each other"] += 1
                continue
            better, worse = (first, second) if votes.side == first else (second, first)
            if len(counted) > 1:
                self._tally.drops["the same pair of texts: counted once"] += len(counted) - 1
            feedback_ids = set(chain.from_iterable(edge.feedback_ids for edge in counted))
            # in the alphabet, "correction" is before "preference", as it should be
            origin = min(edge.origin for edge in votes.winners)
            yield Edge(
                positions[better],
                positions[worse],
                origin,
                votes.lead(worse) / len(counted),
                tuple(sorted(feedback_ids)),
            )


def _without_judgements(answer: JudgedText) -> JudgedText:
    """Return the answer without its judgements, so that no shape makes a row of it."""
    return answer._replace(
        good=None, strength=0.0, origin="", feedback_ids=(), value=None, corrected=False
    )


def _origin(judgement: Judgement) -> str:
    if judgement.kind != "thumb":
        return judgement.kind or ""
    return "upvote" if judgement.good else "downvote"
