"""`evaluate`: a candidate against the incumbent on held-out rows. Read this first.

Suites define the questions and judge the replies (suite.py). Responders answer, each question once
(responder.py). The primary measure is the success of fresh greedy answers on cases; without cases
it is how well recorded answers are ranked. An evaluation is stored under a key of everything that
its result depends on, so the same question gets the stored answer. A question about the same rows
with anything else changed counts as another look at them (spending.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import DataError, InputError, NotFound
from thumbwheel.datasets.split import prompt_key
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import compare, few_shot, store
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.evaluation.local_model import LocalResponder
from thumbwheel.evaluation.policy import Look
from thumbwheel.evaluation.responder import Responder, ask
from thumbwheel.evaluation.responders import RECORDED, Responders, base_of
from thumbwheel.evaluation.rotation import least_read
from thumbwheel.evaluation.rows import HeldOut, gate_rows, train_rows
from thumbwheel.evaluation.signing import WHY, genuine, signed_evaluation
from thumbwheel.evaluation.spending import look_number, row_keys
from thumbwheel.evaluation.suite import Suite, SuiteContext, SuiteMeasures
from thumbwheel.evaluation.suite_context import suite_context
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
from thumbwheel.models.types import LIVE, Agent, Basis, ModelVersion

METHOD = 6
"""Raise it when the meaning of a result changes, so that stored evaluations are measured again."""
WITHOUT_ROWS = {"regression", "benchmark"}
"""Suites that need no held-out rows."""

Questions = Mapping[str, Sequence[Any]]
"""Suite -> what it asks."""
Replies = Mapping[str, Sequence[Any]]
"""Suite -> the replies to what it asks, in the same order."""


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation in progress."""

    ws: Workspace
    responders: Responders
    rows: HeldOut
    config: EvaluationConfig
    suites: Mapping[str, Suite]
    leading: tuple[str, ...]
    """Suites that may give the primary measure: the first one that applies does, else the first one
    that was named."""
    aside: str

    @property
    def agent_id(self) -> str:
        return self.responders.candidate.agent_id


def evaluate(
    ws: Workspace,
    candidate: ModelVersion,
    config: EvaluationConfig | None = None,
    *,
    against: ModelVersion | None = None,
    form: str | None = None,
    against_form: str | None = None,
) -> Evaluation:
    """Measure `candidate` and the incumbent on the same held-out rows and store the result, or
    return the stored one.

    `against` is the incumbent. Unset, it is the version behind the alias `live`, else `v0` if that
    is an endpoint, else the candidate's base. `form` and `against_form` say how each is served
    (responders.py). Raises DataError without held-out rows, InputError for a version that cannot be
    a candidate, ModelError for a base that has changed.
    """
    config = config or ws.settings(EvaluationConfig, "evaluation")
    if config.reward_model is not None:
        reward_model = reward_models.find(ws, candidate.agent, config.reward_model)
        config = config.model_copy(update={"reward_model": reward_model.name})
    incumbent = incumbent_of(ws, candidate, against, form, against_form)

    needs_rows = not config.suite or not set(config.suite) <= WITHOUT_ROWS
    policy = policy_of(ws, Agent.named(candidate.agent))
    leading = policy.leading
    rows = least_read(ws, candidate, gate_rows(ws, candidate, needed=needs_rows), policy)
    suites = _applicable_suites(suite_context(ws, candidate, rows, config), leading)
    responders = Responders(ws, config, rows.cases, candidate, incumbent, form, against_form)

    key = _key(responders, rows, suites, config, leading)
    aside = _aside(ws, responders, suites)
    stored = _stored(ws, candidate, key)
    if stored is not None:
        # Another version may run today than when it was measured.
        update = {"aside": aside, "limit": _limit(ws, responders, aside)}
        return signed_evaluation(ws, stored.model_copy(update=update))
    run = _Evaluation(ws, responders, rows, config, suites, leading, aside)
    try:
        evaluation = _measure(run, key)
    finally:
        responders.close()
    return store_evaluation(ws, evaluation)


def store_evaluation(ws: Workspace, evaluation: Evaluation) -> Evaluation:
    """Sign and store an evaluation. If another process stored the same evaluation first, return
    that one."""
    signed = signed_evaluation(ws, evaluation)
    return ws.db.write(
        lambda connection: store.add(connection, signed, lambda stored: genuine(ws, stored)),
        of_agent(evaluation.agent_id),
    )


