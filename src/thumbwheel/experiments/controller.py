"""Runs experiments: starts them, looks at them at any time, decides, and says what has to follow.

This is the first file to read. `turn` is one look: it reads the calls that were recorded since
(exposures.py), makes figures of units (metrics.py) and intervals of figures (analysis.py), and
decides. A decision is a signed verdict first. What follows from it (the basis of the winner, the
move of the alias through `Effects`, the end) is safe to do twice, and is done by the next turn
where the process ended in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np
import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, DataError, InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import approval
from thumbwheel.evaluation.signing import signed_verdict
from thumbwheel.evaluation.spending import experiment_number
from thumbwheel.evaluation.traffic import TrafficVerdict
from thumbwheel.experiments import store
from thumbwheel.experiments.analysis import DEAD, analyse, next_shares
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.metrics import figures, mean_of, value_of
from thumbwheel.experiments.row_seals import check_seals
from thumbwheel.experiments.senders import decided
from thumbwheel.experiments.store import CountedCall
from thumbwheel.experiments.types import (
    MARGINS,
    Arm,
    Decision,
    Event,
    Experiment,
    ExperimentConfig,
    Forecast,
    GuardPlan,
    Inputs,
    Plan,
    State,
    ramp_steps,
)
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, Basis, ModelVersion
from thumbwheel.stats.duration import detectable_effect, expected_units
from thumbwheel.stats.off_policy import snips
from thumbwheel.stats.types import TUNED_FOR

FEWEST_UNITS = 10
"""Of `min_units` and `min_stop`: of fewer people in an arm, one says too much."""
HISTORY = 1000
"""Newest calls or statements that the state before an experiment is known from."""
FEWEST_TIMED = 50
"""Calls of the control without which its latency is not known."""
REWEIGH_UNITS = 50
"""New units with an outcome after which best-arm mode looks at the shares again."""
REWEIGH = 0.03
"""Change of a share below which best-arm mode leaves all as they are."""
HORIZON_DAYS = 30.0
"""Days for which it is said which gain will be seen, unless the experiment is stopped before."""
FEWEST_TUNED_FOR, MOST_TUNED_FOR = 200.0, 50_000.0
"""Bounds of the units at which an interval may be tightest."""
UNKNOWN_RATE = 0.5
"""The rate that is assumed where nothing is known: power is lowest there."""


class Effects(Protocol):
    """What a decision asks of others. Each may be asked for again and then changes nothing."""

    def promote(
        self, winner: ModelVersion, control: str, alias: str, reason: str, ask_first: bool
    ) -> None:
        """Point the alias at the winner if it points at the version with the id `control`. With
        `ask_first` a person is asked before the agent's first version goes live by traffic
        alone."""

    def roll_back(
        self, loser: ModelVersion, control: ModelVersion, alias: str, reason: str
    ) -> None:
        """Point the alias, and that of the canary, at the control if it points at the loser."""


def plan(
    ws: Workspace,
    agent: Agent,
    arms: Sequence[ModelVersion],
    guards: Sequence[str],
    config: ExperimentConfig,
) -> tuple[Plan, Forecast]:
    """Return the plan of an experiment and its forecast; changes nothing.

    Raises InputError for less than two different arms, for an unknown guard and for too few units,
    DataError if a guard's threshold is unknown.
    """
    names = [arm.name for arm in arms]
    if len(arms) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"arms {', '.join(names) or 'none'}",
            "an experiment compares at least two different versions, the control first",
            "Give them as: --arm v0 --arm v3",
        )
    for setting in ("min_units", "min_stop"):
        if getattr(config, setting) < FEWEST_UNITS:
            raise InputError(
                f"{setting} {getattr(config, setting)}",
                "so few people per arm can decide nothing",
                f"Use at least {FEWEST_UNITS}",
            )
    control = arms[0]
    spend = experiment_number(ws, agent)
    draft = Plan(
        arms=tuple(Arm(name=arm.name, version_id=arm.id, weights=arm.weights) for arm in arms),
        guards=tuple(_guard(ws, control, guard, config) for guard in guards),
        config=config,
        spend=spend,
    )
    forecast = _forecast(ws, agent, draft)
    return draft.model_copy(update={"tuned_for": forecast.tuned_for}), forecast


def _guard(
    ws: Workspace, control: ModelVersion, spelled: str, config: ExperimentConfig
) -> GuardPlan:
    """Parse a guard as it was typed: its name, or NAME=MARGIN. Raises InputError for an unknown
    guard and an invalid margin."""
    name, _, margin = spelled.partition("=")
    if name not in MARGINS:
        raise InputError(
            f"guard {spelled!r}", "there is no such guard", f"Known: {', '.join(MARGINS)}"
        )
    try:
        allowed = float(margin) if margin else MARGINS[name]
    except ValueError:
        raise InputError(
            f"guard {spelled!r}", "its margin is not a number", f"Write {name}={MARGINS[name]:g}"
        ) from None
    threshold = None
    if name == "latency_p95":
        threshold = config.latency or _usual_latency(ws, control)
    return GuardPlan(name=name, margin=allowed, threshold=threshold)  # type: ignore[arg-type]


def _usual_latency(ws: Workspace, control: ModelVersion) -> float:
    with ws.db.read() as connection:
        seconds = store.seconds_of_version(connection, control.id, HISTORY)
    if len(seconds) < FEWEST_TIMED:
        raise DataError(
            f"guard latency_p95 of {control.name}",
            f"{len(seconds)} calls of it are timed, and {FEWEST_TIMED} are needed to measure "
            "its slowest twentieth",
            "Set the limit: --latency SECONDS",
        )
    return float(np.quantile(seconds, 0.95))


def _forecast(ws: Workspace, agent: Agent, draft: Plan) -> Forecast:
    config = draft.config
    with ws.db.read() as connection:
        statements = store.values_of_version(
            connection, agent.id, draft.control.version_id, config.kind, HISTORY
        )
    if config.name is not None:
        statements = [statement for statement in statements if statement.name == config.name]
    mean = mean_of(config.kind, statements)
    rate = mean[0] if mean else UNKNOWN_RATE
    values = [value_of(config.kind, statement) or 0.0 for statement in statements]
    variance = float(np.var(values)) if len(values) >= 30 else rate * (1 - rate)
    variance = variance or 0.25
    treatment_share = config.share / len(draft.treatments)
    share = treatment_share / (treatment_share + 1 - config.share)
    alpha = 2 * draft.error / len(draft.treatments)
    units = expected_units(config.effect, (variance, variance), alpha, share=share)
    a_day = None
    if len(statements) >= 2:
        newest_at, oldest_at = statements[0].recorded_at, statements[-1].recorded_at
        days_seen = max((newest_at - oldest_at) / timedelta(days=1), 1 / 24)
        a_day = len({statement.trace_id for statement in statements}) / days_seen
    horizon_days = min(HORIZON_DAYS, config.max_hours / 24 or HORIZON_DAYS)
    tuned_for = _tuned_for(config, units, a_day)
    horizon_effect = None
    if a_day:
        horizon_effect = detectable_effect(
            max(1, int(a_day * horizon_days)),
            (variance, variance),
            alpha,
            share=share,
            tuned_for=tuned_for,
        )
    return Forecast(
        rate=rate,
        is_known=mean is not None,
        units=units,
        effect=config.effect,
        units_a_day=a_day,
        days=units / a_day if units and a_day else None,
        tuned_for=tuned_for,
        horizon_days=horizon_days,
        horizon_effect=horizon_effect,
        spend=draft.spend,
        error=draft.error,
        veto=veto(ws, agent, draft),
    )


def _tuned_for(config: ExperimentConfig, units: int | None, a_day: float | None) -> float:
    """Return the units at which the interval is tightest: the number that the smallest gain worth a
    switch takes, or that come before the experiment is stopped undecided, if they are fewer."""
    wanted = [] if units is None else [float(units)]
    if config.max_hours and a_day:
        wanted.append(a_day * config.max_hours / 24)
    if not wanted:
        return TUNED_FOR
    return min(max(min(wanted), FEWEST_TUNED_FOR), MOST_TUNED_FOR)


def veto(ws: Workspace, agent: Agent, draft: Plan) -> str:
    """Return why earlier experiments speak against exposing anybody to an arm; empty if they do
    not, or hold too little data about it. They can forbid an arm and never promote one."""
    config = draft.config
    with ws.db.read() as connection:
        logged = store.logged_choices(connection, agent.id, config.kind, config.name)
    rows = []
    for arm, shares, statement in logged:
        value = value_of(config.kind, statement)
        if value is not None and shares.get(arm):
            rows.append((arm, shares[arm], value))
    if not rows:
        return ""
    outcomes = np.array([value for _, _, value in rows])
    estimates = {}
    for arm_plan in draft.arms:
        weights = np.array([(arm == arm_plan.name) / share for arm, share, _ in rows])
        try:
            estimates[arm_plan.name] = snips(outcomes, weights)
        except DataError:
            continue
    control = estimates.get(draft.control.name)
    for arm_plan in draft.treatments:
        estimate = estimates.get(arm_plan.name)
        if control and estimate and estimate.interval.high < control.interval.low:
            return (
                f"earlier experiments value {arm_plan.name} at {estimate.value:.3f} (at most "
                f"{estimate.interval.high:.3f}) and {draft.control.name} at {control.value:.3f} "
                f"(at least {control.interval.low:.3f})"
            )
    return ""


def start(
    ws: Workspace, agent: Agent, alias: str, draft: Plan, salt: str | None = None
) -> Experiment:
    """Start an experiment on an alias of the agent. `salt` decides who gets which arm; without one
    it is drawn.

    Raises Conflict if one runs there already, or its group has no units left.
    """
    config = draft.config

    def work(connection: sa.Connection) -> str:
        open_experiments = store.find(connection, store.in_state(State.RUNNING, State.PAUSED))
        for other in open_experiments:
            if (other.agent, other.alias) == (agent.slug, alias):
                raise Conflict(
                    f"alias {alias!r} of agent {agent.slug!r}",
                    f"experiment {other.id} uses it, and running experiments cannot be changed",
                    f"Stop that one first: thumbwheel experiment stop {other.id} --reason TEXT",
                )
        of_agent = [other for other in open_experiments if other.agent == agent.slug]
        group_range = _free_range(of_agent, config)
        complete = draft.model_copy(update={"group_range": group_range})
        return store.insert(
            connection,
            agent.id,
            alias,
            complete,
            salt or secrets.token_hex(16),
            first_shares(complete),
        )

    return find(ws, ws.db.write(work, of_agent(agent.id)))


def _free_range(
    open_experiments: Sequence[Experiment], config: ExperimentConfig
) -> tuple[float, float] | None:
    """Return the part of the group's units that no running experiment of the agent has."""
    if not config.group:
        return None
    reserved = sorted(
        other.plan.group_range
        for other in open_experiments
        if other.plan.config.group == config.group and other.plan.group_range
    )
    low = 0.0
    for start_of_next, end_of_next in reserved:
        if low + config.group_share <= start_of_next + 1e-9:
            break
        low = end_of_next
    if low + config.group_share > 1 + 1e-9:
        raise Conflict(
            f"group {config.group!r}",
            f"running experiments leave no {config.group_share:.0%} of its units",
            "Ask for less (--group-share), or wait for one of them",
        )
    return low, min(1.0, low + config.group_share)


