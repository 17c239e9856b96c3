"""The seal of a recorded call: a keyed hash with which the gateway vouches for what only it knows.

Who answered a call and why (version, deployment, arm, shares), when, with what status and at what
price decides experiments, so nobody else may say it. The gateway seals these fields together with
the name of the trace, with a key of the home. A line without a valid seal may have the same keys,
as an export of another home has: they are kept in the metadata of the trace, as a claim, and no
column has them.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.seal import Seal
from thumbwheel.importers.types import StepRecord, TraceRecord

GATEWAY_FIELDS = ("model_version", "deployment", "routing", "cost")
"""Keys of a step that only the gateway may write."""
CLAIMED = "claimed"
"""Where the metadata of a trace has these keys of its steps, where nobody vouches for them."""
SEAL = "seal"
"""The key of a line that has its seal."""
SPOOLED = "sdk"
"""The source of the lines of the inbox, where the gateway's are."""
KIND = "gateway call"


@dataclass(frozen=True)
class GatewayFacts:
    """What the gateway knows of a call; `shares` and the other parts of routing as it drew them."""

    model_version: str | None
    deployment: str | None
    routing: Mapping[str, Any] | None
    cost: float | None
    status: str
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def canonical(self) -> list[Any]:
        """The facts as JSON that is the same however they were stored."""
        routing = {key: value for key, value in (self.routing or {}).items() if value is not None}
        if shares := routing.get("probabilities"):
            routing["probabilities"] = {arm: float(share) for arm, share in shares.items()}
        return [
            self.model_version,
            self.deployment,
            routing,
            None if self.cost is None else float(self.cost),
            self.status,
            _stamp(self.started_at),
            _stamp(self.ended_at),
        ]


def seal_of(seal: Seal, agent: str, trace_name: str, facts: GatewayFacts) -> str:
    """Return the seal of the call recorded under `trace_name`."""
    return seal.of(KIND, ids.canonical([agent, trace_name, facts.canonical]))


def is_seal(stored: str | None, seal: Seal, agent: str, name: str, facts: GatewayFacts) -> bool:
    """Return whether `stored` is the seal of this call."""
    return stored is not None and hmac.compare_digest(stored, seal_of(seal, agent, name, facts))


def sealed_line(seal: Seal, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of a call with its seal. A line without a call, for example if no model
    answered, is returned without one."""
    calls = [step for step in line.get("steps", ()) if any(step.get(key) for key in GATEWAY_FIELDS)]
    if len(calls) != 1:
        return dict(line)
    (call,) = calls
    facts = GatewayFacts(
        call.get("model_version"),
        call.get("deployment"),
        call.get("routing"),
        call.get("cost"),
        call.get("status", "ok"),
        _time(call.get("started_at")),
        _time(call.get("ended_at")),
    )
    return {**line, SEAL: seal_of(seal, line["agent"], line["id"], facts)}


def is_sealed(seal: Seal | None, agent: str, source: str, record: TraceRecord) -> bool:
    """Return whether the gateway of this home vouches for the record, which came from `source`."""
    calls = _calls(record.steps)
    if seal is None or record.id is None or source != SPOOLED or len(calls) != 1:
        return False
    (call,) = calls
    facts = GatewayFacts(
        call.model_version,
        call.deployment,
        call.routing.model_dump() if call.routing else None,
        call.cost,
        call.status,
        call.started_at,
        call.ended_at,
    )
    return is_seal(record.seal, seal, agent, record.id, facts)


def claims_of(record: TraceRecord) -> list[dict[str, Any]]:
    """Return, for each step of a record that has any, its fields that only the gateway may set."""
    claims = []
    for position, step in enumerate(record.steps):
        facts = step.model_dump(mode="json", include=set(GATEWAY_FIELDS), exclude_none=True)
        if facts:
            claims.append({"step": position, **facts})
    return claims


def _calls(steps: Sequence[StepRecord]) -> list[StepRecord]:
    return [step for step in steps if any(getattr(step, key) for key in GATEWAY_FIELDS)]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
