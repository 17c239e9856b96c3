"""Agreement of judges: raters with each other, each rater with the crowd of the others, and models
with people.

The crowd of a rater is the plurality of all other verdicts on the same thing. Where two verdicts
lead together there is no crowd; the thing is left out for that rater and counted. A tie that was
given as a verdict is a verdict like the others. Models are never part of the crowd. A lone verdict
(`Statement.lone`: neither rater nor time) is a person's vote of its own for alpha and the crowd;
nobody knows which of them are one person's, so they have no coefficient of their own. Coefficients
are Krippendorff's alpha of all people and Cohen's kappa of each rater against the crowd
(`stats/agreement`).

`panel` works on plain verdicts; `agreement` reads an agent's feedback; `trust` asks a judge about
pairs that people compared, and states how far they agree, without which a judge may not gate
(`functions/judge.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import documents
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import feedback_queries
from thumbwheel.rewards.aggregate import (
    newest_per_speaker,
    plurality,
    scale_position,
    speaker_of,
    verdict_of,
)
from thumbwheel.rewards.cases import stored_cases
from thumbwheel.rewards.function import Case
from thumbwheel.rewards.functions.judge import Judge, pair_of, signature
from thumbwheel.rewards.label import PairVote, pair_votes
from thumbwheel.rewards.types import LabelConfig, Statement
from thumbwheel.stats.agreement import Agreement, Level, alpha, kappa

KIND = "judge_agreement"
MOST_RATERS = 100
"""Persons, and models, that a panel holds against the crowd: those with the most verdicts."""
_Verdict = tuple[str, str | None, Any]
"""(thing, rater or None, verdict)."""


@dataclass(frozen=True)
class RaterAgreement:
    """One rater against the crowd of the other people: `agreement` over `agreement.units` things;
    `torn`: things on which the crowd had no plurality, `alone`: things that nobody else judged."""

    rater: str
    verdicts: int
    agreement: Agreement
    torn: int
    alone: int


@dataclass(frozen=True)
class Panel:
    """Everybody's agreement on one kind of verdict. `people` is alpha of the persons; `alphas` has
    it under each metric."""

    kind: str
    people: Mapping[str, Agreement]
    raters: Sequence[RaterAgreement]
    judges: Sequence[RaterAgreement]

    def as_dict(self) -> dict[str, Any]:
        """Return the panel as a dict for JSON."""
        alphas = {metric: agreement.as_dict() for metric, agreement in self.people.items()}
        return {
            "kind": self.kind,
            "people": alphas,
            "raters": _plain(self.raters),
            "judges": _plain(self.judges),
        }


def _plain(raters: Sequence[RaterAgreement]) -> list[dict[str, Any]]:
    return [asdict(voice) | {"agreement": voice.agreement.as_dict()} for voice in raters]


LEADING = 3
"""Of the verdicts on a thing without one vote, the leading two are among so many."""


@dataclass(frozen=True)
class _Opinions:
    """The verdicts on one thing."""

    by_rater: dict[str, Any] = field(default_factory=dict)
    lone: list[Any] = field(default_factory=list)

    def of_people(self, judges: Collection[str]) -> list[Any]:
        """Return the verdicts of persons."""
        named = [verdict for rater, verdict in self.by_rater.items() if rater not in judges]
        return named + self.lone


@dataclass(frozen=True)
class Crowd:
    """How many persons gave each verdict on a thing. They are counted once, because each of
    thousands of raters is held against all of the others."""

    counts: Counter[Any]
    leading: Sequence[tuple[Any, int]]
    size: int

    @classmethod
    def of(cls, verdicts: Sequence[Any]) -> Crowd:
        """Count verdicts."""
        counts = Counter(verdicts)
        return cls(counts, counts.most_common(LEADING), len(verdicts))

    def without(self, verdict: Any) -> tuple[int, Any]:
        """Return size and plurality (or None) of the crowd without one vote for `verdict`."""
        counts = {other: count for other, count in self.leading if other != verdict}
        if self.counts[verdict] > 1:
            counts[verdict] = self.counts[verdict] - 1
        return self.size - 1, plurality(counts)

    def whole(self) -> tuple[int, Any]:
        """Return the size and the plurality (or None) of the crowd."""
        return self.size, plurality(dict(self.leading))


def panel(
    kind: str,
    verdicts: Iterable[_Verdict],
    judges: Collection[str] = (),
    metrics: Sequence[Level] = ("nominal",),
) -> Panel:
    """Build a panel from (thing, rater, verdict), one verdict of a rater on a thing, or several
    without a rater; `judges` are the raters that are models. The order of the verdicts changes
    nothing.

    With the metrics ordinal and interval the verdicts are numbers.
    """
    opinions_on: dict[str, _Opinions] = defaultdict(_Opinions)
    for thing, rater, verdict in verdicts:
        if rater is None:
            opinions_on[thing].lone.append(verdict)
        else:
            opinions_on[thing].by_rater[rater] = verdict
    # By name: the intervals draw things by their positions.
    opinions = [opinions_on[thing] for thing in sorted(opinions_on)]
    units = [on_thing.of_people(judges) for on_thing in opinions]
    held: dict[str, list[tuple[Any, Crowd]]] = defaultdict(list)
    for on_thing, of_people in zip(opinions, units, strict=True):
        crowd = Crowd.of(of_people)
        for rater, verdict in on_thing.by_rater.items():
            held[rater].append((verdict, crowd))
    people = [rater for rater in held if rater not in judges]
    models = [rater for rater in held if rater in judges]
    return Panel(
        kind,
        {metric: alpha(units, metric) for metric in metrics},
        [_against(rater, held[rater], is_person=True) for rater in _busiest(people, held)],
        [_against(rater, held[rater], is_person=False) for rater in _busiest(models, held)],
    )


def _busiest(raters: Iterable[str], held: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the raters with the most verdicts, by name: each needs an interval, which takes a
    while, and an app may name thousands."""
    most = sorted(raters, key=lambda rater: (-len(held[rater]), rater))[:MOST_RATERS]
    return sorted(most)


