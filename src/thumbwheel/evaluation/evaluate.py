"""`evaluate`: a candidate against the incumbent on held-out rows. Read this first.

The primary measure is the success of fresh greedy answers on cases; where there are none, how well recorded answers are ranked. What was
evaluated is stored under a key of everything that the result follows from, so the same question has the same, stored answer, and a
question about other rows is counted as another read of what was held out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare, store
from thumbwheel.evaluation.compare import Logged, Pair
from thumbwheel.evaluation.gate import gate_level
from thumbwheel.evaluation.measure import BASE, Sides, examples_of, judge, opinions, paired, require
from thumbwheel.evaluation.rows import HeldOut, gate_rows
from thumbwheel.evaluation.types import SUCCESS, Case, Changed, Evaluation, EvaluationConfig, Given, Guard, Judged, Measure
from thumbwheel.models import reward_models, versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.rewards.function import Status

LIVE = "live"
"""The alias of what runs today."""
METHOD = 1
"""Raise it when the meaning of a result changes, so that stored evaluations are not taken for new ones."""


@dataclass(frozen=True)
class _Measured:
    """What the two sides gave."""

    primary: Measure
    fresh: bool
    preferences: tuple[Measure, ...]
    opinions: tuple[Measure, ...]
    guards: tuple[Guard, ...]
    slices: tuple[Measure, ...]
    examples: tuple[Changed, ...]
    gate_low: float
    dropped: Counter[str]
    notes: list[str]


def evaluate(ws: Workspace, agent: str, version: str, config: EvaluationConfig | None = None, *, against: str | None = None) -> Evaluation:
    """Measure `version` and what it is compared with on the same held-out rows, and store the result; the stored one, where it exists.

    `against`: a version name; without it the version behind the alias `live`, else the candidate's base. Raises DataError without
    held-out rows, InputError for a version that is no candidate for anything, ModelError for a base that has changed.
    """
    config = config or ws.settings(EvaluationConfig, "evaluation")
    if config.reward_model is not None:
        config = config.model_copy(update={"reward_model": reward_models.find(ws, agent, config.reward_model).name})
    candidate = versions.version(ws, agent, version)
    incumbent = _incumbent(ws, candidate, against)
    rows = gate_rows(ws, candidate)
    key = _key(candidate, incumbent, rows, config)
    with ws.db.read() as connection:
        known = store.find(connection, candidate.id)
    stored = next((one for one in known if one.key == key), None)
    if stored is not None:
        return stored
    read = {one.rows for one in known} | {rows.fingerprint}
    measured = _measure(ws, candidate, incumbent, rows, config, len(read))
    evaluation = _evaluation(candidate, incumbent, rows, config, measured, len(read), key)
    agent_id = versions.require_agent(ws, agent)
    return ws.db.write(lambda c: store.add(c, agent_id, evaluation))


def by_id(ws: Workspace, evaluation_id: str) -> Evaluation | None:
    """A stored evaluation."""
    with ws.db.read() as connection:
        return store.by_id(connection, evaluation_id)


def evaluations(ws: Workspace, agent: str, version: str) -> list[Evaluation]:
    """The stored evaluations of a version, oldest first."""
    with ws.db.read() as connection:
        return store.find(connection, versions.version(ws, agent, version).id)


def base_of(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """The version without adapter over which `version` was made."""
    bases = (one for one in versions.versions(ws, version.agent) if one.adapter is None)
    found = next((one for one in bases if one.base_fingerprint == version.base_fingerprint), None)
    if found is None:
        raise InputError(f"version {version.name!r} of agent {version.agent!r}", "its base is not among the versions", "Train a new one")
    return found


def _incumbent(ws: Workspace, candidate: ModelVersion, against: str | None) -> ModelVersion:
    if candidate.adapter is None:
        raise InputError(f"version {candidate.name!r} of agent {candidate.agent!r}", "it is a base without an adapter", "Train one")
    base = base_of(ws, candidate)
    live = versions.aliases_of(ws, candidate.agent).get(LIVE)
    chosen = versions.version(ws, candidate.agent, against) if against else versions.by_id(ws, live) if live else base
    if chosen.id == candidate.id or chosen.base_fingerprint != candidate.base_fingerprint:
        if against is None:
            return base
        why = "it is the same version" if chosen.id == candidate.id else "it stands on another base, so the two are not loaded alike"
        raise InputError(f"version {chosen.name!r} to compare {candidate.name!r} with", why, f"Compare with {base.name!r}")
    return chosen


def _key(candidate: ModelVersion, incumbent: ModelVersion, rows: HeldOut, config: EvaluationConfig) -> str:
    sides = [[one.id, one.base_fingerprint, one.adapter] for one in (candidate, incumbent)]
    return ids.fingerprint([METHOD, sides, rows.basis, rows.fingerprint, config.model_dump(mode="json")])


def _measure(
    ws: Workspace, candidate: ModelVersion, incumbent: ModelVersion, rows: HeldOut, config: EvaluationConfig, reads: int
) -> _Measured:
    sides = Sides.load(ws, base_of(ws, candidate), [candidate, incumbent], config)
    names = (incumbent.id if incumbent.adapter else BASE, candidate.id)
    logged, refused = _logged(sides, names, rows.given, config)
    dropped = rows.dropped + Counter({"recorded answer does not fit the model": refused} if refused else {})
    ranked = compare.preferences(logged, config.level)
    nll = compare.nll_guard(logged)
    if not rows.cases:
        if not ranked:
            raise DataError(
                f"version {candidate.name!r}", "the gate split has no pair and not both good and bad answers", "Add cases or feedback"
            )
        low = compare.preferences(logged, gate_level(config.level, reads))[0].low
        return _Measured(ranked[0], False, ranked, (), (nll,), (), (), low, dropped, _notes(sides, ranked[0]))
    before, after = _answers(sides, names, rows.cases, config)
    places = list(paired(before, after))
    judged = {place for place, *_ in places}
    dropped.update(_unjudged(one) for place, one in enumerate(after) if place not in judged)
    if not places:
        raise DataError(f"{len(rows.cases)} cases", f"no answer could be judged: {_reasons(after)}", "Look at the checkers of the cases")
    pairs = [Pair(rows.cases[place], first, second) for place, first, second in places]
    primary = compare.success(SUCCESS, pairs, config.level)
    texts = ([before[place].text for place, *_ in places], [after[place].text for place, *_ in places])
    return _Measured(
        primary, True, ranked, _opinions(ws, candidate.agent, pairs, texts, config), (*compare.generation_guards(before, after), nll),
        compare.slices(pairs, config.level), compare.most_changed(pairs, *texts, config.examples),
        compare.success(SUCCESS, pairs, gate_level(config.level, reads)).low, dropped, _notes(sides, primary),
    )  # fmt: skip


def _answers(sides: Sides, names: tuple[str, str], cases: Sequence[Case], config: EvaluationConfig) -> tuple[list[Judged], list[Judged]]:
    require(sides, cases)
    prompts = [case.prompt for case in cases]
    before = judge(cases, sides.answers(names[0], prompts, config, "answers before"))
    return before, judge(cases, sides.answers(names[1], prompts, config, "answers after"))


def _opinions(
    ws: Workspace, agent: str, pairs: Sequence[Pair], texts: tuple[Sequence[str], Sequence[str]], config: EvaluationConfig
) -> tuple[Measure, ...]:
    """What a reward model makes of the same answers, where one was named; what it cannot read on one side is left out."""
    if config.reward_model is None:
        return ()
    before, after = opinions(ws, reward_models.find(ws, agent, config.reward_model), [one.case.prompt for one in pairs], texts)
    known = [at for at in range(len(pairs)) if math.isfinite(before[at]) and math.isfinite(after[at])]
    if not known:
        return ()
    first, second = ([values[at] for at in known] for values in (before, after))
    groups = [pairs[at].case.group for at in known]
    return (compare.measure(f"mean score by {config.reward_model}", first, second, groups, config.level, span=None),)


def _logged(sides: Sides, names: tuple[str, str], given: Sequence[Given], config: EvaluationConfig) -> tuple[list[Logged], int]:
    examples, kept, refused = examples_of(sides.builder, given, config.max_length)
    if not examples:
        return [], refused
    before, after = (sides.log_probabilities(name, examples, config, "log-probabilities") for name in names)
    found = zip(kept, before, after, strict=True)
    return [Logged(row, x[0], y[0], x[1]) for same, first, second in found for row, x, y in zip(same, first, second, strict=True)], refused


def _unjudged(one: Judged) -> str:
    if one.evidence["status"] == Status.BLOCKED:
        return f"the checker cannot be used: {one.evidence['reason']}"
    return "the checker could judge neither answer"


def _reasons(judged: Sequence[Judged]) -> str:
    return ", ".join(f"{count} x {reason}" for reason, count in Counter(str(one.evidence.get("reason")) for one in judged).most_common(3))


def _notes(sides: Sides, primary: Measure) -> list[str]:
    found = []
    if sides.builder.template_name != "tokenizer":
        found.append(f"the tokenizer has no chat template; the fallback {sides.builder.template_name!r} was used")
    if primary.clusters < primary.n:
        found.append(f"{primary.n} items in {primary.clusters} groups; intervals are clustered by group")
    return found


def _evaluation(
    candidate: ModelVersion, incumbent: ModelVersion, rows: HeldOut, config: EvaluationConfig, measured: _Measured, reads: int, key: str
) -> Evaluation:
    return Evaluation(
        id=ids.new("evl"),
        agent=candidate.agent,
        candidate_id=candidate.id,
        candidate=candidate.name,
        against_id=incumbent.id,
        against=incumbent.name,
        basis=rows.basis,
        fresh=measured.fresh,
        primary=measured.primary,
        gate_low=measured.gate_low,
        preferences=measured.preferences,
        opinions=measured.opinions,
        guards=measured.guards,
        slices=measured.slices,
        examples=measured.examples,
        reads=reads,
        detectable=compare.detectable(measured.primary),
        dropped=dict(measured.dropped),
        notes=tuple(measured.notes),
        rows=rows.fingerprint,
        key=key,
        config=config,
    )
