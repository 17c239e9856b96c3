"""All SQL of experiments. Recorded calls and what is said about them belong to capture and are only
read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.gateway_seal import GatewayFacts
from thumbwheel.core import ids
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.dialects import json_text
from thumbwheel.db.feedback_in_force import STATED_AT, in_force, speaker
from thumbwheel.db.schema import (
    agents,
    experiment_events,
    experiments,
    exposed_calls,
    exposures,
    feedback,
    feedback_targets,
    model_versions,
    raters,
    steps,
    strata,
    traces,
)
from thumbwheel.db.workspace import OWNER_OF_HOME
from thumbwheel.experiments.types import ENDS, Collected, Event, Experiment, Plan, State, Stratum

_JOINED = sa.select(experiments, agents.c.slug.label("agent")).join(
    agents, agents.c.id == experiments.c.agent_id
)


@dataclass(frozen=True)
class RecordedCall:
    """A recorded call, as the gateway says who answered it."""

    trace_id: str
    routing: Mapping[str, Any]
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    cost: float | None
    occurred_at: datetime | None
    recorded_at: datetime

    @property
    def seconds(self) -> float | None:
        """How long it took; None where that is not known."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


@dataclass(frozen=True)
class CountedCall:
    """A call while an experiment ran. `arm` is None where it does not count."""

    trace_id: str
    unit: str | None
    arm: str | None
    assigned: str | None
    stratum: int
    failed: bool
    seconds: float | None
    cost: float | None
    occurred_at: datetime
    seal: str | None = None
    """See row_seals.py; None before that."""


@dataclass(frozen=True)
class Exposure:
    """The first counted call of a unit."""

    unit: str
    arm: str
    stratum: int
    shares: Mapping[str, float]
    trace_id: str
    exposed_at: datetime
    seal: str | None = None


@dataclass(frozen=True)
class CallStatement:
    """A word about a call."""

    feedback_id: str
    trace_id: str
    name: str | None
    value: Any
    scale: Mapping[str, float] | None
    speaker: str
    rater_id: str | None
    rater_kind: str
    weight: float
    stated_at: datetime
    recorded_at: datetime
    sender: str | None = OWNER_OF_HOME
    """Who sent it, which is known, where the rater is a claim."""


def insert(
    connection: sa.Connection,
    agent_id: str,
    alias: str,
    plan: Plan,
    salt: str,
    shares: Mapping[str, float],
) -> str:
    """Insert a running experiment with its first stratum and return its id."""
    experiment_id = ids.new("exp")
    row = {
        "id": experiment_id,
        "agent_id": agent_id,
        "alias": alias,
        "plan": plan.model_dump(mode="json"),
        "salt": salt,
        "state": State.RUNNING,
        "reason": "",
        "collected": {},
        "recorded_at": datetime.now(UTC),
    }
    connection.execute(experiments.insert().values(**row))
    add_stratum(connection, experiment_id, shares, "the start")
    return experiment_id


def add_stratum(
    connection: sa.Connection, experiment_id: str, shares: Mapping[str, float], reason: str
) -> None:
    """Store the shares that apply from now on."""
    number = _next(connection, strata, experiment_id)
    connection.execute(
        strata.insert().values(
            experiment_id=experiment_id,
            number=number,
            shares=dict(shares),
            reason=reason,
            recorded_at=datetime.now(UTC),
        )
    )


def add_event(
    connection: sa.Connection, experiment_id: str, kind: str, content: Mapping[str, Any]
) -> None:
    """Record an event of the experiment."""
    connection.execute(
        experiment_events.insert().values(
            experiment_id=experiment_id,
            number=_next(connection, experiment_events, experiment_id),
            kind=kind,
            content=dict(content),
            recorded_at=datetime.now(UTC),
        )
    )


def _next(connection: sa.Connection, table: sa.Table, experiment_id: str) -> int:
    highest = connection.execute(
        sa.select(sa.func.max(table.c.number)).where(table.c.experiment_id == experiment_id)
    ).scalar()
    return 0 if highest is None else highest + 1


def events(connection: sa.Connection, experiment_id: str) -> list[Event]:
    """Return the events of an experiment, oldest first."""
    query = (
        sa.select(experiment_events)
        .where(experiment_events.c.experiment_id == experiment_id)
        .order_by(experiment_events.c.number)
    )
    return [
        Event(row["number"], row["kind"], row["content"], row["recorded_at"])
        for row in connection.execute(query).mappings()
    ]


