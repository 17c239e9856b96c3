"""What each exposed unit came to: its outcome by the metric, and the figures of the guards.

Only what was said about counted calls within the attribution window counts, each rater's newest
word about a call, by the rater's weight. A unit of which nobody said anything has no outcome, which
is not zero. The words of one rater count for a limited number of units, so that nobody decides an
experiment by clicking; who names no rater is the rater, whatever they send.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from thumbwheel.db.workspace import IMPORTED, Workspace
from thumbwheel.experiments import store
from thumbwheel.experiments.senders import sender_figures, voice_of
from thumbwheel.experiments.store import CallStatement, CountedCall, Exposure
from thumbwheel.experiments.types import Experiment, ExperimentConfig, Figures, UnitFigures
from thumbwheel.models.types import Agent

SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
"""The scale of a number that comes without one."""
AUTOMATIC = ("checker", "model")
"""Raters that are no persons."""


def figures(ws: Workspace, experiment: Experiment, as_of: datetime | None = None) -> Figures:
    """Return the figures of the exposed units, by all that was recorded until `as_of` (default:
    now)."""
    config, agent_id = experiment.plan.config, Agent.named(experiment.agent).id
    with ws.db.read() as connection:
        exposures = store.exposures_of(connection, experiment.id, as_of)
        calls = store.calls_of(connection, experiment.id, as_of)
        spoken = store.statements(connection, agent_id, experiment.id, config.kind, as_of)
        earlier = store.earlier_statements(connection, agent_id, experiment, config.kind)
        subjects = store.subjects_of_units(connection, experiment.id)
    mean_before = _earlier_means(config, earlier)
    before = {}
    for unit, subject in subjects.items():
        if subject in mean_before:
            before[unit] = mean_before[subject]
    threshold = next(
        (guard.threshold for guard in experiment.plan.guards if guard.threshold is not None), None
    )
    return unit_figures(config, exposures, calls, spoken, before, threshold)


def unit_figures(
    config: ExperimentConfig,
    exposures: Sequence[Exposure],
    calls: Sequence[CountedCall],
    spoken: Sequence[CallStatement],
    before: Mapping[str, float],
    threshold: float | None = None,
) -> Figures:
    """Compute the figures of units from the rows of an experiment. `before`: unit -> the value of
    the same metric before the experiment, if known. `threshold`: seconds from which a call is
    slow."""
    counted_calls = {call.trace_id: call for call in calls if call.arm is not None}
    in_time, late, names = [], 0, Counter[str]()
    for statement in newest(_admitted(config, spoken)):
        if config.name is not None and statement.name != config.name:
            names[statement.name or ""] += 1
            continue
        call = counted_calls.get(statement.trace_id)
        if call is None or value_of(config.kind, statement) is None:
            continue
        if _is_late(config, call, statement):
            late += 1
            continue
        in_time.append(statement)
    admitted_statements, flooded = _without_floods(config, in_time, counted_calls)

    by_unit: dict[str, list[CallStatement]] = defaultdict(list)
    for statement in admitted_statements:
        unit = counted_calls[statement.trace_id].unit
        if unit is not None:
            by_unit[unit].append(statement)
    calls_by_unit: dict[str, list[CountedCall]] = defaultdict(list)
    for call in calls:
        # A call that the drawn arm failed to answer counts against it, and in nothing else.
        if call.unit is not None and call.assigned is not None:
            calls_by_unit[call.unit].append(call)
    units = tuple(
        _unit(config.kind, exposure, by_unit, calls_by_unit, before, threshold)
        for exposure in exposures
    )
    words = [
        (statement, value)
        for statement in admitted_statements
        if (value := value_of(config.kind, statement)) is not None
    ]
    senders = sender_figures(words, counted_calls)
    return Figures(units, late, flooded, {} if in_time else dict(names), senders)


def _admitted(config: ExperimentConfig, spoken: Iterable[CallStatement]) -> list[CallStatement]:
    if config.automatic:
        return list(spoken)
    return [statement for statement in spoken if statement.rater_kind not in AUTOMATIC]


def newest(spoken: Iterable[CallStatement]) -> list[CallStatement]:
    """Return each speaker's newest statement about a call, in the order in which they came in."""
    latest: dict[tuple[str, str, str | None], CallStatement] = {}
    for statement in spoken:
        key = (statement.trace_id, statement.speaker, statement.name)
        current = latest.get(key)
        if current is None or _order(current) <= _order(statement):
            latest[key] = statement
    return sorted(latest.values(), key=lambda word: (word.recorded_at, word.feedback_id))


