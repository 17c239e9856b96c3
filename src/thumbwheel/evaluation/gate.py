"""The gate: a pure function from measurements to approved, approved for a canary, or rejected. Its
decisions are stored, signed, and can be replayed.

Approved means: the lower bound of the gain lies above zero on fresh answers to cases that the owner
reviewed, and every measured guard holds (`guards.py`). Evidence from feedback, from ranking
recorded answers, or with guards that too few items leave open, allows a canary at most. The level
of the bound depends on earlier looks at the same rows (`spending.py`); the policy is the one
declared for the agent (`declaration.py`). A decision is signed with the home's key, so that a
changed one is recognised.
"""

from __future__ import annotations

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.figures import gain as gain_in_points
from thumbwheel.core.figures import percent
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import store
from thumbwheel.evaluation.approval import approvals
from thumbwheel.evaluation.declaration import FIRST, changes
from thumbwheel.evaluation.guards import (
    FORGOTTEN,
    FORGOTTEN_HINT,
    RULES,
    consequence,
    guard_reason,
    guard_state,
)
from thumbwheel.evaluation.policy import (
    GateDecision,
    GateInputs,
    GatePolicy,
    GateVerdict,
    StoredDecision,
)
from thumbwheel.evaluation.signing import (
    WHY,
    check_decision,
    check_evaluation,
    genuine,
    signed_decision,
)
from thumbwheel.evaluation.suite_context import optimised_by
from thumbwheel.evaluation.types import Evaluation, Guard
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion, VersionState
from thumbwheel.stats.multiple import look_level

POWER = 0.8


def decide(inputs: GateInputs, policy: GatePolicy) -> GateDecision:
    """Return the verdict on `inputs` under `policy`, from these two alone. Reasons begin with the
    ones that decided, then name the other observations."""
    failures = _failures(inputs, policy)
    limits = _limits(inputs)
    remarks = []
    forgot = False
    for guard in inputs.guards:
        state, words = guard_state(guard, policy)
        lenience = consequence(state, policy)
        if lenience == "reject":
            failures.append(guard_reason(guard, words))
            forgot = forgot or (guard.name in FORGOTTEN and guard.after is not None)
        elif lenience == "canary":
            limits.append(f"canary only: {guard_reason(guard, words)}")
        elif lenience == "allow":
            remarks.append(guard_reason(guard, words))
    remarks += inputs.changes
    if forgot:
        failures.append(FORGOTTEN_HINT)
    if failures:
        return GateDecision(verdict=GateVerdict.REJECTED, reasons=(*failures, *remarks))
    gain = (
        f"{inputs.measure} gains {gain_in_points(inputs.gain)}, at least "
        f"{gain_in_points(inputs.low)} with {_level(inputs)}"
    )
    verdict = GateVerdict.CANARY if limits else GateVerdict.APPROVED
    return GateDecision(verdict=verdict, reasons=(gain, *limits, *remarks))


def _failures(inputs: GateInputs, policy: GatePolicy) -> list[str]:
    """Return the reasons that reject a candidate, besides its guards."""
    failures = []
    if inputs.tainted:
        failures.append(
            "the version is tainted: data that it was trained on was erased; retrain without it"
        )
    if inputs.judges and set(inputs.judges) <= set(inputs.optimised):
        judges = " and ".join(inputs.judges)
        failures.append(
            f"nothing but {judges} says so, which the version was trained to please: judge it on "
            "cases with a reference"
        )
    if inputs.clusters < policy.min_cases:
        failures.append(
            f"{inputs.clusters} groups of held-out cases are too few to decide on; at least "
            f"{policy.min_cases} are needed"
        )
    if not inputs.low > 0:
        power = ""
        if inputs.detectable is not None:
            power = (
                f" (a true gain of {gain_in_points(inputs.detectable)} would be seen four times "
                "out of five)"
            )
        failures.append(
            f"{inputs.measure} goes from {percent(inputs.before)} to {percent(inputs.after)} "
            f"({gain_in_points(inputs.gain)}), but the gain is only known to lie above "
            f"{gain_in_points(inputs.low)} with {_level(inputs)}, and zero has to be "
            f"excluded{power}"
        )
    return failures