def by_id(experiment_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the experiment with this id, which may be abbreviated."""
    return has_id(experiments.c.id, experiment_id)


def of_agent(agent_id: str) -> sa.ColumnElement[bool]:
    """Build the condition that selects the experiments of an agent."""
    return experiments.c.agent_id == agent_id


def in_state(*states: State) -> sa.ColumnElement[bool]:
    """Build the condition that selects the experiments in one of these states."""
    return experiments.c.state.in_(states)


def find(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[Experiment]:
    """Return the experiments that match, oldest first."""
    query = _JOINED.where(*where).order_by(experiments.c.recorded_at, experiments.c.id)
    rows = list(connection.execute(query).mappings())
    by_experiment: dict[str, list[Stratum]] = {row["id"]: [] for row in rows}
    query_strata = (
        sa.select(strata)
        .where(strata.c.experiment_id.in_(list(by_experiment)))
        .order_by(strata.c.number)
    )
    for row in connection.execute(query_strata).mappings():
        stratum = Stratum(row["number"], row["shares"], row["reason"], row["recorded_at"])
        by_experiment[row["experiment_id"]].append(stratum)
    return [_experiment(row, by_experiment[row["id"]]) for row in rows]


def _experiment(row: sa.RowMapping, own_strata: Sequence[Stratum]) -> Experiment:
    collected = dict(row["collected"])
    if until := collected.get("until"):
        collected["until"] = datetime.fromisoformat(until)
    return Experiment(
        row["id"],
        row["agent"],
        row["alias"],
        Plan(**row["plan"]),
        row["salt"],
        State(row["state"]),
        row["reason"],
        Collected(**collected),
        row["recorded_at"],
        row["ended_at"],
        tuple(own_strata),
    )


def routing_rows(connection: sa.Connection) -> list[Any]:
    """Return every value by which running experiments decide where a call goes."""
    running = (
        sa.select(experiments.c.id, sa.func.max(strata.c.number))
        .join(strata, strata.c.experiment_id == experiments.c.id)
        .where(experiments.c.state == State.RUNNING)
        .group_by(experiments.c.id)
        .order_by(experiments.c.id)
    )
    return [tuple(row) for row in connection.execute(running)]


def set_state(connection: sa.Connection, experiment: Experiment, state: State, reason: str) -> None:
    """Move an experiment, read anew, to `state`. Raises Conflict for a move that is not legal."""
    (current,) = find(connection, by_id(experiment.id))
    current.check_move(state)
    values: dict[str, Any] = {"state": state, "reason": reason}
    if state in ENDS:
        values["ended_at"] = datetime.now(UTC)
    connection.execute(
        experiments.update().where(experiments.c.id == experiment.id).values(**values)
    )
    add_event(connection, experiment.id, str(state), {"reason": reason})


def set_collected(connection: sa.Connection, experiment_id: str, collected: Collected) -> None:
    """Note up to where recorded calls were read."""
    values = asdict(collected)
    values["until"] = collected.until.isoformat() if collected.until else None
    connection.execute(
        experiments.update().where(experiments.c.id == experiment_id).values(collected=values)
    )


def uncollected(
    connection: sa.Connection, agent_id: str, experiment_id: str, since: datetime, most: int
) -> list[RecordedCall]:
    """Return calls of an experiment that were recorded since then and are not collected yet, in the
    order in which they were recorded."""
    query = (
        sa.select(
            traces.c.id,
            steps.c.routing,
            steps.c.status,
            steps.c.started_at,
            steps.c.ended_at,
            steps.c.cost,
            traces.c.occurred_at,
            traces.c.recorded_at,
        )
        .join(steps, steps.c.trace_id == traces.c.id)
        .outerjoin(exposed_calls, exposed_calls.c.trace_id == traces.c.id)
        .where(
            traces.c.agent_id == agent_id,
            traces.c.recorded_at >= since,
            json_text(steps.c.routing, "experiment") == experiment_id,
            traces.c.seal.is_not(None),
            exposed_calls.c.trace_id.is_(None),
        )
        .order_by(traces.c.recorded_at, traces.c.id)
        .limit(most)
    )
    return [RecordedCall(*row) for row in connection.execute(query)]


def sealed_calls(
    connection: sa.Connection, experiment_id: str
) -> Iterator[tuple[str | None, str, GatewayFacts]]:
    """Yield (seal, name of the trace, the facts that the gateway knows) of each collected call of
    an experiment whose trace is there; one without such a step has its trace without facts."""
    query = (
        sa.select(
            traces.c.seal,
            traces.c.external_id,
            model_versions.c.number,
            steps.c.deployment,
            steps.c.routing,
            steps.c.cost,
            steps.c.status,
            steps.c.started_at,
            steps.c.ended_at,
        )
        .join(exposed_calls, exposed_calls.c.trace_id == traces.c.id)
        .join(steps, steps.c.trace_id == traces.c.id)
        .outerjoin(model_versions, model_versions.c.id == steps.c.model_version_id)
        .where(
            exposed_calls.c.experiment_id == experiment_id,
            json_text(steps.c.routing, "experiment") == experiment_id,
        )
    )
    for seal, name, number, *facts in connection.execute(query):
        version = None if number is None else f"v{number}"
        yield seal, name, GatewayFacts(version, *facts)


def add_calls(connection: sa.Connection, experiment_id: str, calls: Iterable[CountedCall]) -> None:
    """Insert calls of an experiment."""
    rows = [{"experiment_id": experiment_id, **asdict(call)} for call in calls]
    if rows:
        connection.execute(exposed_calls.insert(), rows)


def add_exposures(
    connection: sa.Connection, experiment_id: str, new_exposures: Iterable[Exposure]
) -> None:
    """Insert exposures of units that have none."""
    rows = [{"experiment_id": experiment_id, **asdict(exposure)} for exposure in new_exposures]
    if rows:
        connection.execute(exposures.insert(), rows)


def arms_of_units(
    connection: sa.Connection, experiment_id: str, units: Iterable[str]
) -> dict[str, str]:
    """Return unit -> the arm that it was exposed to first."""
    arms: dict[str, str] = {}
    for batch in batches(sorted(units)):
        query = sa.select(exposures.c.unit, exposures.c.arm).where(
            exposures.c.experiment_id == experiment_id, exposures.c.unit.in_(batch)
        )
        arms.update(connection.execute(query).tuples().all())
    return arms


def exposures_of(
    connection: sa.Connection, experiment_id: str, as_of: datetime | None = None
) -> list[Exposure]:
    """Return the exposed units, in the order of their exposure."""
    until = [] if as_of is None else [traces.c.recorded_at <= as_of]
    columns = [exposures.c[name] for name in Exposure.__dataclass_fields__]
    query = (
        sa.select(*columns)
        .join(traces, traces.c.id == exposures.c.trace_id)
        .where(exposures.c.experiment_id == experiment_id, *until)
        .order_by(exposures.c.exposed_at, exposures.c.unit)
    )
    return [Exposure(*row) for row in connection.execute(query)]


def calls_of(
    connection: sa.Connection, experiment_id: str, as_of: datetime | None = None
) -> list[CountedCall]:
    """Return all calls of an experiment, in the order in which they were made."""
    until = [] if as_of is None else [traces.c.recorded_at <= as_of]
    columns = [exposed_calls.c[name] for name in CountedCall.__dataclass_fields__]
    query = (
        sa.select(*columns)
        .join(traces, traces.c.id == exposed_calls.c.trace_id)
        .where(exposed_calls.c.experiment_id == experiment_id, *until)
        .order_by(exposed_calls.c.occurred_at, exposed_calls.c.trace_id)
    )
    return [CountedCall(*row) for row in connection.execute(query)]


_SPOKEN = (
    feedback.c.id,
    traces.c.id.label("trace_id"),
    feedback.c.name,
    feedback.c.value,
    feedback.c.scale,
    speaker(traces.c.external_id).label("speaker"),
    feedback.c.rater_id,
    sa.func.coalesce(raters.c.kind, "person"),
    sa.func.coalesce(raters.c.weight, 1.0),
    STATED_AT.label("stated_at"),
    feedback.c.recorded_at,
    feedback.c.sender,
)
_ABOUT = (
    traces.join(feedback_targets, feedback_targets.c.target_id == traces.c.id)
    .join(feedback, feedback.c.id == feedback_targets.c.feedback_id)
    .outerjoin(raters, raters.c.id == feedback.c.rater_id)
)


def statements(
    connection: sa.Connection,
    agent_id: str,
    experiment_id: str,
    kind: str,
    as_of: datetime | None = None,
) -> list[CallStatement]:
    """Return the statements of this kind in force about calls of an experiment, in the order in
    which they came. A statement about a session counts for its first counted call."""
    counted = [
        exposed_calls.c.experiment_id == experiment_id,
        exposed_calls.c.arm.is_not(None),
        feedback.c.kind == kind,
        in_force(agent_id, as_of),
    ]
    about_calls = (
        sa.select(*_SPOKEN)
        .select_from(_ABOUT.join(exposed_calls, exposed_calls.c.trace_id == traces.c.id))
        .where(feedback_targets.c.kind.in_(("trace", "step")), *counted)
    )
    of_session = feedback_targets.c.target_id == traces.c.session_id
    about_sessions = (
        sa.select(*_SPOKEN)
        .select_from(
            traces.join(feedback_targets, of_session)
            .join(feedback, feedback.c.id == feedback_targets.c.feedback_id)
            .outerjoin(raters, raters.c.id == feedback.c.rater_id)
            .join(exposed_calls, exposed_calls.c.trace_id == traces.c.id)
        )
        .where(feedback_targets.c.kind == "session", *counted)
        .order_by(feedback.c.id, exposed_calls.c.occurred_at, traces.c.id)
    )
    spoken = [CallStatement(*row) for row in connection.execute(about_calls)]
    first_calls: dict[str, CallStatement] = {}
    for row in connection.execute(about_sessions):
        statement = CallStatement(*row)
        first_calls.setdefault(statement.feedback_id, statement)
    spoken += first_calls.values()
    return sorted(spoken, key=lambda word: (word.recorded_at, word.feedback_id))


def earlier_statements(
    connection: sa.Connection, agent_id: str, experiment: Experiment, kind: str
) -> list[tuple[str, CallStatement]]:
    """Return (subject, statement) of this kind about calls of the exposed units' subjects before
    the experiment began. Each statement comes once, however many units its subject is."""
    first_calls = traces.alias("first_calls")
    exposed_subjects = (
        sa.select(first_calls.c.subject_id)
        .join(exposures, exposures.c.trace_id == first_calls.c.id)
        .where(exposures.c.experiment_id == experiment.id)
    )
    query = (
        sa.select(traces.c.subject_id, *_SPOKEN)
        .select_from(_ABOUT)
        .where(
            traces.c.subject_id.in_(exposed_subjects),
            traces.c.agent_id == agent_id,
            feedback.c.kind == kind,
            feedback_targets.c.kind.in_(("trace", "step")),
            feedback.c.recorded_at < experiment.recorded_at,
            in_force(agent_id, experiment.recorded_at),
        )
    )
    return [(row[0], CallStatement(*row[1:])) for row in connection.execute(query)]


def subjects_of_units(connection: sa.Connection, experiment_id: str) -> dict[str, str]:
    """Return unit -> the subject of its first call, if that has one."""
    query = (
        sa.select(exposures.c.unit, traces.c.subject_id)
        .join(traces, traces.c.id == exposures.c.trace_id)
        .where(exposures.c.experiment_id == experiment_id, traces.c.subject_id.is_not(None))
    )
    return dict(connection.execute(query).tuples().all())


def seconds_of_version(connection: sa.Connection, version_id: str, most: int) -> list[float]:
    """Return the durations of the newest calls of a version, in seconds."""
    query = (
        sa.select(steps.c.started_at, steps.c.ended_at)
        .where(
            steps.c.model_version_id == version_id,
            steps.c.started_at.is_not(None),
            steps.c.ended_at.is_not(None),
        )
        .order_by(steps.c.recorded_at.desc())
        .limit(most)
    )
    return [(end - start).total_seconds() for start, end in connection.execute(query)]


def values_of_version(
    connection: sa.Connection, agent_id: str, version_id: str, kind: str, most: int
) -> list[CallStatement]:
    """Return the newest statements of this kind about answers of a version."""
    answered = sa.select(steps.c.trace_id).where(steps.c.model_version_id == version_id)
    query = (
        sa.select(*_SPOKEN)
        .select_from(_ABOUT)
        .where(
            traces.c.agent_id == agent_id,
            traces.c.id.in_(answered),
            feedback.c.kind == kind,
            in_force(agent_id),
        )
        .order_by(feedback.c.recorded_at.desc())
        .limit(most)
    )
    return [CallStatement(*row) for row in connection.execute(query)]


def logged_choices(
    connection: sa.Connection, agent_id: str, kind: str, name: str | None
) -> list[tuple[str, Mapping[str, float], CallStatement]]:
    """Return (arm, probabilities of all arms, statement) of earlier experiments of an agent."""
    query = (
        sa.select(exposed_calls.c.arm, exposures.c.shares, *_SPOKEN)
        .select_from(
            _ABOUT.join(exposed_calls, exposed_calls.c.trace_id == traces.c.id).join(
                exposures,
                (exposures.c.experiment_id == exposed_calls.c.experiment_id)
                & (exposures.c.unit == exposed_calls.c.unit),
            )
        )
        .where(
            traces.c.agent_id == agent_id,
            exposed_calls.c.arm.is_not(None),
            feedback.c.kind == kind,
            in_force(agent_id),
            *([] if name is None else [feedback.c.name == name]),
        )
    )
    return [(row[0], row[1], CallStatement(*row[2:])) for row in connection.execute(query)]
