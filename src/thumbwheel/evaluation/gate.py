"""The gate: a pure function from what was measured to approved, approved for a canary, or rejected;
stored, signed, and replayed.

Approved means that the lower bound of the gain lies above zero on cases that the owner reviewed,
judged on fresh generations, and that every measured guard holds (`guards.py`). Everything that
stands on feedback, on ranking recorded answers, or on guards that too few items leave open, reaches
a canary at best. The bound is taken at the level that earlier looks at the same rows leave
(`spending.py`), under the policy that was declared for the agent (`declaration.py`). A decision is
signed with the home's key, so that a changed one is recognised.
"""

from __future__ import annotations

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.approval import approvals
from thumbwheel.evaluation.declaration import FIRST, changes
from thumbwheel.evaluation.guards import RULES, described, lenience, standing
from thumbwheel.evaluation.policy import Decision, GateInputs, GatePolicy, StoredDecision, Verdict
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
from thumbwheel.models.types import Basis, ModelVersion, State
from thumbwheel.stats.multiple import look_level

POWER = 0.8


def decide(inputs: GateInputs, policy: GatePolicy) -> Decision:
    """The verdict on `inputs` under `policy`; reasons first say what decided it, then what else was
    seen. Depends on nothing else."""
    failures, limits, seen = _primary_failures(inputs, policy), _limits(inputs), []
    for guard in inputs.guards:
        known, words = standing(guard, policy)
        verdict = lenience(known, policy)
        if verdict == "reject":
            failures.append(described(guard, words))
        elif verdict == "canary":
            limits.append(f"canary only: {described(guard, words)}")
        elif verdict == "allow":
            seen.append(described(guard, words))
    seen += inputs.changes
    if failures:
        return Decision(verdict=Verdict.REJECTED, reasons=(*failures, *seen))
    gain = (
        f"{inputs.measure} gains {inputs.gain:+.4f}, at least {inputs.low:+.4f} at {_level(inputs)}"
    )
    return Decision(
        verdict=Verdict.CANARY if limits else Verdict.APPROVED, reasons=(gain, *limits, *seen)
    )


def _primary_failures(inputs: GateInputs, policy: GatePolicy) -> list[str]:
    found = []
    if inputs.tainted:
        found.append(
            "the version is tainted: data that it was trained on was erased; retrain without it"
        )
    if inputs.judges and set(inputs.judges) <= set(inputs.optimised):
        judges = " and ".join(inputs.judges)
        found.append(
            f"nothing but {judges} says so, which the version was trained to please: judge it on "
            "cases with a reference"
        )
    if inputs.clusters < policy.min_cases:
        found.append(
            f"{inputs.clusters} groups of held-out cases are too few to decide on; at least "
            f"{policy.min_cases} are needed"
        )
    if not inputs.low > 0:
        visible = (
            ""
            if inputs.detectable is None
            else f" (a true gain of {inputs.detectable:+.4f} would be seen four times out of five)"
        )
        found.append(
            f"{inputs.measure} goes from {inputs.before:.4f} to {inputs.after:.4f} "
            f"({inputs.gain:+.4f}), "
            f"but the gain is only known to lie above {inputs.low:+.4f} at {_level(inputs)}, and "
            f"zero has to be excluded{visible}"
        )
    return found


def _limits(inputs: GateInputs) -> list[str]:
    """What keeps a passing candidate from full approval."""
    found = []
    if inputs.basis is not Basis.GOLD:
        found.append(
            "canary only: the cases stand on feedback, not on cases that the owner reviewed (add "
            "them with `thumbwheel case add`)"
        )
    if not inputs.fresh:
        found.append("canary only: recorded answers were ranked; no fresh answer was judged")
    if fooled := sorted(set(inputs.judges) & set(inputs.optimised)):
        found.append(
            f"canary only: {' and '.join(fooled)} judged a part of the cases, which the version "
            "was trained to please"
        )
    if inputs.blocked:
        found.append(f"canary only: {inputs.blocked} judgements were blocked and are missing")
    if inputs.limit:
        found.append(f"canary only: {inputs.limit}")
    return found


def _level(inputs: GateInputs) -> str:
    looks = f" (look {inputs.reads} at these rows)" if inputs.reads > 1 else ""
    return f"{inputs.level:.6g} confidence{looks}"


def inputs_of(
    evaluation: Evaluation,
    policy: GatePolicy,
    *,
    tainted: bool = False,
    optimised: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
) -> GateInputs:
    """What the gate reads of an evaluation. Raises InputError where it does not decide on it,
    Conflict where it `waits`."""
    primary = evaluation.primary
    what, again = (
        f"evaluation {evaluation.id!r} for the gate",
        f"thumbwheel evaluate {evaluation.candidate} --agent {evaluation.agent}",
    )
    if why := unusual(evaluation, policy):
        raise InputError(what, why, f"Ask the usual question: {again}")
    if why := waits(evaluation, policy):
        raise Conflict(
            what,
            why,
            f"Then: {again}. For a canary without them: thumbwheel gate declare --blocked allow",
        )
    absent = RULES.keys() - {one.name for one in evaluation.guards}
    guards = (
        *evaluation.guards,
        *(Guard(name=name, before=None, after=None, n=0) for name in RULES if name in absent),
    )
    level = look_level(policy.alpha, evaluation.reads)
    known = primary.spread.around(primary.gain)
    unproven = next(
        (
            one.details.get("may_not_gate")
            for one in evaluation.suites
            if one.name == evaluation.suite
        ),
        None,
    )
    return GateInputs(
        basis=evaluation.basis,
        fresh=evaluation.fresh,
        measure=primary.name,
        suite=evaluation.suite,
        before=primary.before,
        after=primary.after,
        gain=primary.gain,
        low=known.interval(level).low,
        level=level,
        clusters=primary.clusters,
        reads=evaluation.reads,
        guards=tuple(guard_at(one, 1 - policy.alpha) for one in guards),
        tainted=tainted,
        detectable=known.detectable(level, POWER),
        judges=evaluation.judges,
        optimised=optimised,
        changes=changes,
        limit=evaluation.limit or unproven or "",
        blocked=sum(evaluation.blocked.values()),
        weights=evaluation.weights,
    )