def first_shares(draft: Plan) -> dict[str, float]:
    """Return the shares of the first stratum."""
    steps = ramp_steps(draft.config.ramp)
    if draft.config.mode == "best-arm" and not steps:
        return {arm.name: 1 / len(draft.arms) for arm in draft.arms}
    return shares_at(draft, steps[0][0] if steps else draft.config.share)


def shares_at(draft: Plan, share: float, without: Sequence[str] = ()) -> dict[str, float]:
    """Return the shares in which all arms but the control divide `share` of the units; arms in
    `without` get none."""
    treatments = [arm.name for arm in draft.treatments if arm.name not in without]
    shares = {arm.name: 0.0 for arm in draft.treatments}
    shares |= {name: share / len(treatments) for name in treatments}
    return {draft.control.name: 1.0 - sum(shares.values()), **shares}


def find(ws: Workspace, experiment_id: str, agent: str | None = None) -> Experiment:
    """Return the experiment with this id, which may be abbreviated, of this agent if one is named.
    Raises NotFound."""
    where = [store.by_id(experiment_id)]
    if agent is not None:
        where.append(store.of_agent(Agent.named(agent).id))
    with ws.db.read() as connection:
        matches = store.find(connection, *where)
    ids.require_single(experiment_id, [match.id for match in matches])
    if not matches:
        raise NotFound(
            f"experiment {experiment_id!r}",
            "there is no such experiment",
            "List them: thumbwheel experiment list",
        )
    return matches[0]


