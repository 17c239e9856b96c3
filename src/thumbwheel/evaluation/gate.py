"""The gate: a pure function from what was measured to approved, approved for a canary, or rejected; stored, and replayed.

Approved means that the lower bound of the gain lies above zero on cases that the owner reviewed, judged on fresh generations, and that no
guard got worse beyond its margin. Everything that stands on feedback, or on ranking recorded answers, reaches a canary at best.

Reading the held-out rows again is spending: for the r-th read the bound is taken at 1 - alpha / 2^(r-1), so that all reads of one
candidate together err with less than 2 alpha, and the first, which is the rule, with alpha.
"""

from __future__ import annotations

from collections.abc import Callable

from thumbwheel.core.errors import NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import (
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    Decision,
    Evaluation,
    GateInputs,
    GatePolicy,
    Guard,
    StoredDecision,
    Verdict,
)
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion, State


def gate_level(level: float, reads: int) -> float:
    """The confidence level of the bound at the `reads`-th read.

    >>> gate_level(0.95, 1), gate_level(0.95, 2)
    (0.95, 0.975)
    """
    return round(1 - (1 - level) * 0.5 ** (reads - 1), 12)


def decide(inputs: GateInputs, policy: GatePolicy) -> Decision:
    """The verdict on `inputs` under `policy`; reasons first say what decided it, then what else was seen. Depends on nothing else."""
    failures = [*_primary_failures(inputs, policy), *_guard_failures(inputs, policy)]
    seen = [f"guard {guard.name}: not measured ({guard.n} of at least {policy.min_guard} items)" for guard in _unmeasured(inputs, policy)]
    if failures:
        return Decision(verdict=Verdict.REJECTED, reasons=(*failures, *seen))
    gain = f"{inputs.measure} gains {inputs.gain:+.4f}, at least {inputs.low:+.4f} at {inputs.level:.4g} confidence"
    limits = _limits(inputs)
    verdict = Verdict.CANARY if limits else Verdict.APPROVED
    return Decision(verdict=verdict, reasons=(gain, *limits, *seen))


def _primary_failures(inputs: GateInputs, policy: GatePolicy) -> list[str]:
    found = []
    if inputs.tainted:
        found.append("the version is tainted: data that it was trained on was erased; retrain without it")
    if inputs.clusters < policy.min_cases:
        found.append(f"{inputs.clusters} groups of held-out cases are too few to decide on; at least {policy.min_cases} are needed")
    if not inputs.low > 0:
        found.append(
            f"{inputs.measure} goes from {inputs.before:.4f} to {inputs.after:.4f} ({inputs.gain:+.4f}), "
            f"but the gain is only known to lie above {inputs.low:+.4f} at {inputs.level:.4g} confidence, and zero has to be excluded"
        )
    return found


def _limits(inputs: GateInputs) -> list[str]:
    """What keeps a passing candidate from full approval."""
    found = []
    if inputs.basis is not Basis.GOLD:
        found.append("canary only: the cases stand on feedback, not on cases that the owner reviewed (add them with `thumbwheel case add`)")
    if not inputs.fresh:
        found.append("canary only: recorded answers were ranked; no fresh answer was judged")
    return found


def _guard_failures(inputs: GateInputs, policy: GatePolicy) -> list[str]:
    failures = []
    for guard in inputs.guards:
        if guard.name in BREACHES and guard.n >= policy.min_guard and guard.before is not None and guard.after is not None:
            breach = BREACHES[guard.name](guard.before, guard.after, policy)
            failures += [f"guard {guard.name}: {guard.before:.4f} -> {guard.after:.4f} on {guard.n} items, {breach}"] if breach else []
    return failures


def _unmeasured(inputs: GateInputs, policy: GatePolicy) -> list[Guard]:
    return [guard for guard in inputs.guards if guard.n < policy.min_guard or guard.before is None or guard.after is None]


def _nll(before: float, after: float, policy: GatePolicy) -> str:
    return f"more than {policy.margin_nll} nats a token worse" if after - before > policy.margin_nll else ""


def _eos(before: float, after: float, policy: GatePolicy) -> str:
    return f"more than {policy.margin_eos} fewer answers end" if before - after > policy.margin_eos else ""


def _format(before: float, after: float, policy: GatePolicy) -> str:
    return f"more than {policy.margin_format} fewer answers are well-formed" if before - after > policy.margin_format else ""


def _length(before: float, after: float, policy: GatePolicy) -> str:
    low, high = sorted((max(before, 1e-9), max(after, 1e-9)))
    return f"answers changed their length by more than a factor of {policy.max_growth}" if high > policy.max_growth * low else ""


BREACHES: dict[str, Callable[[float, float, GatePolicy], str]] = {NLL: _nll, EOS: _eos, FORMAT: _format, LENGTH: _length}


def inputs_of(evaluation: Evaluation, tainted: bool = False) -> GateInputs:
    """What the gate reads of an evaluation."""
    primary = evaluation.primary
    return GateInputs(
        basis=evaluation.basis,
        fresh=evaluation.fresh,
        measure=primary.name,
        before=primary.before,
        after=primary.after,
        gain=primary.gain,
        low=evaluation.gate_low,
        level=gate_level(primary.level, evaluation.reads),
        clusters=primary.clusters,
        reads=evaluation.reads,
        guards=evaluation.guards,
        tainted=tainted,
    )


def gate(ws: Workspace, evaluation: Evaluation, policy: GatePolicy | None = None) -> StoredDecision:
    """Decide on the candidate of `evaluation`, store the decision, and move the version's state where it is still a candidate.

    Deciding again on the same evaluation under the same policy returns the stored decision.
    """
    policy = policy or ws.settings(GatePolicy, "gate")
    version = versions.by_id(ws, evaluation.candidate_id)
    inputs = inputs_of(evaluation, version.tainted)
    with ws.db.read() as connection:
        known = store.find_decisions(connection, evaluation_id=evaluation.id)
    found = next((one for one in known if (one.inputs, one.policy) == (inputs, policy)), None)
    if found is None:
        agent_id = versions.require_agent(ws, evaluation.agent)
        decision = decide(inputs, policy)
        found = ws.db.write(lambda c: store.add_decision(c, agent_id, evaluation, decision, inputs, policy))
    _move(ws, version, found.decision)
    return found


def _move(ws: Workspace, version: ModelVersion, decision: Decision) -> None:
    if version.state is not State.CANDIDATE:
        return
    if decision.verdict is Verdict.REJECTED:
        versions.move(ws, version, State.REJECTED)
    else:
        versions.move(ws, version, State.APPROVED, Basis.GOLD if decision.verdict is Verdict.APPROVED else Basis.FEEDBACK)


def replay(ws: Workspace, decision_id: str) -> tuple[StoredDecision, Decision]:
    """The stored decision, and what its stored inputs and policy give now; they differ only where the gate's code changed."""
    with ws.db.read() as connection:
        found = store.find_decisions(connection, decision_id=decision_id)
    if not found:
        raise NotFound(f"decision {decision_id!r}", "there is no such decision", "`thumbwheel evaluate VERSION --json` names its decision")
    return found[0], decide(found[0].inputs, found[0].policy)