def unusual(evaluation: Evaluation, policy: GatePolicy) -> str:
    """Why the gate never decides on an evaluation; empty where it may."""
    if evaluation.aside or evaluation.suite in policy.leading:
        return evaluation.aside
    return f"suite {evaluation.suite} leads, and the gate goes by {' or '.join(policy.leading)}"


def waits(evaluation: Evaluation, policy: GatePolicy) -> str:
    """What has to be put right before the gate decides; empty where nothing."""
    if not evaluation.blocked or policy.blocked != "wait":
        return ""
    return (
        f"{sum(evaluation.blocked.values())} judgements were blocked, and may be made yet: "
        f"{next(iter(evaluation.blocked))}"
    )


def guard_at(guard: Guard, level: float) -> Guard:
    """The guard with its interval at `level`; without one where nothing is known."""
    if (
        guard.before is None
        or guard.after is None
        or guard.spread is None
        or guard.spread.error is None
    ):
        return guard.model_copy(update={"low": None, "high": None})
    found = guard.spread.around(guard.after - guard.before).interval(level)
    return guard.model_copy(update={"low": found.low, "high": found.high})


def gate(ws: Workspace, evaluation: Evaluation, policy: GatePolicy | None = None) -> StoredDecision:
    """Decide on the candidate of `evaluation`, store the decision, and move the version's state
    where it is still a candidate.

    `policy`: another one than declared, which the decision then says; the first one is the
    declaration. Deciding again on the same evaluation under the same policy returns the stored
    decision, unless that was changed by other hands. Raises Conflict for an evaluation that was.
    """
    check_evaluation(ws, evaluation)
    agent_id = versions.require_agent(ws, evaluation.agent)
    version = versions.by_id(ws, evaluation.candidate_id)
    settings = ws.settings(GatePolicy, "gate")
    with ws.db.read() as connection:
        declared = store.declarations(connection, agent_id)
        known = store.find_decisions(connection, evaluation_id=evaluation.id)
    optimised = optimised_by(ws, version)
    used = policy or (declared[-1].policy if declared else settings)
    said = changes(declared, used, settings)
    inputs = inputs_of(evaluation, used, tainted=version.tainted, optimised=optimised, changes=said)
    same = [one for one in known if (one.inputs, one.policy) == (inputs, used)]
    found = next((one for one in same if genuine(ws, one)), None)
    if found is None:
        for changed in same:
            log.say(f"note: decision {changed.id} is not used: {WHY}")
        made = StoredDecision(
            id=ids.new("dec"),
            version_id=version.id,
            evaluation_id=evaluation.id,
            decision=decide(inputs, used),
            inputs=inputs,
            policy=used,
        )
        found = signed_decision(ws, made)
        version = _undecided(ws, version)
        ws.db.write(
            lambda connection: store.add_decision(
                connection, agent_id, found, None if declared else FIRST
            )
        )
    _move(ws, version, found)
    return found


def _undecided(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """The version; as a candidate again where it is marked approved and no signed decision says so."""
    if version.state is not State.APPROVED or version.adapter is None or approvals(ws, version):
        return version
    log.say(
        f"note: {version.name} was marked {version.state} without a signed decision; it counts as "
        "a candidate"
    )
    return versions.withdraw(ws, version)


def _move(ws: Workspace, version: ModelVersion, made: StoredDecision) -> None:
    """Too few cases decide nothing for good, and what was approved for a canary may be approved for
    everybody later."""
    verdict = made.decision.verdict
    if (
        version.state is State.APPROVED
        and version.basis is Basis.FEEDBACK
        and verdict is Verdict.APPROVED
    ):
        versions.confirm(ws, version, Basis.GOLD)
    if version.state is not State.CANDIDATE:
        return
    if verdict is not Verdict.REJECTED:
        versions.move(
            ws,
            version,
            State.APPROVED,
            Basis.GOLD if verdict is Verdict.APPROVED else Basis.FEEDBACK,
        )
    elif made.inputs.clusters >= made.policy.min_cases or version.tainted:
        versions.move(ws, version, State.REJECTED)


def replay(ws: Workspace, decision_id: str) -> tuple[StoredDecision, Decision]:
    """The stored decision, and what its stored inputs and policy give now; they differ only where
    the gate's code changed.

    Raises Conflict for a decision that was changed after it was signed.
    """
    with ws.db.read() as connection:
        found = store.find_decisions(connection, decision_id=decision_id)
    if not found:
        raise NotFound(
            f"decision {decision_id!r}",
            "there is no such decision",
            "`thumbwheel evaluate VERSION --json` names its decision",
        )
    ids.require_single(decision_id, [stored.id for stored in found])
    check_decision(ws, found[0])
    return found[0], decide(found[0].inputs, found[0].policy)