def _stored(ws: Workspace, candidate: ModelVersion, key: str) -> Evaluation | None:
    """Return the genuine evaluation under `key`, or None. An edited one is reported and not
    used."""
    with ws.db.read() as connection:
        candidates = store.find(connection, candidate.id)
    same_key = [evaluation for evaluation in candidates if evaluation.key == key]
    for evaluation in same_key:
        if genuine(ws, evaluation):
            return evaluation
    if same_key:
        log.say(
            f"note: evaluation {same_key[0].id} is not used: {WHY}. {candidate.name} is "
            "measured again"
        )
    return None


def evaluations(ws: Workspace, version: ModelVersion) -> list[Evaluation]:
    """Return the stored evaluations of a version, oldest first."""
    with ws.db.read() as connection:
        return store.find(connection, version.id)


def evaluation_of(ws: Workspace, agent: Agent, evaluation_id: str) -> Evaluation:
    """Return a stored evaluation of the agent. Raises NotFound if it has none with this id."""
    with ws.db.read() as connection:
        evaluation = store.evaluation_of(connection, evaluation_id)
    if evaluation is None or evaluation.agent != agent.slug:
        raise NotFound(
            f"evaluation {evaluation_id!r}",
            f"agent {agent.slug!r} has none with this id",
            "Evaluate a version, and take the id of the result: thumbwheel evaluate --json",
        )
    return evaluation


def incumbent_of(
    ws: Workspace,
    candidate: ModelVersion,
    against: ModelVersion | None,
    form: str | None,
    against_form: str | None,
) -> ModelVersion:
    """Return the version that `candidate` is compared with, as `evaluate` describes. Raises
    InputError if `candidate` has no adapter."""
    if candidate.adapter is None:
        raise InputError(
            f"version {candidate.name!r} of agent {candidate.agent!r}",
            "it is a base without an adapter",
            "Train one",
        )
    base = base_of(ws, candidate)
    agent = Agent.named(candidate.agent)
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    if against is not None:
        incumbent = against
    elif live_id:
        incumbent = versions.by_id(ws, live_id)
    else:
        incumbent = versions.versions(ws, agent)[0]

    # An incumbent that is served by itself may have another base, or be the candidate in another
    # form.
    named_for_form = form is not None and against is not None
    if incumbent.endpoint is not None or against_form is not None or named_for_form:
        return incumbent
    same_version = incumbent.id == candidate.id
    if not same_version and incumbent.base_fingerprint == candidate.base_fingerprint:
        return incumbent
    if against is None:
        return base
    why = "it stands on another base, so the two are not loaded alike"
    if same_version:
        why = "it is the same version"
    raise InputError(
        f"version {incumbent.name!r} to compare {candidate.name!r} with",
        why,
        f"Compare with {base.name!r}",
    )


def _aside(ws: Workspace, responders: Responders, suites: Mapping[str, Suite]) -> str:
    """Return why the gate may not decide on this evaluation, else "". It decides on the version as
    trained, compared with the one that runs today, with all guards."""
    running_today = incumbent_of(ws, responders.candidate, None, None, None)
    if responders.form:
        return f"it was measured as {responders.form}, not as it was trained"
    if responders.against_form or responders.incumbent.id != running_today.id:
        return f"it was not compared with what runs today, {running_today.name}"
    context = next(iter(suites.values())).context
    left_out = []
    for name in SUITES.names():
        suite = SUITES.get(name)(context)
        if name not in suites and suite.default and not suite.unfit():
            left_out.append(name)
    return f"suites that guard were left out: {', '.join(left_out)}" if left_out else ""


def _limit(ws: Workspace, responders: Responders, aside: str) -> str:
    """Return why the gate approves for a canary at most, else "": a live version on another base
    cannot be loaded beside the candidate."""
    agent = Agent.named(responders.candidate.agent)
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    compared_ids = (None, responders.incumbent.id, responders.candidate.id)
    if aside or live_id in compared_ids:
        return ""
    return "what is live stands on another base, and was not compared"


def _applicable_suites(context: SuiteContext, leading: Sequence[str]) -> dict[str, Suite]:
    """Return the suites that are named; if none is, those that apply and are default or may lead.
    Raises DataError for a named one that does not apply."""
    named = context.config.suite
    wanted_too = {*leading}
    if context.config.reward_model:
        wanted_too.add("reward")
    suites: dict[str, Suite] = {}
    for name in sorted(set(named), key=_table_position) if named else SUITES.names():
        suite = SUITES.get(name)(context)
        if not named and not suite.default and name not in wanted_too:
            continue
        why_unfit = suite.unfit()
        if not why_unfit:
            suites[name] = suite
        elif named:
            raise DataError(
                f"suite {name!r}",
                why_unfit,
                "Leave it out, or give it what it needs; see thumbwheel evaluate --help",
            )
    return suites