def _against(rater: str, held: Sequence[tuple[Any, Crowd]], *, is_person: bool) -> RaterAgreement:
    """Hold the verdicts of a rater against the crowd of the other persons."""
    verdicts, crowd_verdicts, torn, alone = list[Any](), list[Any](), 0, 0
    for verdict, crowd in held:
        size, crowd_verdict = crowd.without(verdict) if is_person else crowd.whole()
        if not size:
            alone += 1
        elif crowd_verdict is None:
            torn += 1
        else:
            verdicts.append(verdict)
            crowd_verdicts.append(crowd_verdict)
    return RaterAgreement(rater, len(held), kappa(verdicts, crowd_verdicts), torn, alone)


def agreement(ws: Workspace, agent: str) -> list[Panel]:
    """Return one panel for each kind of verdict that two raters gave on one thing: good or bad,
    ratings, comparisons of pairs."""
    agent_id = require_agent(ws, agent).id
    with ws.db.read() as connection:
        names = {
            rater: f"{name} ({kind})" if kind != "person" else name
            for rater, (name, kind) in _names(connection, agent_id).items()
        }
        speakers = _Speakers(names, feedback_queries.machine_raters(connection, agent_id))
        opinions, numbers = _spoken(connection, agent_id, speakers)
        sides: list[_Verdict] = []
        for (first, second), vote in _compared(connection, agent_id):
            sides.append((f"{first} {second}", speakers.name_of(vote), vote.side))
    kinds: list[tuple[str, list[_Verdict], tuple[Level, ...]]] = [
        ("good or bad", opinions, ("nominal",)),
        ("ratings", numbers, ("ordinal", "interval")),
        ("comparisons", sides, ("nominal", "ordinal")),
    ]
    judges = speakers.judges
    panels = [panel(kind, verdicts, judges, metrics) for kind, verdicts, metrics in kinds]
    return [
        panel_of_kind
        for panel_of_kind in panels
        if any(coefficient.units for coefficient in panel_of_kind.people.values())
        or any(judge.agreement.units for judge in panel_of_kind.judges)
    ]


def _names(connection: sa.Connection, agent_id: str) -> dict[str, tuple[str, str]]:
    """Return rater -> (name, kind); names that two sources share are distinguished by the end of
    the id."""
    rater_names = feedback_queries.rater_names(connection, agent_id)
    counts = Counter(name for name, _ in rater_names.values())
    return {
        rater: (name if counts[name] == 1 else f"{name} {rater[-6:]}", kind)
        for rater, (name, kind) in rater_names.items()
    }


@dataclass
class _Speakers:
    """The names of those who voted. A name that several senders use is one speaker for each of
    them, but what it calls itself, a person or a model, holds for all."""

    names: Mapping[str, str]
    """Rater -> name."""
    machines: Collection[str]
    """The raters that are no persons."""
    judges: set[str] = field(default_factory=set)
    """The names of machines that voted."""

    def name_of(self, vote: Statement | PairVote) -> str | None:
        """Return the name of the rater who voted, or None for a lone vote."""
        if vote.lone:
            return None
        if vote.rater_id is None:
            return vote.rater
        name = self.names[vote.rater_id] + vote.rater.removeprefix(vote.rater_id)
        if vote.rater_id in self.machines:
            self.judges.add(name)
        return name


