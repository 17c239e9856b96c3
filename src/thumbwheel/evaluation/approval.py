"""Which version may carry an alias: one whose state agrees with a signed decision of the gate.

The state of a version is a column of the database, which anybody who can edit the file can change.
So the state alone is not enough to go live. There has to be a decision of the gate about this
version and these weights, with a valid signature. What runs today (a base, an endpoint) was not
trained here and needs none.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.policy import GateVerdict, StoredDecision
from thumbwheel.evaluation.signing import WHY, genuine
from thumbwheel.evaluation.traffic import WON, TrafficVerdict
from thumbwheel.models.types import LIVE, Basis, ModelVersion

ENOUGH = {
    Basis.GOLD: (GateVerdict.APPROVED,),
    Basis.FEEDBACK: (GateVerdict.APPROVED, GateVerdict.CANARY),
    Basis.TRAFFIC: (GateVerdict.APPROVED, GateVerdict.CANARY),
}
"""Basis of an approval -> the verdicts that give it."""


def require_approval(ws: Workspace, version: ModelVersion, alias: str) -> None:
    """Raise Conflict unless `version` may be served under `alias`, and a signed decision of the
    gate says so."""
    version.check_alias(alias)
    if version.adapter is None or approvals(ws, version):
        return
    raise Conflict(
        f"version {version.name!r} of agent {version.agent!r}",
        f"it is marked {version.state} on {version.basis or 'nothing'}, but no decision of the "
        "gate with a fitting signature says so",
        f"Evaluate it again to get a new decision: thumbwheel evaluate {version.name} --agent "
        f"{version.agent}",
    )


def approvals(ws: Workspace, version: ModelVersion) -> list[StoredDecision]:
    """Return the decisions that justify the state and basis of `version`: signed by this home,
    about its current weights. Basis `traffic` also needs a won experiment."""
    if version.basis is None:
        return []
    with ws.db.read() as connection:
        decisions = store.find_decisions(connection, version_id=version.id)
        verdicts = store.traffic_verdicts(connection, version_id=version.id)
    if version.basis is Basis.TRAFFIC and not any(
        _has_won(ws, version, verdict) for verdict in verdicts
    ):
        return []
    justifying = []
    for decision in decisions:
        enough = decision.decision.verdict in ENOUGH[version.basis]
        # Decisions from before weights were recorded have none.
        same_weights = decision.inputs.weights in (None, version.weights)
        if enough and same_weights and genuine(ws, decision):
            justifying.append(decision)
    return justifying


def _has_won(ws: Workspace, version: ModelVersion, verdict: TrafficVerdict) -> bool:
    """Return whether this home signed that the version, with its current weights, won against the
    live one."""
    about_live = verdict.verdict == WON and verdict.alias == LIVE
    return about_live and verdict.weights == version.weights and genuine(ws, verdict)


def approval_state(ws: Workspace) -> str:
    """Return a text that changes with each new decision or verdict of any agent."""
    with ws.db.read() as connection:
        verdicts = store.traffic_verdicts(connection)
        signatures = [(verdict.id, verdict.signature) for verdict in verdicts]
        return repr((store.decision_keys(connection), signatures))


def traffic_verdicts(ws: Workspace, experiment_id: str) -> list[TrafficVerdict]:
    """Return the verdicts of an experiment, oldest first."""
    with ws.db.read() as connection:
        return store.traffic_verdicts(connection, experiment_id=experiment_id)


def verdicts_so_far(connection: sa.Connection, experiment_id: str) -> list[TrafficVerdict]:
    """Return the verdicts of an experiment within an open transaction, oldest first."""
    return store.traffic_verdicts(connection, experiment_id=experiment_id)


def add_traffic_verdicts(
    connection: sa.Connection, agent_id: str, verdicts: Sequence[TrafficVerdict]
) -> None:
    """Store signed verdicts inside the transaction of the experiment."""
    for verdict in verdicts:
        store.add_traffic_verdict(connection, agent_id, verdict)


def check_traffic_verdict(ws: Workspace, verdict: TrafficVerdict) -> None:
    """Raise Conflict for a verdict that was changed after it was signed."""
    if not genuine(ws, verdict):
        fix = "Restore the home from a backup, or run the experiment again"
        raise Conflict(f"verdict {verdict.id!r}", WHY, fix)