def _table_position(name: str) -> int:
    names = SUITES.names()
    return names.index(name) if name in names else len(names)


def _key(
    responders: Responders,
    rows: HeldOut,
    suites: Mapping[str, Suite],
    config: EvaluationConfig,
    leading: Sequence[str],
) -> str:
    """Return the fingerprint of everything that the result depends on."""
    compared = [
        [version.id, version.base_fingerprint, version.adapter]
        for version in (responders.candidate, responders.incumbent)
    ]
    served = [[responder.name, responder.identity] for responder in responders.served]
    contents = {name: suite.content() for name, suite in suites.items()}
    contents[""] = next(iter(suites.values())).context.identity
    settings = config.model_dump(mode="json")
    return ids.fingerprint(
        [
            METHOD,
            compared,
            served,
            rows.basis,
            rows.fingerprint,
            contents,
            settings,
            list(leading),
        ]
    )


def _measure(run: _Evaluation, key: str) -> Evaluation:
    responders = run.responders
    candidate, incumbent = responders.candidate, responders.incumbent

    _check_prompts(run)
    _check_answers(run)

    # Ask both responders. Those served by themselves go first and are closed at once, so that one
    # model at a time is in memory.
    questions = {name: list(suite.asks()) for name, suite in run.suites.items()}
    if responders.after in responders.served and responders.before not in responders.served:
        after = _replies(run, responders.after, questions, "after")
        before = _replies(run, responders.before, questions, "before")
    else:
        before = _replies(run, responders.before, questions, "before")
        after = _replies(run, responders.after, questions, "after")

    # Judge the replies.
    outcomes = {
        name: suite.outcome(before[name], after[name]) for name, suite in run.suites.items()
    }
    primary_suite = _primary_suite(run, outcomes)
    results = _suite_results(outcomes, run.config.level)
    by_suite = {result.name: result for result in results}
    primary = by_suite[primary_suite].measures[0]
    preferences = by_suite["preference"].measures if "preference" in by_suite else ()
    rewards = by_suite["reward"].measures if "reward" in by_suite else ()
    opinions = [measure for measure in rewards if measure.name.startswith(compare.OPINION)]

    # Count what is missing: rows left out, and judgements that were blocked.
    dropped = Counter(run.rows.dropped)
    deciding_blocked = Counter[str]()
    blocked = 0
    for name, outcome in outcomes.items():
        if name in (primary_suite, "preference"):
            dropped += outcome.dropped
        if name == primary_suite or run.suites[name].default:
            deciding_blocked += outcome.blocked
        blocked += outcome.blocked.total()

    # Count this look at the rows behind the primary measure.
    identities = (responders.before.identity, responders.after.identity)
    read = row_keys(run.ws, [question.prompt for question in questions[primary_suite]])
    look = Look(identities, primary.name, frozenset(read), store.shown_figures(primary))
    with run.ws.db.read() as connection:
        experiments = store.experiments_of(connection, run.agent_id)
        reads = look_number(look, store.looks(connection, run.agent_id), experiments)

    if blocked:  # the same question may get another result once the reason is gone
        key = ids.fingerprint([key, blocked, store.shown_figures(primary)])
    return Evaluation(
        id=ids.new("evl"),
        agent=candidate.agent,
        candidate_id=candidate.id,
        candidate=candidate.name,
        against_id=incumbent.id,
        against=incumbent.name,
        basis=_basis(run, primary_suite, questions[primary_suite]),
        fresh=run.suites[primary_suite].fresh,
        primary=primary,
        preferences=preferences,
        opinions=tuple(opinions),
        suites=results,
        prompting=_against_prompting(run, after),
        serving=_serving(run, primary_suite, questions, before, after, primary),
        guards=_guards(run, outcomes),
        slices=by_suite[primary_suite].slices,
        examples=outcomes[primary_suite].examples,
        reads=reads,
        read=read,
        sides=identities,
        form=responders.form,
        against_form=responders.against_form,
        blocked=dict(deciding_blocked),
        suite=primary_suite,
        judges=outcomes[primary_suite].judges,
        detectable=compare.detectable(primary),
        dropped=dict(dropped),
        notes=tuple(_notes(run, primary, blocked)),
        aside=run.aside,
        limit=_limit(run.ws, responders, run.aside),
        rows=run.rows.fingerprint,
        key=key,
        config=run.config,
        weights=candidate.weights,
    )