def _limits(inputs: GateInputs) -> list[str]:
    """Return the reasons that limit a passing candidate to a canary, besides its guards."""
    limits = []
    if inputs.basis is not Basis.GOLD:
        limits.append(
            "canary only: the cases stand on feedback, not on cases that the owner reviewed (add "
            "them with `thumbwheel case add`)"
        )
    if not inputs.fresh:
        limits.append("canary only: recorded answers were ranked; no fresh answer was judged")
    if optimised := sorted(set(inputs.judges) & set(inputs.optimised)):
        limits.append(
            f"canary only: {' and '.join(optimised)} judged a part of the cases, which the version "
            "was trained to please"
        )
    if inputs.blocked:
        limits.append(f"canary only: {inputs.blocked} judgements were blocked and are missing")
    if inputs.limit:
        limits.append(f"canary only: {inputs.limit}")
    return limits


def _level(inputs: GateInputs) -> str:
    looks = f" (comparison {inputs.reads} on these rows)" if inputs.reads > 1 else ""
    return f"{100 * inputs.level:.4g} % confidence{looks}"


def inputs_of(
    evaluation: Evaluation,
    policy: GatePolicy,
    *,
    tainted: bool = False,
    optimised: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
) -> GateInputs:
    """Return the gate's inputs from an evaluation. Raises InputError if the gate never decides on
    it, Conflict if it waits for judgements."""
    what = f"evaluation {evaluation.id!r} for the gate"
    again = f"thumbwheel evaluate {evaluation.candidate} --agent {evaluation.agent}"
    if why := why_refused(evaluation, policy):
        raise InputError(what, why, f"Use the standard comparison: {again}")
    if why := why_waiting(evaluation, policy):
        raise Conflict(
            what,
            why,
            f"Then: {again}. For a canary without them: thumbwheel gate declare --blocked allow",
        )

    measured = {guard.name for guard in evaluation.guards}
    unmeasured = [name for name in RULES if name not in measured]
    guards = list(evaluation.guards)
    guards += [Guard(name=name, before=None, after=None, n=0) for name in unmeasured]

    primary = evaluation.primary
    level = look_level(policy.alpha, evaluation.reads)
    gain = primary.spread.around(primary.gain)
    unproven_judge = None
    for suite in evaluation.suites:
        if suite.name == evaluation.suite:
            unproven_judge = suite.details.get("may_not_gate")
            break
    return GateInputs(
        basis=evaluation.basis,
        fresh=evaluation.fresh,
        measure=primary.name,
        suite=evaluation.suite,
        before=primary.before,
        after=primary.after,
        gain=primary.gain,
        low=gain.interval(level).low,
        level=level,
        clusters=primary.clusters,
        reads=evaluation.reads,
        guards=tuple(guard_at_level(guard, 1 - policy.alpha) for guard in guards),
        tainted=tainted,
        detectable=gain.detectable(level, POWER),
        judges=evaluation.judges,
        optimised=optimised,
        changes=changes,
        limit=evaluation.limit or unproven_judge or "",
        blocked=sum(evaluation.blocked.values()),
        weights=evaluation.weights,
    )


def why_refused(evaluation: Evaluation, policy: GatePolicy) -> str:
    """Return why the gate never decides on `evaluation`, or "" if it may."""
    if evaluation.aside or evaluation.suite in policy.leading:
        return evaluation.aside
    return f"suite {evaluation.suite} leads, and the gate goes by {' or '.join(policy.leading)}"


def why_waiting(evaluation: Evaluation, policy: GatePolicy) -> str:
    """Return which judgements the gate waits for, or "" if it does not wait."""
    if not evaluation.blocked or policy.blocked != "wait":
        return ""
    return (
        f"{sum(evaluation.blocked.values())} judgements were blocked, and may be made yet: "
        f"{next(iter(evaluation.blocked))}"
    )


def guard_at_level(guard: Guard, level: float) -> Guard:
    """Return the guard with its interval at `level`; without an interval if the spread is
    unknown."""
    if guard.before is None or guard.after is None:
        return guard.model_copy(update={"low": None, "high": None})
    if guard.spread is None or guard.spread.error is None:
        return guard.model_copy(update={"low": None, "high": None})
    interval = guard.spread.around(guard.after - guard.before).interval(level)
    return guard.model_copy(update={"low": interval.low, "high": interval.high})


