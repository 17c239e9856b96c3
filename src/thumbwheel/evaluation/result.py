"""The result of `evaluate`, as programs read it: the evaluation, and what the gate decided."""

from __future__ import annotations

from pydantic import Field

from thumbwheel.evaluation.policy import GateDecision, GateInputs, GatePolicy, StoredDecision
from thumbwheel.evaluation.types import Evaluation


class PolicyDecision(GateDecision):
    """A decision with its id, and the policy that it was made by."""

    id: str
    """The id of the stored decision, for `evaluate --replay`."""
    policy: GatePolicy
    """The policy in force when it was made."""

    @classmethod
    def of(cls, stored: StoredDecision) -> PolicyDecision:
        """Return the decision of a stored one."""
        return cls(
            id=stored.id,
            verdict=stored.decision.verdict,
            reasons=stored.decision.reasons,
            policy=stored.policy,
        )


class ReplayedDecision(GateDecision):
    """A stored decision that was made again from its inputs."""

    id: str
    """Id of the stored decision."""
    identical: bool
    """True: the same inputs gave the same verdict again."""
    inputs: GateInputs
    """All that the decision depends on besides the policy."""


class EvaluationResult(Evaluation):
    """An evaluation without what only the home reads, with the decision on it."""

    read: tuple[str, ...] = Field(default=(), exclude=True)
    signature: str | None = Field(default=None, exclude=True)
    decision: PolicyDecision | None = None
    """None where the gate did not decide."""

    @classmethod
    def of(cls, evaluation: Evaluation, stored: StoredDecision | None) -> EvaluationResult:
        """Return the result of an evaluation with this decision on it."""
        decision = None if stored is None else PolicyDecision.of(stored)
        measured = {name: getattr(evaluation, name) for name in Evaluation.model_fields}
        return cls(**measured, decision=decision)
