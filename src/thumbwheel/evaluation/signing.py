"""Signatures, with the home's key, over evaluations, the gate's decisions and the verdicts of
experiments.

A row that somebody edits in the database no longer fits its signature. It is refused and never
signed again as it is: only a new measurement or decision gets a new signature. What a decision
depends on is in gate.py, which version may go live in approval.py.
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
from thumbwheel.evaluation.traffic import TrafficVerdict
from thumbwheel.evaluation.types import Evaluation

WHY = (
    "its signature does not fit: it was changed after it was made, or the home's signing.key is "
    "another one"
)


def signed_evaluation(ws: Workspace, evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with its signature. Pass only one that was measured just now, or that
    was `genuine` before this program changed it."""
    # Every default is written out, as it is stored and signed.
    complete = Evaluation(**evaluation.model_dump(mode="json"))
    return complete.model_copy(update={"signature": _signature(ws, "evaluation", complete)})


def signed_decision(ws: Workspace, decision: StoredDecision) -> StoredDecision:
    """Return the decision with its signature."""
    complete = StoredDecision(**decision.model_dump(mode="json"))
    return complete.model_copy(update={"signature": _signature(ws, "decision", complete)})


def signed_verdict(ws: Workspace, verdict: TrafficVerdict) -> TrafficVerdict:
    """Return the verdict of an experiment with its signature."""
    complete = TrafficVerdict(**verdict.model_dump(mode="json"))
    return complete.model_copy(update={"signature": _signature(ws, "traffic", complete)})


def genuine(ws: Workspace, record: Evaluation | StoredDecision | TrafficVerdict) -> bool:
    """Return whether the record is exactly as this home signed it."""
    kind = "decision"
    if isinstance(record, Evaluation):
        kind = "evaluation"
    elif isinstance(record, TrafficVerdict):
        kind = "traffic"
    return hmac.compare_digest(record.signature or "", _signature(ws, kind, record))


def resigned(ws: Workspace, row: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `results` that an erasure left of a stored evaluation, signed again if the `row`
    was genuine. An edited row gets no new signature."""
    identity = {"id": row["id"], "config": row["config"]}
    try:
        before = Evaluation(**row["results"] | identity)
    except (ValidationError, TypeError):  # somebody edited it: it is no evaluation any more
        return dict(results)
    if not genuine(ws, before):
        return dict(results)
    return signed_evaluation(ws, Evaluation(**dict(results) | identity)).model_dump(
        mode="json", exclude=set(identity)
    )


def check_evaluation(ws: Workspace, evaluation: Evaluation) -> None:
    """Raise Conflict for an evaluation that was changed after it was signed."""
    if not genuine(ws, evaluation):
        again = f"thumbwheel evaluate {evaluation.candidate} --agent {evaluation.agent}"
        raise Conflict(
            f"evaluation {evaluation.id!r}", WHY, f"Evaluate again to get new figures: {again}"
        )


def check_decision(ws: Workspace, decision: StoredDecision) -> None:
    """Raise Conflict for a decision that was changed after it was signed."""
    if not genuine(ws, decision):
        fix = (
            "Restore the home from a backup, or evaluate the version again: thumbwheel evaluate "
            "VERSION --agent AGENT"
        )
        raise Conflict(f"decision {decision.id!r}", WHY, fix)


def _signature(ws: Workspace, kind: str, record: Config) -> str:
    """Sign the fields that were set when the record was made: a field that was added to the class
    later is not part of it."""
    content = record.model_dump(mode="json", exclude={"signature"}, exclude_unset=True)
    return make_seal(ws.home.signing).of(kind, ids.canonical(content))