def _guards(run: _Evaluation, outcomes: Mapping[str, SuiteMeasures]) -> tuple[Guard, ...]:
    """Return the guards of all suites. Guards in nats per token also get the value of a uniform
    guess over the base's vocabulary."""
    guards = {}
    for outcome in outcomes.values():
        for guard in outcome.guards:
            guards[guard.name] = guard
    for name in (NLL, NLL_LIKED, ANCHOR_NLL):
        if name in guards and guards[name].before is not None:
            chance = math.log(len(run.responders.local_model.builder.tokenizer))
            guards[name] = guards[name].model_copy(update={"chance": chance})
    return tuple(guards.values())


def _basis(run: _Evaluation, suite: str, questions: Sequence[Any]) -> Basis:
    """Return the basis of the primary measure: gold if every question is that of a gold case, or if
    answers are ranked beside such cases."""
    if suite == "preference":
        return run.rows.basis
    if not questions or not run.suites[suite].of_cases:
        return Basis.FEEDBACK
    reviewed = {prompt_key(case.prompt) for case in run.rows.cases}
    if all(prompt_key(question.prompt) in reviewed for question in questions):
        return run.rows.basis
    return Basis.FEEDBACK


def _check_prompts(run: _Evaluation) -> None:
    """Raise DataError for a case whose prompt the local model's chat template refuses, before
    minutes are spent on the others."""
    local = len(run.responders.served) < len(run.responders.both)
    if not local or not any(suite.of_cases for suite in run.suites.values()):
        return
    builder = run.responders.local_model.builder
    for case in run.rows.cases:
        try:
            builder.prompt(case.prompt)
        except DataError as error:
            raise DataError(f"case {case.id!r}", f"{error.what}: {error.why}", error.fix) from None


def _replies(
    run: _Evaluation, responder: Responder, questions: Questions, what: str
) -> dict[str, list[Any]]:
    """Ask `responder` every question and return suite -> replies. A question that several suites
    share is asked once. `what`: before or after, for the progress line."""
    asks: list[Any] = []
    likelihood_asks: list[Any] = []
    for suite_questions in questions.values():
        for question in suite_questions:
            (asks if isinstance(question, Ask) else likelihood_asks).append(question)
    answers = iter(ask(run.ws, run.agent_id, responder, asks, f"answers {what}"))
    scored: list[Any] = [()] * len(likelihood_asks)
    if responder.scores:
        label = f"log-probabilities {what}"
        scored = ask(run.ws, run.agent_id, responder, likelihood_asks, label)
    log_probabilities = iter(scored)
    if responder in run.responders.served:
        responder.close()

    replies: dict[str, list[Any]] = {}
    for name, suite_questions in questions.items():
        replies[name] = []
        for question in suite_questions:
            kind = answers if isinstance(question, Ask) else log_probabilities
            replies[name].append(next(kind))
    return replies


def _leading_suite(run: _Evaluation) -> str | None:
    """Return the suite that should give the primary measure; None if no suite may."""
    for name in (*run.leading, *run.config.suite):
        if name in run.suites:
            return name
    return None


def _check_answers(run: _Evaluation) -> None:
    """Raise DataError if no answer could give the primary measure, before the first one is asked
    for."""
    suite = run.suites.get(_leading_suite(run) or "")
    if suite is not None and (why := suite.cannot_judge()):
        raise _nothing_to_judge(run, why, run.rows.dropped)


def _primary_suite(run: _Evaluation, outcomes: Mapping[str, SuiteMeasures]) -> str:
    """Return the suite that gives the primary measure. Raises DataError if it could judge
    nothing."""
    name = _leading_suite(run)
    if name is not None and outcomes[name].main is not None:
        return name
    dropped = outcomes[name].dropped if name else run.rows.dropped
    why = run.suites[name].cannot_judge() if name else ""
    raise _nothing_to_judge(run, why or "nothing could be judged", dropped)


def _nothing_to_judge(run: _Evaluation, why: str, dropped: Counter[str]) -> DataError:
    reasons = ", ".join(f"{count} x {reason}" for reason, count in dropped.most_common(3))
    candidate = run.responders.candidate
    return DataError(
        f"version {candidate.name!r}",
        f"{why}: {reasons}" if reasons else why,
        "Add cases that you reviewed, or feedback on more answers: thumbwheel case add --agent "
        f"{candidate.agent}",
    )


