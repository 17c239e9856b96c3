"""Agreement of judges: raters with each other, each rater with the crowd of the others, and models
with people.

The crowd of a rater is the plurality of all other verdicts on the same thing. Where two verdicts
lead together there is no crowd; the thing is left out for that rater and counted. A tie that was
given as a verdict is a verdict like the others. Models are never part of the crowd. Coefficients
are Krippendorff's alpha of all people and Cohen's kappa of each rater against the crowd
(`stats/agreement`).

`panel` works on plain verdicts; `agreement` reads an agent's feedback; `trust` asks a judge about
pairs that people compared, and states how far they agree, without which a judge may not gate
(`functions/judge.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import documents
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import store
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
from thumbwheel.rewards.types import LabelConfig
from thumbwheel.stats.agreement import Agreement, Level, alpha, kappa

KIND = "judge_agreement"


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
        """For JSON."""
        alphas = {metric: agreement.as_dict() for metric, agreement in self.people.items()}
        return {
            "kind": self.kind,
            "people": alphas,
            "raters": _plain(self.raters),
            "judges": _plain(self.judges),
        }


def _plain(raters: Sequence[RaterAgreement]) -> list[dict[str, Any]]:
    return [asdict(voice) | {"agreement": voice.agreement.as_dict()} for voice in raters]


def panel(
    kind: str,
    verdicts: Iterable[tuple[str, str, Any]],
    judges: Collection[str] = (),
    metrics: Sequence[Level] = ("nominal",),
) -> Panel:
    """From (thing, rater, verdict), one verdict of a rater on a thing; `judges` are the raters that
    are models.

    With the metrics ordinal and interval the verdicts are numbers.
    """
    by_thing: dict[str, dict[str, Any]] = defaultdict(dict)
    of_people: dict[str, dict[str, Any]] = defaultdict(dict)
    raters: set[str] = set()
    for thing, rater, verdict in verdicts:
        by_thing[thing][rater] = verdict
        raters.add(rater)
        if rater not in judges:
            of_people[thing][rater] = verdict
    units = [list(of_people[thing].values()) for thing in by_thing]
    against_crowd = [_against(rater, by_thing, of_people) for rater in sorted(raters)]
    return Panel(
        kind,
        {metric: alpha(units, metric) for metric in metrics},
        [rater for rater in against_crowd if rater.rater not in judges],
        [rater for rater in against_crowd if rater.rater in judges],
    )


def _against(
    rater: str, things: Mapping[str, Mapping[str, Any]], people: Mapping[str, Mapping[str, Any]]
) -> RaterAgreement:
    verdicts, crowd_verdicts, torn, alone = list[Any](), list[Any](), 0, 0
    for thing, verdicts_on in things.items():
        if rater not in verdicts_on:
            continue
        others = Counter(verdict for name, verdict in people[thing].items() if name != rater)
        crowd = plurality(others)
        if not others:
            alone += 1
        elif crowd is None:
            torn += 1
        else:
            verdicts.append(verdicts_on[rater])
            crowd_verdicts.append(crowd)
    judged = sum(rater in verdicts_on for verdicts_on in things.values())
    return RaterAgreement(rater, judged, kappa(verdicts, crowd_verdicts), torn, alone)


def agreement(ws: Workspace, agent: str) -> list[Panel]:
    """One panel for each kind of verdict that two raters gave on one thing: good or bad, ratings,
    comparisons of pairs."""
    agent_id = require_agent(ws, agent)
    with ws.db.read() as connection:
        names = {
            rater: f"{name} ({kind})" if kind != "person" else name
            for rater, (name, kind) in _names(connection, agent_id).items()
        }
        judges = {names[rater] for rater in store.machine_raters(connection, agent_id)}
        opinions, numbers = _spoken(connection, agent_id, names)
        sides = [
            (f"{first} {second}", names.get(rater, rater), side)
            for (first, second), rater, side in _compared(connection, agent_id)
        ]
    kinds: list[tuple[str, list[tuple[str, str, Any]], tuple[Level, ...]]] = [
        ("good or bad", opinions, ("nominal",)),
        ("ratings", numbers, ("ordinal", "interval")),
        ("comparisons", sides, ("nominal", "ordinal")),
    ]
    panels = [panel(kind, verdicts, judges, metrics) for kind, verdicts, metrics in kinds]
    return [
        panel_of_kind
        for panel_of_kind in panels
        if any(coefficient.units for coefficient in panel_of_kind.people.values())
        or any(judge.agreement.units for judge in panel_of_kind.judges)
    ]


def _names(connection: sa.Connection, agent_id: str) -> dict[str, tuple[str, str]]:
    """Rater -> (name, kind); names that two sources share are told apart by the id."""
    rater_names = store.rater_names(connection, agent_id)
    counts = Counter(name for name, _ in rater_names.values())
    return {
        rater: (name if counts[name] == 1 else f"{name} {rater[-6:]}", kind)
        for rater, (name, kind) in rater_names.items()
    }


def _spoken(
    connection: sa.Connection, agent_id: str, names: Mapping[str, str]
) -> tuple[list[Any], list[Any]]:
    """(trace, rater, good) and (trace, rater, number on its scale from 0 to 1), the newest of each
    rater."""
    rule = LabelConfig()
    opinions, numbers = list[tuple[str, str, Any]](), list[tuple[str, str, Any]]()
    for trace_id, group in groupby(store.statements(connection, agent_id, None), key=itemgetter(0)):
        statements = [
            statement for _, statement in group if statement.kind not in ("correction", "outcome")
        ]

        judging = [s for s in statements if verdict_of(s, rule) is not None]
        latest, _ = newest_per_speaker(judging, speaker_of, lambda s: verdict_of(s, rule))
        for statement in latest:
            rater = names.get(statement.rater, statement.rater)
            opinions.append((trace_id, rater, verdict_of(statement, rule)))

        rating = [s for s in statements if scale_position(s) is not None]
        latest, _ = newest_per_speaker(rating, speaker_of, lambda s: s.value)
        for statement in latest:
            share, _ = scale_position(statement) or (0.0, None)
            rater = names.get(statement.rater, statement.rater)
            numbers.append((trace_id, rater, round(share, 9)))
    return opinions, numbers


def _compared(connection: sa.Connection, agent_id: str) -> list[tuple[tuple[str, str], str, int]]:
    """(pair of traces, rater, side); the newest of each rater. A rater who gives two sides at the
    same time is left out."""
    newest_time: dict[tuple[tuple[str, str], str], datetime] = {}
    newest_sides: dict[tuple[tuple[str, str], str], set[int]] = {}
    for preference in store.preferences(connection, agent_id, None):
        ranks: dict[str, int] = {}
        for rank, tied in enumerate(preference.ranking):
            ranks |= dict.fromkeys(tied, rank)
        for first, second in combinations(sorted(ranks), 2):
            difference = ranks[second] - ranks[first]
            side = (difference > 0) - (difference < 0)
            key = ((first, second), preference.rater)
            if key not in newest_time or preference.at > newest_time[key]:
                newest_time[key] = preference.at
                newest_sides[key] = {side}
            elif preference.at == newest_time[key]:
                newest_sides[key].add(side)
    single = {key: sides for key, sides in newest_sides.items() if len(sides) == 1}
    return [(pair, rater, next(iter(sides))) for (pair, rater), sides in single.items()]


def trust(ws: Workspace, agent: str, judge: Judge, most: int) -> dict[str, Any]:
    """Ask the judge about at most `most` pairs that people compared, and keep the signed statement
    of how far it agrees with their plurality.

    Which answer of a pair is called the first follows the traces' hashed ids, so that neither side
    is favoured by it. Raises DataError where people compared nothing. Pairs without a verdict are
    counted and no agreement.
    """
    agent_id = require_agent(ws, agent)
    with ws.db.read() as connection:
        crowd = _crowd(connection, agent_id)
        chosen = sorted(crowd, key=ids.fingerprint)[:most]
        cases = _cases(connection, agent, {name for pair in chosen for name in pair})
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
    """Pair of traces -> the side that most people took; pairs without a plurality are left out."""
    machines = store.machine_raters(connection, agent_id)
    votes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for pair, rater, side in _compared(connection, agent_id):
        if rater not in machines:
            votes[pair][side] += 1
    crowd = {pair: plurality(sides) for pair, sides in votes.items()}
    return {pair: side for pair, side in crowd.items() if side is not None}


def _cases(connection: sa.Connection, agent: str, trace_ids: Collection[str]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for batch in stored_cases(connection, agent, {"text", "prompt"}):
        for stored in batch:
            if stored.case.target_id in trace_ids:
                cases[str(stored.case.target_id)] = stored.case
    return cases
