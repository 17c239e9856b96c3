"""`evaluate`: a candidate against the incumbent on held-out rows. Read this first.

Suites say what both sides are asked and what the replies mean (suite.py); sides answer, each
question once (responder.py). The primary measure is the success of fresh greedy answers on cases; where
there are none, how well recorded answers are ranked. What was evaluated is stored under a key of
everything that the result follows from, so the same question has the same, stored answer, and a
question about other rows is counted as another read of what was held out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.datasets.split import prompt_key
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare, few_shot, store
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.evaluation.local_model import LocalResponder
from thumbwheel.evaluation.policy import Look
from thumbwheel.evaluation.responder import Responder, ask
from thumbwheel.evaluation.responders import RECORDED, Sides, base_of
from thumbwheel.evaluation.rows import HeldOut, gate_rows, train_rows
from thumbwheel.evaluation.signing import WHY, genuine, signed_evaluation
from thumbwheel.evaluation.spending import number, row_keys
from thumbwheel.evaluation.suite import Material, Suite, SuiteMeasures
from thumbwheel.evaluation.suite_context import material_of
from thumbwheel.evaluation.suites import SUITES
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    NLL,
    NLL_LIKED,
    Ask,
    Evaluation,
    EvaluationConfig,
    Guard,
    Measure,
    Serving,
    SuiteResult,
)
from thumbwheel.models import reward_models, versions
from thumbwheel.models.types import LIVE, Basis, ModelVersion

METHOD = 6
"""Raise it when the meaning of a result changes, so that stored evaluations are not taken for new
ones."""
WITHOUT_ROWS = {"regression", "benchmark"}
"""Suites that need nothing that was held out."""


@dataclass(frozen=True)
class _Run:
    """An evaluation that is being made."""

    ws: Workspace
    sides: Sides
    rows: HeldOut
    config: EvaluationConfig
    suites: Mapping[str, Suite]
    leading: tuple[str, ...]
    """Suites that may give the primary measure: the first one that applies does, else the first one
    that was named."""
    aside: str

    @property
    def agent_id(self) -> str:
        return versions.require_agent(self.ws, self.sides.candidate.agent)


def evaluate(
    ws: Workspace,
    agent: str,
    version: str,
    config: EvaluationConfig | None = None,
    *,
    against: str | None = None,
    form: str | None = None,
    against_form: str | None = None,
) -> Evaluation:
    """Measure `version` and what it is compared with on the same held-out rows, and store the
    result; the stored one, where it exists.

    `against`: a version name; without it the version behind the alias `live`, else `v0` where that
    is an endpoint, else the candidate's base. `form`, `against_form`: how each is served
    (responders.py). Raises DataError without held-out rows, InputError for a version that is no
    candidate for anything, ModelError for a base that has changed.
    """
    config = config or ws.settings(EvaluationConfig, "evaluation")
    if config.reward_model is not None:
        config = config.model_copy(
            update={"reward_model": reward_models.find(ws, agent, config.reward_model).name}
        )
    candidate = versions.version(ws, agent, version)
    incumbent = _incumbent(ws, candidate, against, form, against_form)
    rows = gate_rows(
        ws, candidate, needed=not config.suite or not set(config.suite) <= WITHOUT_ROWS
    )
    leading = policy_of(ws, agent).leading
    suites = _suites(material_of(ws, candidate, rows, config), leading)
    sides = Sides(ws, config, rows.cases, candidate, incumbent, form, against_form)
    key, aside = _key(sides, rows, suites, config, leading), _aside(ws, sides, suites)
    stored = _stored(ws, candidate, key)
    if stored is not None:  # what runs today may be another version by now
        return signed_evaluation(
            ws, stored.model_copy(update={"aside": aside, "limit": _limit(ws, sides, aside)})
        )
    run = _Run(ws, sides, rows, config, suites, leading, aside)
    try:
        evaluation = _measure(run, key)
    finally:
        sides.close()
    return keep(ws, evaluation)


def keep(ws: Workspace, evaluation: Evaluation) -> Evaluation:
    """Sign and store what was measured; where another process stored the same one first, that one."""
    agent_id = versions.require_agent(ws, evaluation.agent)
    signed = signed_evaluation(ws, evaluation)
    return ws.db.write(
        lambda connection: store.add(connection, agent_id, signed, lambda known: genuine(ws, known))
    )


def _stored(ws: Workspace, candidate: ModelVersion, key: str) -> Evaluation | None:
    """The evaluation under `key`; one that was edited is not used, and that is said."""
    with ws.db.read() as connection:
        evaluations = [known for known in store.find(connection, candidate.id) if known.key == key]
    for evaluation in evaluations:
        if genuine(ws, evaluation):
            return evaluation
    if evaluations:
        log.say(
            f"note: evaluation {evaluations[0].id} is not used: {WHY}. {candidate.name} is "
            "measured again"
        )
    return None


def evaluations(ws: Workspace, agent: str, version: str) -> list[Evaluation]:
    """The stored evaluations of a version, oldest first."""
    with ws.db.read() as connection:
        return store.find(connection, versions.version(ws, agent, version).id)


def _incumbent(
    ws: Workspace,
    candidate: ModelVersion,
    against: str | None,
    form: str | None,
    against_form: str | None,
) -> ModelVersion:
    if candidate.adapter is None:
        raise InputError(
            f"version {candidate.name!r} of agent {candidate.agent!r}",
            "it is a base without an adapter",
            "Train one",
        )
    base = base_of(ws, candidate)
    live = versions.aliases_of(ws, candidate.agent).get(LIVE)
    first = versions.versions(ws, candidate.agent)[0]
    chosen = (
        versions.version(ws, candidate.agent, against)
        if against
        else versions.by_id(ws, live)
        if live
        else first
    )
    if (
        chosen.endpoint is not None
        or against_form is not None
        or (form is not None and against is not None)
    ):
        # it is served apart, so that it may stand on another base, or be the candidate itself in
        # another form
        return chosen
    if chosen.id == candidate.id or chosen.base_fingerprint != candidate.base_fingerprint:
        if against is None:
            return base
        why = (
            "it is the same version"
            if chosen.id == candidate.id
            else "it stands on another base, so the two are not loaded alike"
        )
        raise InputError(
            f"version {chosen.name!r} to compare {candidate.name!r} with",
            why,
            f"Compare with {base.name!r}",
        )
    return chosen


def _aside(ws: Workspace, sides: Sides, suites: Mapping[str, Suite]) -> str:
    """Why the gate may not decide on this: it asks whether the version as it was trained should
    follow what runs today, with all guards."""
    usual = _incumbent(ws, sides.candidate, None, None, None)
    if sides.form:
        return f"it was measured as {sides.form}, not as it was trained"
    if sides.against_form or sides.incumbent.id != usual.id:
        return f"it was not compared with what runs today, {usual.name}"
    material = next(iter(suites.values())).material
    left_out = [
        name
        for name in SUITES.names()
        if name not in suites
        and (suite := SUITES.get(name)(material)).default
        and not suite.unfit()
    ]
    return f"suites that guard were left out: {', '.join(left_out)}" if left_out else ""


def _limit(ws: Workspace, sides: Sides, aside: str) -> str:
    """A version that is live on another base cannot be loaded beside the candidate."""
    live = versions.aliases_of(ws, sides.candidate.agent).get(LIVE)
    apart = live is not None and live not in (sides.incumbent.id, sides.candidate.id)
    return (
        "what is live stands on another base, and was not compared" if apart and not aside else ""
    )


def _suites(material: Material, leading: Sequence[str]) -> dict[str, Suite]:
    """Those that are named, else those that apply and are default or may lead. Raises DataError for
    a named one that does not apply."""
    named = material.config.suite
    more = {*leading, *(["reward"] if material.config.reward_model else [])}
    found: dict[str, Suite] = {}
    for name in SUITES.names() if not named else sorted(set(named), key=_order):
        suite = SUITES.get(name)(material)
        if not named and not suite.default and name not in more:
            continue
        why = suite.unfit()
        if not why:
            found[name] = suite
        elif named:
            raise DataError(
                f"suite {name!r}",
                why,
                "Leave it out, or give it what it needs; see thumbwheel evaluate --help",
            )
    return found


def _order(name: str) -> int:
    known = SUITES.names()
    return known.index(name) if name in known else len(known)


def _key(
    sides: Sides,
    rows: HeldOut,
    suites: Mapping[str, Suite],
    config: EvaluationConfig,
    leading: Sequence[str],
) -> str:
    both = [
        [one.id, one.base_fingerprint, one.adapter] for one in (sides.candidate, sides.incumbent)
    ]
    served = [[side.name, side.identity] for side in sides.served]
    contents = {name: suite.content() for name, suite in suites.items()} | {
        "": next(iter(suites.values())).material.identity
    }
    return ids.fingerprint(
        [
            METHOD,
            both,
            served,
            rows.basis,
            rows.fingerprint,
            contents,
            config.model_dump(mode="json"),
            list(leading),
        ]
    )


def _measure(run: _Run, key: str) -> Evaluation:
    if len(run.sides.served) < len(run.sides.both) and any(
        suite.of_cases for suite in run.suites.values()
    ):
        for case in run.rows.cases:
            _require(run, case.id, case.prompt)
    asked = {name: list(suite.asks()) for name, suite in run.suites.items()}
    # what is served apart goes first and is let go of, so that one model at a time is in memory
    order = sorted(
        ("before", "after"), key=lambda what: getattr(run.sides, what) not in run.sides.served
    )
    replies = {what: _replies(run, getattr(run.sides, what), asked, what) for what in order}
    outcomes = {
        name: suite.outcome(replies["before"][name], replies["after"][name])
        for name, suite in run.suites.items()
    }
    name = _primary(run, outcomes)
    level, suite, main = run.config.level, run.suites[name], outcomes[name].main
    assert main is not None  # noqa: S101 - _primary saw to it
    results = _results(outcomes, level)
    primary = next(one for one in results if one.name == name).measures[0]
    found = {one.name: one for one in results}
    ranked = found["preference"].measures if "preference" in found else ()
    opinions = tuple(
        one
        for one in (found["reward"].measures if "reward" in found else ())
        if one.name.startswith(compare.OPINION)
    )
    dropped = run.rows.dropped + sum(
        (outcomes[one].dropped for one in {name, "preference"} & outcomes.keys()), Counter[str]()
    )
    blocked = sum(outcome.blocked.total() for outcome in outcomes.values())
    candidate, incumbent = run.sides.candidate, run.sides.incumbent
    identities = (run.sides.before.identity, run.sides.after.identity)
    read = row_keys(run.ws, [one.prompt for one in asked[name]])
    with run.ws.db.read() as connection:
        reads = number(
            Look(identities, primary.name, frozenset(read), store.seen(primary)),
            store.looks(connection, run.agent_id),
        )
    return Evaluation(
        id=ids.new("evl"),
        agent=candidate.agent,
        candidate_id=candidate.id,
        candidate=candidate.name,
        against_id=incumbent.id,
        against=incumbent.name,
        basis=_basis(run, name, asked[name]),
        fresh=suite.fresh,
        primary=primary,
        preferences=ranked,
        opinions=opinions,
        suites=results,
        prompting=_prompting(run, replies["after"]),
        serving=_serving(run, name, asked, replies, primary),
        guards=_guards(run, outcomes),
        slices=found[name].slices,
        examples=outcomes[name].examples,
        reads=reads,
        read=read,
        sides=identities,
        form=run.sides.form,
        against_form=run.sides.against_form,
        blocked=dict(
            sum(
                (
                    outcomes[one].blocked
                    for one in outcomes
                    if one == name or run.suites[one].default
                ),
                Counter[str](),
            )
        ),
        suite=name,
        judges=outcomes[name].judges,
        detectable=compare.detectable(primary),
        dropped=dict(dropped),
        notes=tuple(_notes(run, primary, blocked)),
        aside=run.aside,
        limit=_limit(run.ws, run.sides, run.aside),
        rows=run.rows.fingerprint,
        key=ids.fingerprint([key, blocked, store.seen(primary)]) if blocked else key,
        config=run.config,
        weights=candidate.weights,
    )


def _guards(run: _Run, outcomes: Mapping[str, SuiteMeasures]) -> tuple[Guard, ...]:
    """Those of all suites; the ones in nats a token with what a uniform guess over the base's
    vocabulary would get."""
    guards = {guard.name: guard for outcome in outcomes.values() for guard in outcome.guards}
    for name in (NLL, NLL_LIKED, ANCHOR_NLL):
        if name in guards and guards[name].before is not None:
            chance = math.log(len(run.sides.own.builder.tokenizer))
            guards[name] = guards[name].model_copy(update={"chance": chance})
    return tuple(guards.values())


def _basis(run: _Run, name: str, asked: Sequence[Any]) -> Basis:
    """What the primary measure stands on: gold where every question is that of a gold case, or
    answers are ranked beside such cases."""
    if name == "preference":
        return run.rows.basis
    if not asked:
        return Basis.FEEDBACK
    reviewed = (
        {prompt_key(case.prompt) for case in run.rows.cases}
        if run.suites[name].of_cases
        else set[bytes]()
    )
    return (
        run.rows.basis
        if all(prompt_key(one.prompt) in reviewed for one in asked)
        else Basis.FEEDBACK
    )


def _require(run: _Run, case_id: str, prompt: Sequence[Any]) -> None:
    """Raise DataError for a case whose prompt this model's template refuses, before minutes are
    spent on the others."""
    try:
        run.sides.own.builder.prompt(prompt)
    except DataError as error:
        raise DataError(f"case {case_id!r}", f"{error.what}: {error.why}", error.fix) from None


def _replies(
    run: _Run, side: Responder, asked: Mapping[str, Sequence[Any]], what: str
) -> dict[str, list[Any]]:
    """suite -> the replies of `side` to its questions; equal questions of several suites are asked
    once."""
    flat = [one for asks in asked.values() for one in asks]
    fresh, given = (
        [one for one in flat if isinstance(one, Ask)],
        [one for one in flat if not isinstance(one, Ask)],
    )
    answers = iter(ask(run.ws, run.agent_id, side, fresh, f"answers {what}"))
    sums = iter(
        ask(run.ws, run.agent_id, side, given, f"log-probabilities {what}")
        if side.scores
        else [()] * len(given)
    )
    if side in run.sides.served:
        side.close()
    return {
        name: [next(answers if isinstance(one, Ask) else sums) for one in asks]
        for name, asks in asked.items()
    }


def _primary(run: _Run, outcomes: Mapping[str, SuiteMeasures]) -> str:
    """The suite that gives the primary measure. Raises DataError where it could judge nothing."""
    name = next((one for one in (*run.leading, *run.config.suite) if one in outcomes), None)
    if name is None or outcomes[name].main is None:
        dropped = outcomes[name].dropped if name else run.rows.dropped
        reasons = ", ".join(f"{count} x {reason}" for reason, count in dropped.most_common(3))
        why = (
            "the gate split has no pair and not both good and bad answers"
            if name == "preference"
            else "nothing could be judged"
        )
        raise DataError(
            f"version {run.sides.candidate.name!r}",
            f"{why}{': ' if reasons else ''}{reasons}",
            "Add cases or feedback",
        )
    return name


def _results(outcomes: Mapping[str, SuiteMeasures], level: float) -> tuple[SuiteResult, ...]:
    """What is stored of each suite, p values corrected over the main measures of all, and over the
    slices of each."""
    judged = {name: outcome for name, outcome in outcomes.items() if outcome.main is not None}
    mains = dict(
        zip(
            judged,
            compare.adjusted([outcome.main(level) for outcome in judged.values() if outcome.main]),
            strict=True,
        )
    )
    return tuple(
        SuiteResult(
            name=name,
            measures=(mains[name], *outcome.measures),
            slices=compare.adjusted(outcome.slices),
            details=outcome.details,
            dropped=dict(outcome.dropped),
        )
        for name, outcome in judged.items()
    )


def _prompting(run: _Run, replies: Mapping[str, Sequence[Any]]) -> Measure | None:
    """The candidate against its base that is shown good training answers; None where that cannot be
    compared."""
    suite, config = run.suites.get("success"), run.config
    shots = (
        few_shot.Shots.of(train_rows(run.ws, run.sides.candidate, run.rows.cases))
        if suite and config.few_shot
        else None
    )
    if suite is None or shots is None or not shots.shots or run.sides.after in run.sides.served:
        return None
    own, asks = run.sides.own, suite.asks()
    near = shots.nearest([one.prompt for one in asks], config.few_shot)
    room = own.room - config.max_new_tokens
    prompts = [
        few_shot.shown(one.prompt, nearest, own.builder, room)
        for one, nearest in zip(asks, near, strict=True)
    ]
    asked = [replace(one, prompt=prompt) for one, prompt in zip(asks, prompts, strict=True)]
    found = suite.outcome(
        ask(run.ws, run.agent_id, run.sides.base, asked, "few-shot answers"), replies["success"]
    )
    if found.main is None:
        return None
    return found.main(config.level).model_copy(
        update={"name": f"success against up to {config.few_shot} examples in the prompt"}
    )


def _serving(
    run: _Run,
    name: str,
    asked: Mapping[str, Sequence[Any]],
    replies: Mapping[str, Mapping[str, Sequence[Any]]],
    primary: Measure,
) -> tuple[Serving, ...]:
    """Of the answers that the primary measure judges; none where it judges recorded ones."""
    if not run.suites[name].fresh:
        return ()
    sides = run.sides
    both = (
        (sides.before, sides.incumbent, sides.against_form, primary.before),
        (sides.after, sides.candidate, sides.form, primary.after),
    )
    found = []
    for (side, version, form, value), given in zip(
        both, (replies["before"], replies["after"]), strict=True
    ):
        answers = [
            one
            for question, reply in zip(asked[name], given[name], strict=True)
            if isinstance(question, Ask)
            for one in reply
        ]
        found.append(compare.serving(side.name, value, answers, _rates(run.config, version, form)))
    return tuple(found)


def _rates(config: EvaluationConfig, version: ModelVersion, form: str | None) -> compare.Rates:
    """An endpoint may have its own prices; of what the app recorded nobody knows what served it."""
    if form == RECORDED:
        return compare.Rates()
    known = version.endpoint or {}
    return compare.Rates(known.get("price_in"), known.get("price_out"), config.hour_price)


def _notes(run: _Run, primary: Measure, blocked: int) -> list[str]:
    found = []
    templates = {
        one.own.builder.template_name for one in run.sides.both if isinstance(one, LocalResponder)
    }
    found += [
        f"the tokenizer has no chat template; the fallback {one!r} was used"
        for one in sorted(templates - {"tokenizer"})
    ]
    if primary.clusters < primary.n:
        found.append(
            f"{primary.n} items in {primary.clusters} groups; intervals are clustered by group"
        )
    if len(run.sides.served) == 1:
        found.append(
            f"the sides are not served alike: {run.sides.before.name} and {run.sides.after.name}"
        )
    silent = [side.name for side in run.sides.served if not side.scores]
    if silent:
        found.append(
            f"{' and '.join(silent)} cannot say how likely a given text is: nothing was measured "
            "by log-probability"
        )
    if blocked:
        found.append(
            f"{blocked} judgements were blocked; once the reason is gone, the same command makes "
            "them"
        )
    return found