def _spoken(
    connection: sa.Connection, agent_id: str, speakers: _Speakers
) -> tuple[list[_Verdict], list[_Verdict]]:
    """Return (trace, rater, good) and (trace, rater, number on its scale from 0 to 1), the newest
    of each rater."""
    rule = LabelConfig()
    opinions, numbers = list[_Verdict](), list[_Verdict]()
    for trace_id, group in groupby(
        feedback_queries.statements(connection, agent_id, None), key=itemgetter(0)
    ):
        statements = [
            statement for _, statement in group if statement.kind not in ("correction", "outcome")
        ]

        judging = [s for s in statements if verdict_of(s, rule) is not None]
        latest, _ = newest_per_speaker(judging, speaker_of, lambda s: verdict_of(s, rule))
        for statement in latest:
            opinions.append((trace_id, speakers.name_of(statement), verdict_of(statement, rule)))

        rating = [s for s in statements if scale_position(s) is not None]
        latest, _ = newest_per_speaker(rating, speaker_of, lambda s: s.value)
        for statement in latest:
            share, _ = scale_position(statement) or (0.0, None)
            numbers.append((trace_id, speakers.name_of(statement), round(share, 9)))
    return opinions, numbers


def _compared(
    connection: sa.Connection, agent_id: str
) -> Iterator[tuple[tuple[str, str], PairVote]]:
    """Yield (pair of traces, vote) by the rule for raters: the newest vote of each, and all lone
    ones. A rater who gives two sides at the same time is left out."""
    votes_on = pair_votes(feedback_queries.preferences(connection, agent_id, None))
    for pair, votes in votes_on.items():
        latest, _ = newest_per_speaker(votes, lambda vote: (vote.rater,), lambda vote: vote.side)
        for vote in latest:
            yield pair, vote


def trust(ws: Workspace, agent: str, judge: Judge, most: int) -> dict[str, Any]:
    """Ask the judge about at most `most` pairs that people compared, and store the signed statement
    of how far it agrees with their plurality.

    The first answer of a pair is chosen by the traces' hashed ids, so that neither side is
    favoured. Raises DataError if people compared nothing. Pairs without a verdict are counted, but
    not as agreement.
    """
    learner = require_agent(ws, agent)
    with ws.db.read() as connection:
        crowd = _crowd(connection, learner.id)
        chosen = sorted(crowd, key=ids.fingerprint)[:most]
        cases = _cases(connection, learner, {name for pair in chosen for name in pair})
    if not chosen:
        fix = "Import comparisons: thumbwheel import preference FILE"
        raise DataError(
            f"judge {judge.config.model!r}",
            f"people compared no answers of {agent!r} to measure it by",
            fix,
        )
    asked = {
        (first, second): pair_of(cases[first].prompt, cases[first].text, cases[second].text)
        for first, second in chosen
    }
    verdicts = judge.compare(list(dict.fromkeys(asked.values())))
    people, model, prompts = list[int](), list[int](), list[str]()
    for (first, second), pair in asked.items():
        if (value := verdicts[pair].value) is not None:
            side = (value > 0.5) - (value < 0.5)
            people.append(crowd[first, second])
            model.append(side if pair[1] == cases[first].text else -side)
            prompts.append(pair[0])
    kappa_figures = kappa(people, model, prompts).as_dict()
    facts = {
        "agent": agent,
        "judge": judge.fingerprint(),
        "model": judge.config.model,
        "criteria": judge.config.criteria,
    }
    reasons = Counter(
        reason.reason for reason in verdicts.values() if reason.value is None
    ).most_common(3)
    stated = {
        **facts,
        "kappa": kappa_figures["value"],
        "low": kappa_figures["low"],
        "high": kappa_figures["high"],
        "pairs": kappa_figures["units"],
        "prompts": len(set(prompts)),
        "share": kappa_figures["share"],
    }
    stated |= {
        "without_verdict": len(asked) - len(people),
        "reasons": [list(reason) for reason in reasons],
    }
    stated["signature"] = signature(stated, make_seal(ws.home.signing))
    return stated | {"sha256": documents.save(ws, KIND, stated)}


def _crowd(connection: sa.Connection, agent_id: str) -> dict[tuple[str, str], int]:
    """Return pair of traces -> the side that most people took; pairs without a plurality are left
    out."""
    machines = feedback_queries.machine_raters(connection, agent_id)
    votes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for pair, vote in _compared(connection, agent_id):
        if vote.rater_id not in machines:
            votes[pair][vote.side] += 1
    crowd = {pair: plurality(sides) for pair, sides in votes.items()}
    return {pair: side for pair, side in crowd.items() if side is not None}


def _cases(connection: sa.Connection, agent: Agent, trace_ids: Collection[str]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for batch in stored_cases(connection, agent, {"text", "prompt"}):
        for stored in batch:
            if stored.case.target_id in trace_ids:
                cases[str(stored.case.target_id)] = stored.case
    return cases
