"""One prompt: from its traces and what was judged about them to distinct answers, and to edges
between them.

Lives here: equal texts become one answer, edits become answers, comparisons become edges; what may
not be used is left out and counted. Does not live here: reading (`read_evidence`), rows (`shapes/`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thumbwheel.core import ids
from thumbwheel.datasets.split import group_of
from thumbwheel.datasets.store import TraceRow
from thumbwheel.datasets.types import (
    REWARD,
    WITHHELD_JUDGEMENT,
    WITHHELD_VALUE,
    Answer,
    Asked,
    Case,
    DatasetConfig,
    Edge,
    Evidence,
    Message,
    Tally,
)
from thumbwheel.rewards.types import Comparison, Judgement, Value

SEVERAL = "the answer took several model or tool steps"


class _Vote(NamedTuple):
    """`signed` is the strength, negative against the text."""

    signed: float
    origin: str
    feedback_ids: tuple[str, ...]
    automatic: bool

    @property
    def of_person(self) -> bool:
        """Whether people said it themselves; a combined reward is computed, whoever is a part of
        it."""
        return not self.automatic and self.origin != REWARD


@dataclass(slots=True)
class _AnswerDraft:
    """A distinct text and what was found about it so far."""

    text: str
    group: str
    votes: list[_Vote] = field(default_factory=list)
    conflict: bool = False
    corrected: bool = False
    corrected_by_person: bool = False
    traces: list[TraceRow] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    own: TraceRow | None = None
    """The first trace whose output it is; None for the text of an edit that nobody gave as an
    answer."""

    @property
    def automatic(self) -> bool:
        """Whether no person's vote is among those that call it good or bad; who said neither had no
        say in it."""
        return bool(self.votes) and all(vote.automatic for vote in self.votes)

    def answer(self) -> Answer:
        """The rule once more, over the votes of all traces with this text."""
        self._let_people_speak()
        if len(self.votes) <= 1 and len(self.traces) == 1 and len(self.values) <= 1:
            return self._alone()
        total = sum(vote.signed for vote in self.votes)
        size = sum(abs(vote.signed) for vote in self.votes)
        good = None if abs(total) < 1e-9 else total > 0
        winning = [vote for vote in self.votes if good is not None and (vote.signed > 0) is good]
        origins = [vote.origin for vote in winning if vote.origin != "correction"] or [
            vote.origin for vote in winning
        ]
        subjects = sorted({trace.subject_id for trace in self.traces if trace.subject_id})
        tokens = self.own.token_ids if self.own else None
        return Answer(
            text=self.text,
            good=good,
            strength=0.0
            if good is None
            else max(abs(vote.signed) for vote in winning) * abs(total) / size,
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
            automatic=self.automatic,
        )

    def _let_people_speak(self) -> None:
        """What people said about one of the traces silences what was computed for another, and
        their edit what was computed for good."""
        votes_of_people = [vote for vote in self.votes if vote.of_person]
        values_of_people = [
            value for value in self.values if not value.automatic and value.kind != REWARD
        ]
        if values_of_people:
            self.values = values_of_people
        if votes_of_people:
            self.votes = votes_of_people
            if not values_of_people:
                self._take_sides()
        elif values_of_people:
            self.votes = []
        elif self.corrected_by_person:
            self.votes = [vote for vote in self.votes if vote.signed < 0]
            self.values = [
                value
                for value in self.values
                if not value.automatic or value.sides_with(good=False)
            ]

    def _take_sides(self) -> None:
        """Computed numbers on the other side than people give way to the people's verdict."""
        total = sum(vote.signed for vote in self.votes)
        if abs(total) < 1e-9:
            self.values = []
        elif any(not value.sides_with(total > 0) for value in self.values):
            feedback_ids = tuple(
                sorted({name for vote in self.votes for name in vote.feedback_ids})
            )
            unit = (1 + total / sum(abs(vote.signed) for vote in self.votes)) / 2
            self.values = [
                Value(unit, self.values[0].scale, self.votes[0].origin, feedback_ids, verdict=True)
            ]

    def _alone(self) -> Answer:
        """The same for what one trace and one vote say, which is most of what there is."""
        trace, own = self.traces[0], self.own
        vote = self.votes[0] if self.votes else None
        decided = vote if vote and abs(vote.signed) >= 1e-9 else None
        return Answer(
            self.text,
            decided.signed > 0 if decided else None,
            abs(decided.signed) if decided else 0.0,
            self.conflict,
            decided.origin if decided else "",
            self.corrected,
            self.group,
            tuple(sorted(set(vote.feedback_ids))) if vote else (),
            (trace.id,),
            (trace.subject_id,) if trace.subject_id else (),
            own.finish_reason if own else None,
            tuple(own.token_ids) if own and own.token_ids else None,
            self.values[0] if self.values else None,
            _logps(own),
            self.automatic,
        )