def _order(statement: CallStatement) -> tuple[bool, datetime]:
    """Return the key that orders one speaker's statements: an app of the home after a file, then by
    time."""
    is_imported = statement.sender in (None, IMPORTED)
    return not is_imported, statement.stated_at


def _is_late(config: ExperimentConfig, call: CountedCall, statement: CallStatement) -> bool:
    """Return whether a statement came after the window. A clock that dates it before its call is
    wrong, and then the time of its recording counts."""
    window = timedelta(hours=config.window_hours)
    stated_at = statement.stated_at
    if stated_at < call.occurred_at:
        stated_at = statement.recorded_at
    return stated_at > call.occurred_at + window


def _without_floods(
    config: ExperimentConfig, spoken: Sequence[CallStatement], calls: Mapping[str, CountedCall]
) -> tuple[list[CallStatement], int]:
    """Return the statements without those of raters who already spoke about as many units as count,
    and how many were removed."""
    units_of: dict[str, set[str]] = defaultdict(set)
    admitted = []
    for statement in spoken:
        unit = calls[statement.trace_id].unit
        voice = voice_of(statement)
        if voice is None or unit is None:
            admitted.append(statement)
            continue
        units = units_of[voice]
        if unit in units or len(units) < config.rater_units:
            units.add(unit)
            admitted.append(statement)
    return admitted, len(spoken) - len(admitted)


def value_of(kind: str, statement: CallStatement) -> float | None:
    """Return a statement as a number from 0 to 1; None if it has no value of this kind."""
    value = statement.value
    if isinstance(value, bool):
        return float(value)
    if kind == "thumb" or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    low, high = SCALES[kind]
    if statement.scale:
        low, high = float(statement.scale["min"]), float(statement.scale["max"])
    return min(1.0, max(0.0, (value - low) / (high - low)))


def mean_of(kind: str, spoken: Sequence[CallStatement]) -> tuple[float, float] | None:
    """Return (mean by weight, weight) of statements; None if none of them has a weight."""
    total = weight = 0.0
    for statement in spoken:
        value = value_of(kind, statement)
        if value is not None and statement.weight > 0:
            total += statement.weight * value
            weight += statement.weight
    return (total / weight, weight) if weight else None


def _earlier_means(
    config: ExperimentConfig, earlier: Sequence[tuple[str, CallStatement]]
) -> dict[str, float]:
    """Return subject -> the mean of the statements about its earlier calls."""
    by_subject: dict[str, list[CallStatement]] = defaultdict(list)
    for subject, statement in earlier:
        if config.name is None or statement.name == config.name:
            by_subject[subject].append(statement)
    means = {}
    for subject, spoken in by_subject.items():
        mean = mean_of(config.kind, newest(_admitted(config, spoken)))
        if mean is not None:
            means[subject] = mean[0]
    return means


def _unit(
    kind: str,
    exposure: Exposure,
    spoken: Mapping[str, list[CallStatement]],
    calls: Mapping[str, list[CountedCall]],
    earlier: Mapping[str, float],
    threshold: float | None,
) -> UnitFigures:
    own_words = spoken.get(exposure.unit, [])
    own_calls = [call for call in calls.get(exposure.unit, []) if call.assigned == exposure.arm]
    mean = mean_of(kind, own_words)
    seconds = [call.seconds for call in own_calls if call.seconds is not None]
    costs: list[Any] = [call.cost for call in own_calls if call.cost is not None]
    return UnitFigures(
        unit=exposure.unit,
        arm=exposure.arm,
        stratum=exposure.stratum,
        exposed_at=exposure.exposed_at,
        outcome=mean[0] if mean else None,
        weight=mean[1] if mean else 0.0,
        answered_at=own_words[0].recorded_at if mean else None,
        earlier=earlier.get(exposure.unit),
        calls=len(own_calls),
        failed=sum(call.failed for call in own_calls),
        slow=sum(second > threshold for second in seconds) if threshold is not None else 0,
        timed=len(seconds),
        cost=math.fsum(costs) / len(costs) if costs else None,
    )
