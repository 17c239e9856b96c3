"""One prompt: from its traces and what was judged about them to distinct answers, and to edges between them.

Lives here: equal texts become one answer, edits become answers, comparisons become edges; what may not be used is left out and
counted. Does not live here: reading (`gather`), rows (`shapes/`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thumbwheel.core import ids
from thumbwheel.datasets.split import group_of, split_of
from thumbwheel.datasets.store import TraceRow
from thumbwheel.datasets.types import Answer, Asked, Case, DatasetConfig, Edge, Evidence, Message, Tally
from thumbwheel.rewards.types import Comparison, Judgement, Value

MACHINES = "only checkers or models judged it: not for the gate"


class _Vote(NamedTuple):
    """`signed` is the strength, negative against the text."""

    signed: float
    origin: str
    feedback_ids: tuple[str, ...]
    automatic: bool


@dataclass(slots=True)
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

    @property
    def automatic(self) -> bool:
        """Whether no person's vote is among those that call it good or bad; who said neither had no say in it."""
        return bool(self.votes) and all(vote.automatic for vote in self.votes)

    def answer(self) -> Answer:
        """The rule once more, over the votes of all traces with this text."""
        if len(self.votes) <= 1 and len(self.traces) == 1 and len(self.values) <= 1:
            return self._alone()
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
            automatic=self.automatic,
        )

    def _alone(self) -> Answer:
        """The same for what one trace and one vote say, which is most of what there is."""
        trace, own = self.traces[0], self.own
        vote = self.votes[0] if self.votes else None
        decided = vote if vote and abs(vote.signed) >= 1e-9 else None
        return Answer(
            self.text, decided.signed > 0 if decided else None, abs(decided.signed) if decided else 0.0, self.conflict,
            decided.origin if decided else "", self.corrected, self.group, tuple(sorted(set(vote.feedback_ids))) if vote else (),
            (trace.id,), (trace.subject_id,) if trace.subject_id else (), own.finish_reason if own else None,
            tuple(own.token_ids) if own and own.token_ids else None, self.values[0] if self.values else None, _logps(own), self.automatic,
        )  # fmt: skip


def _logps(trace: TraceRow | None) -> tuple[float, ...] | None:
    """Captured log-probabilities, one for each captured token; anything else is none."""
    if trace is None or not trace.token_ids or not trace.logps or len(trace.logps) != len(trace.token_ids):
        return None
    return tuple(float(one) for one in trace.logps)


class _Above(NamedTuple):
    """One text stands above another; `automatic`: no person said so."""

    better: str
    worse: str
    origin: str
    strength: float
    feedback_ids: tuple[str, ...]
    automatic: bool