def experiments_of(ws: Workspace, agent: Agent | None = None) -> list[Experiment]:
    """Return the experiments of an agent, or of all, oldest first."""
    where = [store.of_agent(agent.id)] if agent else []
    with ws.db.read() as connection:
        return store.find(connection, *where)


def events_of(ws: Workspace, experiment: Experiment) -> list[Event]:
    """Return the events of the experiment, oldest first."""
    with ws.db.read() as connection:
        return store.events(connection, experiment.id)


def verdicts_of(ws: Workspace, experiment: Experiment) -> list[TrafficVerdict]:
    """Return the verdicts of the experiment, oldest first."""
    return approval.traffic_verdicts(ws, experiment_id=experiment.id)


def pause(ws: Workspace, experiment: Experiment, reason: str) -> Experiment:
    """Send everybody to the version that the alias points at. Raises Conflict if the experiment
    does not run."""
    return _moved(ws, experiment, State.PAUSED, reason)


def resume(ws: Workspace, experiment: Experiment, reason: str) -> Experiment:
    """Go on with a paused experiment."""
    return _moved(ws, experiment, State.RUNNING, reason)


def stop(ws: Workspace, experiment: Experiment, reason: str) -> Experiment:
    """End an experiment without a decision."""
    return _moved(ws, experiment, State.STOPPED, reason)