def gate(ws: Workspace, evaluation: Evaluation, policy: GatePolicy | None = None) -> StoredDecision:
    """Decide on the candidate of `evaluation`, store the decision, and update the version's state.

    `policy` overrides the declared one, and the decision says so; if no policy was declared, the
    policy of the first decision becomes the declaration. A second decision on the same evaluation
    under the same policy returns the stored one, unless somebody changed that. Raises Conflict for
    an evaluation that was changed.
    """
    check_evaluation(ws, evaluation)
    version = versions.by_id(ws, evaluation.candidate_id)
    settings = ws.settings(GatePolicy, "gate")
    with ws.db.read() as connection:
        declared = store.declarations(connection, evaluation.agent_id)
        earlier = store.find_decisions(connection, evaluation_id=evaluation.id)
    used = policy or (declared[-1].policy if declared else settings)
    inputs = inputs_of(
        evaluation,
        used,
        tainted=version.tainted,
        optimised=optimised_by(ws, version),
        changes=changes(declared, used, settings),
    )

    # The same question was decided before.
    same = [stored for stored in earlier if (stored.inputs, stored.policy) == (inputs, used)]
    for stored in same:
        if genuine(ws, stored):
            _update_state(ws, version, stored)
            return stored
    for edited in same:
        log.say(f"note: decision {edited.id} is not used: {WHY}")

    decision = signed_decision(
        ws,
        StoredDecision(
            id=ids.new("dec"),
            version_id=version.id,
            evaluation_id=evaluation.id,
            decision=decide(inputs, used),
            inputs=inputs,
            policy=used,
        ),
    )
    version = _without_false_approval(ws, version)
    declare = None if declared else FIRST
    ws.db.write(
        lambda connection: store.add_decision(connection, version.agent_id, decision, declare),
        of_agent(version.agent_id),
    )
    _update_state(ws, version, decision)
    return decision


def _without_false_approval(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """Return the version, made a candidate again if it is marked approved without a signed
    decision."""
    if (
        version.state is not VersionState.APPROVED
        or version.adapter is None
        or approvals(ws, version)
    ):
        return version
    log.say(
        f"note: {version.name} was marked {version.state} without a signed decision; it counts as "
        "a candidate"
    )
    return versions.withdraw(ws, version)


def _update_state(ws: Workspace, version: ModelVersion, stored: StoredDecision) -> None:
    """Set the state that the verdict gives the version. Too few cases never reject a version for
    good, and a version that was approved for a canary may be approved fully later."""
    verdict = stored.decision.verdict
    not_on_gold = version.state is VersionState.APPROVED and version.basis is not Basis.GOLD
    if not_on_gold and verdict is GateVerdict.APPROVED:
        versions.confirm(ws, version, Basis.GOLD)
    if version.state is not VersionState.CANDIDATE:
        return
    enough_cases = stored.inputs.clusters >= stored.policy.min_cases
    if verdict is GateVerdict.APPROVED:
        versions.move(ws, version, VersionState.APPROVED, Basis.GOLD)
    elif verdict is GateVerdict.CANARY:
        versions.move(ws, version, VersionState.APPROVED, Basis.FEEDBACK)
    elif enough_cases or version.tainted:
        versions.move(ws, version, VersionState.REJECTED)


def decisions_of(ws: Workspace, version: ModelVersion) -> list[StoredDecision]:
    """Return the decisions about a version as they were signed, oldest first; decisions changed
    since are left out."""
    with ws.db.read() as connection:
        stored = store.find_decisions(connection, version_id=version.id)
    return [decision for decision in stored if genuine(ws, decision)]


def replay(ws: Workspace, decision_id: str) -> tuple[StoredDecision, GateDecision]:
    """Return the stored decision and the one that its stored inputs and policy give now; they
    differ only if the gate's code changed.

    Raises NotFound for an unknown id and Conflict for a decision that was changed after it was
    signed.
    """
    with ws.db.read() as connection:
        matches = store.find_decisions(connection, decision_id=decision_id)
    if not matches:
        raise NotFound(
            f"decision {decision_id!r}",
            "there is no such decision",
            "`thumbwheel evaluate VERSION --json` names its decision",
        )
    ids.require_single(decision_id, [stored.id for stored in matches])
    stored = matches[0]
    check_decision(ws, stored)
    return stored, decide(stored.inputs, stored.policy)
