"""Seals of the rows that verdicts are made from: a keyed hash over each exposure and each call,
with the home's key, from the moment in which they are read off the recorded calls.

A verdict is signed with its figures, and is computed again from these rows. So a row that somebody
edits in the database has to show, before a verdict as well as after it. A row that is missing may
have been erased with its subject; the figures that a verdict is signed with say how many there
were.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from thumbwheel.capture.gateway_seal import is_seal
from thumbwheel.core import ids
from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments import store
from thumbwheel.experiments.store import CountedCall, Exposure
from thumbwheel.experiments.types import Experiment


@dataclass(frozen=True)
class SealCheck:
    """Which rows of an experiment are not what was recorded."""

    changed: tuple[str, ...]
    """Rows whose seal does not fit, in words."""
    gone: int
    """Calls that were recorded and are there no more."""


def sealed_exposure(seal: Seal, experiment_id: str, exposure: Exposure) -> Exposure:
    """Return the exposure with its seal."""
    return replace(exposure, seal=seal.of("exposure", _exposure_text(experiment_id, exposure)))


def sealed_call(seal: Seal, experiment_id: str, call: CountedCall) -> CountedCall:
    """Return the call with its seal."""
    return replace(call, seal=seal.of("exposed call", _call_text(experiment_id, call)))


def check_seals(ws: Workspace, experiment: Experiment) -> SealCheck:
    """Compare every row with its seal."""
    with ws.db.read() as connection:
        exposures = store.exposures_of(connection, experiment.id)
        calls = store.calls_of(connection, experiment.id)
    seal = make_seal(ws.home.signing)
    changed = [
        f"exposure of unit {exposure.unit}"
        for exposure in exposures
        if not _equal(exposure.seal, sealed_exposure(seal, experiment.id, exposure).seal)
    ]
    changed += [
        f"call {call.trace_id}"
        for call in calls
        if not _equal(call.seal, sealed_call(seal, experiment.id, call).seal)
    ]
    return SealCheck(tuple(changed), experiment.collected.calls - len(calls))


def vouched_calls(ws: Workspace, experiment: Experiment) -> int:
    """Count the collected calls that are unchanged since the gateway sealed them when they were
    answered."""
    seal = make_seal(ws.home.signing)
    with ws.db.read() as connection:
        calls = list(store.sealed_calls(connection, experiment.id))
    return sum(
        is_seal(stored, seal, experiment.agent, name, facts) for stored, name, facts in calls
    )


def _exposure_text(experiment_id: str, exposure: Exposure) -> str:
    return ids.canonical(
        [
            experiment_id,
            exposure.unit,
            exposure.arm,
            exposure.stratum,
            dict(exposure.shares),
            exposure.trace_id,
            _stamp(exposure.exposed_at),
        ]
    )


def _call_text(experiment_id: str, call: CountedCall) -> str:
    values: list[Any] = [
        experiment_id,
        call.trace_id,
        call.unit,
        call.arm,
        call.assigned,
        call.stratum,
        call.failed,
        call.seconds,
        call.cost,
        _stamp(call.occurred_at),
    ]
    return ids.canonical(values)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _equal(stored: str | None, expected: str | None) -> bool:
    return hmac.compare_digest(stored or "", expected or "")