def _moved(ws: Workspace, experiment: Experiment, state: State, reason: str) -> Experiment:
    ws.db.write(
        lambda connection: store.set_state(connection, experiment, state, reason),
        of_agent(Agent.named(experiment.agent).id),
    )
    return find(ws, experiment.id)


def _dead_arms(calls: Sequence[CountedCall]) -> frozenset[str]:
    """Return the arms that failed to answer so many different units since they last answered: one
    client alone ends no arm."""
    failing: dict[str, set[str | None]] = {}
    for call in calls:
        if call.assigned is None:
            continue
        units = failing.setdefault(call.assigned, set())
        if call.failed:
            units.add(call.unit)
        else:
            units.clear()
    return frozenset(arm for arm, units in failing.items() if len(units) >= DEAD)


def look(
    ws: Workspace,
    experiment: Experiment,
    as_of: datetime | None = None,
    now: datetime | None = None,
) -> tuple[Inputs, Decision]:
    """Return the figures and the decision on them, by the collected calls; changes nothing.
    `as_of`: use only records until then. `now` is the moment up to which hours are counted."""
    moment = as_of or now or datetime.now(UTC)
    unit_figures = figures(ws, experiment, as_of)
    with ws.db.read() as connection:
        calls = store.calls_of(connection, experiment.id, as_of)
    inputs = analyse(experiment, unit_figures, moment, _dead_arms(calls))
    rows = [
        [unit.unit, unit.arm, unit.stratum, unit.outcome, unit.weight]
        for unit in unit_figures.units
    ]
    inputs = inputs.model_copy(update={"units": ids.fingerprint(rows)})
    return inputs, decided(experiment.plan, inputs)