def _logps(trace: TraceRow | None) -> tuple[float, ...] | None:
    """Captured log-probabilities, one for each captured token; anything else is none."""
    if (
        trace is None
        or not trace.token_ids
        or not trace.logps
        or len(trace.logps) != len(trace.token_ids)
    ):
        return None
    return tuple(float(one) for one in trace.logps)


class _TextEdge(NamedTuple):
    """One text stands above another; `automatic`: no person said so."""

    better: str
    worse: str
    origin: str
    strength: float
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
        whole: bool = False,
    ) -> None:
        self._whole = whole
        self._prompt, self._split, self._config, self._tally = prompt, split, config, tally
        self._drafts: dict[str, _AnswerDraft] = {}
        self._met: set[str] = set()
        self._asked: list[Asked] = []
        self._of_trace: dict[str, str] = {}
        self._edges: list[_TextEdge] = []

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
        """Whether this trace asked the prompt in a way that one answer of a model can be about; a
        run of several steps is asked by its `whole` history only."""
        group = group_of(trace.prompt_id, trace.kept_with)
        if trace.calls > 1 and not self._whole:
            self._tally.drops[SEVERAL] += 1
            return False
        self._asked.append(Asked(group, trace.id, trace.subject_id))
        return True

    def met(self, trace_id: str) -> bool:
        """Whether this trace is one of this prompt."""
        return trace_id in self._met

    def _own(self, trace: TraceRow, text: str, group: str, judgement: Judgement | None) -> None:
        draft = self._drafts.setdefault(text, _AnswerDraft(trace.output or "", group))
        if draft.own is not None:
            self._tally.drops["the same answer to the same prompt: counted once"] += 1
        else:
            draft.own, draft.text, draft.group = trace, trace.output or "", group
        draft.traces.append(trace)
        self._of_trace[trace.id] = text
        if judgement and judgement.good is not None and judgement.strength:
            signed = judgement.strength if judgement.good else -judgement.strength
            draft.votes.append(
                _Vote(signed, _origin(judgement), judgement.feedback_ids, judgement.automatic)
            )
        draft.conflict = draft.conflict or bool(judgement and judgement.conflict)
        if judgement and judgement.value:
            draft.values.append(judgement.value)

    def _note(self, judgement: Judgement) -> None:
        if judgement.conflict:
            self._tally.notes["answers with disagreeing raters"] += 1
            self._tally.notes["answers whose raters disagree evenly"] += judgement.good is None
        if judgement.edit_conflict:
            self._tally.notes["answers with different corrections"] += 1
            if judgement.edit is None:
                self._tally.drops["different corrections without a plurality"] += 1

    def _edit(self, trace: TraceRow, original: str, group: str, judgement: Judgement) -> None:
        assert judgement.edit is not None  # noqa: S101 - narrows the type; the caller has checked it
        text = judgement.edit.text.strip()
        if not text or text == original:
            self._tally.drops["the correction changes nothing"] += 1
            return
        draft = self._drafts.setdefault(text, _AnswerDraft(judgement.edit.text, group))
        draft.votes.append(
            _Vote(1.0, "correction", judgement.edit.feedback_ids, judgement.edit.automatic)
        )
        draft.traces.append(trace)
        if original:
            self._drafts[original].corrected = True
            self._drafts[original].corrected_by_person |= not judgement.edit.automatic
            self._edges.append(
                _TextEdge(
                    text,
                    original,
                    "correction",
                    1.0,
                    judgement.edit.feedback_ids,
                    judgement.edit.automatic,
                )
            )

    def compare(self, one: Comparison) -> None:
        """What the preferences say about two traces, at least one of which is of this prompt."""
        better, worse = self._of_trace.get(one.better), self._of_trace.get(one.worse)
        if better is None or worse is None:
            known = {one.better, one.worse} <= self._met
            self._tally.drops[
                "one of the compared answers was left out"
                if known
                else "the compared answers have different prompts"
            ] += 1
        elif better == worse:
            self._tally.drops["the compared answers are the same text"] += 1
        elif not one.decided:
            self._tally.drops[
                "no plurality for either answer"
                if one.conflict
                else "the compared answers are tied"
            ] += 1
        else:
            self._edges.append(
                _TextEdge(
                    better, worse, "preference", one.strength, one.feedback_ids, one.automatic
                )
            )

    def evidence(
        self, prompt_id: str, tools: list[dict[str, Any]] | None, cases: tuple[Case, ...]
    ) -> Evidence:
        """What was collected; answers in the order of a hash of their text, so that no choice
        depends on when or where they came from."""
        order = (
            sorted(self._drafts, key=ids.fingerprint)
            if len(self._drafts) > 1
            else list(self._drafts)
        )
        places = {text: place for place, text in enumerate(order)}
        drafted = {text: self._drafts[text].answer() for text in order}
        left_out = self._below_floor(drafted)
        answers = [
            _without_word(drafted[text]) if text in left_out else self._permitted(drafted[text])
            for text in order
        ]
        above = [
            edge
            for edge in self._edges
            if edge.better not in left_out and edge.worse not in left_out
        ]
        above = [edge for edge in above if not self._contradicted(edge, drafted)]
        permitted = [edge for edge in above if not edge.automatic or self._split != "gate"]
        withheld = len(above) - len(permitted)
        edges = tuple(self._merged(permitted, places))
        asked = tuple(self._asked)
        return Evidence(
            prompt_id,
            self._prompt,
            tools,
            self._split,
            tuple(answers),
            edges,
            cases,
            asked,
            withheld_edges=withheld,
        )

    def _below_floor(self, answers: Mapping[str, Answer]) -> set[str]:
        """Texts whose number is below `min_reward`, and edits of nothing else. A verdict is no
        number."""
        floor = self._config.min_reward
        if floor is None:
            return set()
        values = {
            text: answer.value for text, answer in answers.items() if answer.value is not None
        }
        below = {text for text, value in values.items() if value.raw < floor and not value.verdict}
        if not below:
            return below
        self._tally.drops[f"the number of the answer is below min_reward ({floor:g})"] += len(below)
        edited: dict[str, set[str]] = defaultdict(set)
        for edge in self._edges:
            if edge.origin == "correction":
                edited[edge.better].add(edge.worse)
        return below | {
            text
            for text, originals in edited.items()
            if originals <= below and self._drafts[text].own is None
        }

    def _permitted(self, answer: Answer) -> Answer:
        """The answer with what may be used of its judgements: only checkers' and models' word
        cannot fill the gate, which has to catch what they miss."""
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

    def _contradicted(self, edge: _TextEdge, answers: Mapping[str, Answer]) -> bool:
        """Whether people called the better one of a computed comparison bad and the worse one good."""
        better, worse = answers[edge.better], answers[edge.worse]
        judged = better.by_people and worse.by_people
        if edge.automatic and judged and worse.good and not better.good:
            self._tally.drops["a computed comparison that people contradict"] += 1
            return True
        return False

    def _merged(self, edges: Iterable[_TextEdge], places: dict[str, int]) -> Iterator[Edge]:
        """One edge for each pair of texts; comparisons of equal texts in several traces are summed,
        and may cancel out."""
        pairs: dict[tuple[int, int], list[tuple[float, _TextEdge]]] = defaultdict(list)
        for edge in edges:
            first, second = places[edge.better], places[edge.worse]
            pairs[min(first, second), max(first, second)].append(
                (edge.strength if first < second else -edge.strength, edge)
            )
        for (first, second), every in sorted(pairs.items()):
            of_people = [(signed, edge) for signed, edge in every if not edge.automatic]
            found = of_people or every
            total = sum(signed for signed, _ in found)
            if abs(total) < 1e-9:
                self._tally.drops["comparisons of the same two texts contradict each other"] += 1
                continue
            better, worse = (first, second) if total > 0 else (second, first)
            if len(found) > 1:
                self._tally.drops["the same pair of texts: counted once"] += len(found) - 1
            named = tuple(sorted({one for _, edge in found for one in edge.feedback_ids}))
            origin = min(
                edge.origin for signed, edge in found if signed * total > 0
            )  # correction before preference
            yield Edge(better, worse, origin, abs(total) / len(found), named)


def _without_word(answer: Answer) -> Answer:
    """An answer that no shape makes a row of."""
    return answer._replace(
        good=None, strength=0.0, origin="", feedback_ids=(), value=None, corrected=False
    )


def _origin(judgement: Judgement) -> str:
    if judgement.kind != "thumb":
        return judgement.kind or ""
    return "upvote" if judgement.good else "downvote"
