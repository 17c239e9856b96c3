"""What the gate stands on is signed with the home's key: evaluations when they are made, decisions
when they are taken.

A row that somebody edits in the database no longer fits its signature. It is refused, and never
signed again as it is: only measuring and deciding anew make a new one. Not here: what a decision
depends on (gate.py), which version may go live (approval.py).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from thumbwheel.core import ids
from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import StoredDecision
from thumbwheel.evaluation.types import Evaluation

WHY = (
    "its signature does not fit: it was changed after it was made, or the home's signing.key is "
    "another one"
)


def signed_evaluation(ws: Workspace, evaluation: Evaluation) -> Evaluation:
    """The evaluation with its signature. For one that was measured now, or that was `genuine`
    before it was changed by us."""
    whole = Evaluation(
        **evaluation.model_dump(mode="json")
    )  # with every default written out, as it is stored and signed
    return whole.model_copy(update={"signature": _signature(ws, "evaluation", whole)})


def signed_decision(ws: Workspace, decision: StoredDecision) -> StoredDecision:
    """The decision with its signature."""
    whole = StoredDecision(**decision.model_dump(mode="json"))
    return whole.model_copy(update={"signature": _signature(ws, "decision", whole)})


def genuine(ws: Workspace, record: Evaluation | StoredDecision) -> bool:
    """Whether the record is as this home signed it."""
    kind = "evaluation" if isinstance(record, Evaluation) else "decision"
    return hmac.compare_digest(record.signature or "", _signature(ws, kind, record))


def resigned(ws: Workspace, row: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The `results` that an erasure left of a stored evaluation, signed anew where the `row` was
    genuine; an edited one stays edited."""
    identity = {"id": row["id"], "config": row["config"]}
    try:
        before = Evaluation(**row["results"] | identity)
    except (ValidationError, TypeError):  # edited into something that is no evaluation
        return dict(results)
    if not genuine(ws, before):
        return dict(results)
    return signed_evaluation(ws, Evaluation(**dict(results) | identity)).model_dump(
        mode="json", exclude=set(identity)
    )


def check_evaluation(ws: Workspace, evaluation: Evaluation) -> None:
    """Raise Conflict for an evaluation that is not as it was signed."""
    if not genuine(ws, evaluation):
        again = f"thumbwheel evaluate {evaluation.candidate} --agent {evaluation.agent}"
        raise Conflict(
            f"evaluation {evaluation.id!r}", WHY, f"Evaluate again, which measures anew: {again}"
        )


def check_decision(ws: Workspace, decision: StoredDecision) -> None:
    """Raise Conflict for a decision that is not as it was signed."""
    if not genuine(ws, decision):
        fix = (
            "Restore the home from a backup, or evaluate the version again: thumbwheel evaluate "
            "VERSION --agent AGENT"
        )
        raise Conflict(f"decision {decision.id!r}", WHY, fix)


def _signature(ws: Workspace, kind: str, record: Config) -> str:
    """Over what was written then: a field that came later is not part of it."""
    content = record.model_dump(mode="json", exclude={"signature"}, exclude_unset=True)
    return make_seal(ws.home.signing).of(kind, ids.canonical(content))