def turn(
    ws: Workspace, experiment: Experiment, effects: Effects, now: datetime | None = None
) -> Decision:
    """Look at a running experiment, and do all that follows from it. The decision can be replayed:
    it depends on everything that was recorded until the look began, and on nothing else."""
    moment = now or datetime.now(UTC)
    unfinished = [verdict for verdict in verdicts_of(ws, experiment) if verdict.verdict == "won"]
    if unfinished:
        # The process ended between the verdict and the move of the alias.
        verdict = unfinished[-1]
        arm = next(arm.name for arm in experiment.plan.arms if arm.version_id == verdict.version_id)
        decision = Decision(verdict="won", arm=arm, reasons=verdict.reasons)
        _finish(ws, experiment, decision, effects)
        return decision
    collect(ws, experiment, moment)
    # What was recorded until a moment can be looked at again; a clock of somebody else's can not.
    as_of = moment if now is None else None
    inputs, decision = look(ws, experiment, as_of, moment)
    if as_of and decision.verdict != "undecided" and look(ws, experiment, as_of)[0] != inputs:
        reasons = ("rows became visible while it was decided: the next look counts them",)
        return Decision(verdict="undecided", reasons=reasons)
    if decision.verdict == "undecided":
        _adjust_shares(ws, experiment, inputs, decision, moment)
        return decision
    _record(ws, experiment, inputs, decision)
    _finish(ws, experiment, decision, effects)
    return decision


def _record(ws: Workspace, experiment: Experiment, inputs: Inputs, decision: Decision) -> None:
    """Write the signed verdict about each arm that it is about, once."""
    if changed := check_seals(ws, experiment).changed:
        raise Conflict(
            f"{len(changed)} rows of experiment {experiment.id}",
            f"{changed[0]} was changed after it was recorded, so they decide nothing",
            f"Stop it: thumbwheel experiment stop {experiment.id} --reason TEXT",
        )
    about = [arm for arm in experiment.plan.treatments if decision.arm in (None, arm.name)]
    verdicts = []
    for arm in about:
        version = versions.by_id(ws, arm.version_id)
        if decision.verdict == "won" and version.weights != arm.weights:
            raise Conflict(
                f"experiment {experiment.id}",
                f"{arm.name} has other files than at the start",
                f"Stop it: thumbwheel experiment stop {experiment.id} --reason TEXT",
            )
        unsigned = TrafficVerdict(
            id=ids.new("tvd"),
            agent=experiment.agent,
            alias=experiment.alias,
            version_id=arm.version_id,
            experiment_id=experiment.id,
            verdict=decision.verdict,
            weights=arm.weights,
            reasons=decision.reasons,
            plan=experiment.plan.model_dump(mode="json"),
            inputs=inputs.model_dump(mode="json"),
        )
        verdicts.append(signed_verdict(ws, unsigned))

    def work(connection: sa.Connection) -> None:
        # Another server may have decided in the meantime.
        (current,) = store.find(connection, store.by_id(experiment.id))
        earlier = approval.verdicts_so_far(connection, experiment.id)
        if current.state is State.RUNNING and not earlier:
            approval.add_traffic_verdicts(connection, Agent.named(experiment.agent).id, verdicts)

    ws.db.write(work, of_agent(Agent.named(experiment.agent).id))


def _finish(ws: Workspace, experiment: Experiment, decision: Decision, effects: Effects) -> None:
    """Move the alias as far as the decision asks for it, then end the experiment."""
    reason = "; ".join(decision.reasons)
    arms = {arm.name: arm for arm in experiment.plan.arms}
    evidence = f"experiment {experiment.id}: {reason}"
    if decision.verdict == "won" and decision.arm:
        winner = versions.by_id(ws, arms[decision.arm].version_id)
        # Only who won against what is live is better than that.
        if winner.basis is Basis.FEEDBACK and experiment.alias == LIVE:
            versions.confirm(ws, winner, Basis.TRAFFIC)
        config = experiment.plan.config
        if config.promote:
            control_id = experiment.plan.control.version_id
            effects.promote(winner, control_id, experiment.alias, evidence, config.ask_first)
    if decision.verdict == "lost":
        control = versions.by_id(ws, experiment.plan.control.version_id)
        for arm in experiment.plan.treatments:
            loser = versions.by_id(ws, arm.version_id)
            effects.roll_back(loser, control, experiment.alias, evidence)
    states = {"won": State.WON, "lost": State.LOST}
    if find(ws, experiment.id).state is State.RUNNING:
        _moved(ws, experiment, states.get(decision.verdict, State.STOPPED), reason)