def _suite_results(outcomes: Mapping[str, SuiteMeasures], level: float) -> tuple[SuiteResult, ...]:
    """Return the result to store for each suite that judged something. p values are corrected over
    the main measures of all suites, and over the slices of each."""
    names = []
    mains = []
    for name, outcome in outcomes.items():
        if outcome.main is not None:
            names.append(name)
            mains.append(outcome.main(level))
    results = []
    for name, main in zip(names, compare.adjusted(mains), strict=True):
        outcome = outcomes[name]
        result = SuiteResult(
            name=name,
            measures=(main, *outcome.measures),
            slices=compare.adjusted(outcome.slices),
            details=outcome.details,
            dropped=dict(outcome.dropped),
        )
        results.append(result)
    return tuple(results)


def _against_prompting(run: _Evaluation, replies: Replies) -> Measure | None:
    """Compare the candidate with its base that has good training answers in the prompt; None if
    they cannot be compared."""
    suite, config, responders = run.suites.get("success"), run.config, run.responders
    if suite is None or not config.few_shot or responders.after in responders.served:
        return None
    examples = train_rows(run.ws, responders.candidate, run.rows.cases)
    shots = few_shot.Shots.of(examples)
    if not shots.shots:
        return None

    asks = suite.asks()
    local_model = responders.local_model
    room = local_model.room - config.max_new_tokens
    nearest_shots = shots.nearest([question.prompt for question in asks], config.few_shot)
    prompted = []
    for question, nearest in zip(asks, nearest_shots, strict=True):
        prompt = few_shot.shown(question.prompt, nearest, local_model.builder, room)
        prompted.append(replace(question, prompt=prompt))

    base_replies = ask(run.ws, run.agent_id, responders.base, prompted, "few-shot answers")
    outcome = suite.outcome(base_replies, replies["success"])
    if outcome.main is None:
        return None
    name = f"success against up to {config.few_shot} examples in the prompt"
    return outcome.main(config.level).model_copy(update={"name": name})


def _serving(
    run: _Evaluation,
    suite: str,
    questions: Questions,
    before: Replies,
    after: Replies,
    primary: Measure,
) -> tuple[Serving, ...]:
    """Return cost and time of the answers behind the primary measure; empty if recorded answers are
    judged."""
    if not run.suites[suite].fresh:
        return ()
    responders, asks = run.responders, questions[suite]
    incumbent_rates = _rates(run.config, responders.incumbent, responders.against_form)
    candidate_rates = _rates(run.config, responders.candidate, responders.form)
    return (
        compare.serving(
            responders.before.name, primary.before, _answers(asks, before[suite]), incumbent_rates
        ),
        compare.serving(
            responders.after.name, primary.after, _answers(asks, after[suite]), candidate_rates
        ),
    )


def _answers(questions: Sequence[Any], replies: Sequence[Any]) -> list[Any]:
    """Return all fresh answers among the replies."""
    answers: list[Any] = []
    for question, reply in zip(questions, replies, strict=True):
        if isinstance(question, Ask):
            answers += reply
    return answers


def _rates(config: EvaluationConfig, version: ModelVersion, form: str | None) -> compare.Rates:
    """Return the prices of a version: an endpoint may have its own. Recorded answers have none,
    because nobody knows which server gave them."""
    if form == RECORDED:
        return compare.Rates()
    endpoint = version.endpoint or {}
    return compare.Rates(endpoint.get("price_in"), endpoint.get("price_out"), config.hour_price)


def _notes(run: _Evaluation, primary: Measure, blocked: int) -> list[str]:
    responders, notes = run.responders, []
    templates = set()
    for responder in responders.both:
        if isinstance(responder, LocalResponder):
            templates.add(responder.local_model.builder.template_name)
    notes += [
        f"the tokenizer has no chat template; the fallback {template!r} was used"
        for template in sorted(templates - {"tokenizer"})
    ]
    if primary.clusters < primary.n:
        notes.append(
            f"{primary.n} items in {primary.clusters} groups; intervals are clustered by group"
        )
    if len(responders.served) == 1:
        notes.append(
            f"the sides are not served alike: {responders.before.name} and {responders.after.name}"
        )
    silent = [responder.name for responder in responders.served if not responder.scores]
    if silent:
        notes.append(
            f"{' and '.join(silent)} cannot say how likely a given text is: nothing was measured "
            "by log-probability"
        )
    if blocked:
        notes.append(
            f"{blocked} judgements were blocked; once the reason is gone, the same command makes "
            "them"
        )
    return notes