class Resolving:
    """Collects the answers and edges of one prompt."""

    def __init__(self, prompt: list[Message], split: str, config: DatasetConfig, tally: Tally, *, whole: bool = False) -> None:
        self._whole = whole
        self._prompt, self._split, self._config, self._tally = prompt, split, config, tally
        self._drafts: dict[str, _Draft] = {}
        self._met: set[str] = set()
        self._asked: list[Asked] = []
        self._of_trace: dict[str, str] = {}
        self._edges: list[_Above] = []

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
        """Whether this trace asked the prompt in a way that one answer of a model can be about; a run of several steps is asked by its
        `whole` history only."""
        group = group_of(trace.prompt_id, trace.kept_with)
        if split_of(group, self._config) != self._split:
            self._tally.drops[f"the prompt also stands in {self._split}"] += 1
            return False
        if trace.calls > 1 and not self._whole:
            self._tally.drops["the answer took several model or tool steps"] += 1
            return False
        self._asked.append(Asked(group, trace.id, trace.subject_id))
        return True

    def met(self, trace_id: str) -> bool:
        """Whether this trace is one of this prompt."""
        return trace_id in self._met

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
            draft.votes.append(_Vote(signed, _origin(judgement), judgement.feedback_ids, judgement.automatic))
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
                self._tally.drops["different corrections without a majority"] += 1

    def _edit(self, trace: TraceRow, original: str, group: str, judgement: Judgement) -> None:
        assert judgement.edit is not None  # noqa: S101 - narrows the type; the caller has checked it
        text = judgement.edit.text.strip()
        if not text or text == original:
            self._tally.drops["the correction changes nothing"] += 1
            return
        draft = self._drafts.setdefault(text, _Draft(judgement.edit.text, group))
        draft.votes.append(_Vote(1.0, "correction", judgement.edit.feedback_ids, judgement.edit.automatic))
        draft.traces.append(trace)
        if original:
            self._drafts[original].corrected = True
            self._edges.append(_Above(text, original, "correction", 1.0, judgement.edit.feedback_ids, judgement.edit.automatic))

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
            self._edges.append(_Above(better, worse, "preference", one.strength, one.feedback_ids, one.automatic))

    def evidence(self, prompt_id: str, tools: list[dict[str, Any]] | None, cases: tuple[Case, ...]) -> Evidence:
        """What was collected; answers in the order of a hash of their text, so that no choice depends on when or where they came from."""
        if cases and split_of(group_of(prompt_id), self._config) != self._split:
            self._tally.drops[f"the prompt also stands in {self._split}"] += len(cases)
            cases = ()
        order = sorted(self._drafts, key=ids.fingerprint) if len(self._drafts) > 1 else list(self._drafts)
        places = {text: place for place, text in enumerate(order)}
        answers = [self._permitted(self._drafts[text].answer()) for text in order]
        edges = self._merged([edge for edge in self._edges if self._may_judge(edge.automatic)], places)
        return Evidence(prompt_id, self._prompt, tools, self._split, tuple(answers), tuple(edges), cases, tuple(self._asked))

    def _permitted(self, answer: Answer) -> Answer:
        """The answer with what may be used of its judgements."""
        floor = self._config.min_reward
        if floor is not None and answer.value is not None and answer.value.raw < floor:
            self._tally.drops[f"the number of the answer is below min_reward ({floor:g})"] += 1
            return answer._replace(good=None, strength=0.0, origin="", feedback_ids=(), value=None)
        kept = answer
        if self._split == "gate" and answer.automatic:
            kept = kept._replace(good=None, strength=0.0, origin="", feedback_ids=())
        if self._split == "gate" and answer.value is not None and answer.value.automatic:
            kept = kept._replace(value=None)
        if kept is not answer:
            self._tally.drops[MACHINES] += 1
        return kept

    def _may_judge(self, automatic: bool) -> bool:
        """What only checkers and models said cannot fill the gate, which has to catch what they miss."""
        if automatic and self._split == "gate":
            self._tally.drops[MACHINES] += 1
            return False
        return True

    def _merged(self, edges: Iterable[_Above], places: dict[str, int]) -> Iterator[Edge]:
        """One edge for each pair of texts; comparisons of equal texts in several traces are summed, and may cancel out."""
        pairs: dict[tuple[int, int], list[tuple[float, _Above]]] = defaultdict(list)
        for edge in edges:
            first, second = places[edge.better], places[edge.worse]
            pairs[min(first, second), max(first, second)].append((edge.strength if first < second else -edge.strength, edge))
        for (first, second), found in sorted(pairs.items()):
            total = sum(signed for signed, _ in found)
            if abs(total) < 1e-9:
                self._tally.drops["comparisons of the same two texts contradict each other"] += 1
                continue
            better, worse = (first, second) if total > 0 else (second, first)
            if len(found) > 1:
                self._tally.drops["the same pair of texts: counted once"] += len(found) - 1
            named = tuple(sorted({one for _, edge in found for one in edge.feedback_ids}))
            origin = min(edge.origin for signed, edge in found if signed * total > 0)  # correction before preference
            yield Edge(better, worse, origin, abs(total) / len(found), named)


def _origin(judgement: Judgement) -> str:
    if judgement.kind != "thumb":
        return judgement.kind or ""
    return "upvote" if judgement.good else "downvote"