def _adjust_shares(
    ws: Workspace, experiment: Experiment, inputs: Inputs, decision: Decision, now: datetime
) -> None:
    """Begin a new stratum if arms dropped out, the ramp goes on, or best-arm mode has learned
    enough."""
    current = experiment.stratum
    shares, reason = _wanted_shares(experiment, inputs, decision, now)
    if shares is None or all(
        abs(shares[name] - current.shares.get(name, 0.0)) < 1e-9 for name in shares
    ):
        return
    new_shares: Mapping[str, float] = shares

    def work(connection: sa.Connection) -> None:
        (latest,) = store.find(connection, store.by_id(experiment.id))
        if latest.stratum.number == current.number and latest.state is State.RUNNING:
            store.add_stratum(connection, experiment.id, new_shares, reason)
            store.add_event(
                connection, experiment.id, "shares", {"shares": dict(new_shares), "reason": reason}
            )

    ws.db.write(work, of_agent(Agent.named(experiment.agent).id))


def _wanted_shares(
    experiment: Experiment, inputs: Inputs, decision: Decision, now: datetime
) -> tuple[dict[str, float] | None, str]:
    plan_in_force, current = experiment.plan, experiment.stratum
    config = plan_in_force.config
    share = 1.0 - current.shares[plan_in_force.control.name]
    dropped = [name for name in decision.dropped if current.shares.get(name)]
    if dropped:
        gone = [name for name, part in current.shares.items() if not part]
        wanted = shares_at(plan_in_force, share, [*dropped, *gone])
        return wanted, "; ".join(decision.reasons[: len(dropped)])
    if config.mode == "best-arm":
        if inputs.answered_in_stratum < REWEIGH_UNITS:
            return None, ""
        answered = sum(arm.answered for arm in inputs.arms)
        wanted = next_shares(plan_in_force, current.shares, inputs)
        largest = max(abs(wanted[name] - current.shares[name]) for name in wanted)
        reason = f"best-arm mode after {answered} outcomes"
        return (wanted, reason) if largest >= REWEIGH else (None, "")
    following = _next_ramp_share(experiment, share, now)
    if following is None:
        return None, ""
    gone = [name for name, part in current.shares.items() if not part]
    return shares_at(plan_in_force, following, gone), f"the ramp goes on to {following:g}"


def _next_ramp_share(experiment: Experiment, share: float, now: datetime) -> float | None:
    """Return the next share of the ramp, once the hours of the present one are over; None
    before."""
    config = experiment.plan.config
    steps = ramp_steps(config.ramp)
    for index, (step_share, hours) in enumerate(steps):
        if abs(step_share - share) > 1e-9:
            continue
        control = experiment.plan.control.name
        began = experiment.stratum.recorded_at
        for stratum in reversed(experiment.strata):
            if abs(1.0 - stratum.shares[control] - share) > 1e-9:
                break
            began = stratum.recorded_at
        if now - began < timedelta(hours=hours):
            return None
        return steps[index + 1][0] if index + 1 < len(steps) else config.share
    return None


def replay(ws: Workspace, verdict: TrafficVerdict) -> tuple[Inputs, Decision, Inputs]:
    """Return the stored inputs, the decision on them now, and the inputs recomputed from the
    present exposures.

    Raises Conflict for a verdict that was changed after it was signed. The two inputs differ if
    rows are gone since, such as those of a subject who was erased, and if rows were edited:
    `check_seals` tells which.
    """
    approval.check_traffic_verdict(ws, verdict)
    stored = Inputs(**verdict.inputs)
    plan_in_force = Plan(**verdict.plan)
    experiment = find(ws, verdict.experiment_id)
    recomputed, _ = look(ws, experiment, stored.as_of)
    return stored, decided(plan_in_force, stored), recomputed
