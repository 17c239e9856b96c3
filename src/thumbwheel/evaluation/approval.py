"""Which version may carry an alias: one whose state is what a signed decision of the gate says.

The state of a version is a column of the database, and whoever can edit a file can edit that. So
the state alone lets nothing go live: there has to be a decision of the gate about this version and
these weights, with a signature that fits. What runs today (a base, an endpoint) was never trained
here and needs none.
"""

from __future__ import annotations

from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.policy import StoredDecision, Verdict
from thumbwheel.evaluation.signing import genuine
from thumbwheel.models.types import Basis, ModelVersion

ENOUGH = {
    Basis.GOLD: (Verdict.APPROVED,),
    Basis.FEEDBACK: (Verdict.APPROVED, Verdict.CANARY),
}
"""What an approval stands on -> the verdicts that give it."""


def require_approval(ws: Workspace, version: ModelVersion, alias: str) -> None:
    """Raise Conflict unless `version` may be served under `alias`, and a signed decision of the
    gate says so."""
    version.check_alias(alias)
    if version.adapter is None or approvals(ws, version):
        return
    raise Conflict(
        f"version {version.name!r} of agent {version.agent!r}",
        f"it is marked {version.state} on {version.basis or 'nothing'}, and no decision of the "
        "gate with a fitting signature says so",
        f"Evaluate it again, which decides anew: thumbwheel evaluate {version.name} --agent "
        f"{version.agent}",
    )


def approvals(ws: Workspace, version: ModelVersion) -> list[StoredDecision]:
    """The decisions that give `version` the state and basis that it has: signed by this home, about
    the weights that it has now."""
    if version.basis is None:
        return []
    with ws.db.read() as connection:
        decisions = store.find_decisions(connection, version_id=version.id)
    return [
        decision
        for decision in decisions
        if decision.decision.verdict in ENOUGH[version.basis]
        and decision.inputs.weights
        in (None, version.weights)  # decisions from before weights were written down have none
        and genuine(ws, decision)
    ]
