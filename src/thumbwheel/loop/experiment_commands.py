"""`thumbwheel experiment`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options as options_of
from thumbwheel.experiments.types import (
    ExperimentConfig,
    ListedExperiment,
    ReplayedVerdict,
    ShownExperiment,
    StartedExperiment,
)

if TYPE_CHECKING:
    from thumbwheel.experiments.row_seals import SealCheck
    from thumbwheel.experiments.types import Decision, Experiment, Forecast, Inputs, Plan

experiment = typer.Typer(help="Let the people who are served decide which version is better.")
AgentName = Annotated[str, typer.Option(help="Whose traffic it is.")]
Id = Annotated[str, typer.Argument(help="The experiment, exp_...; its beginning is enough.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="The agent that it has to be of.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept with the experiment.")]
DIFFERS = 4
"""Exit code of a replay that comes to another decision."""


def start(
    ctx: typer.Context,
    agent: AgentName,
    arm: Annotated[
        list[str],
        typer.Option(help="A version that is deployed; repeat it. The first one is the control."),
    ],
    alias: Annotated[str, typer.Option(help="The alias whose traffic is shared.")] = "live",
    guard: Annotated[
        list[str] | None,
        typer.Option(
            help="What must not get worse: error_rate, latency_p95 or cost, with another margin as "
            "NAME=MARGIN; repeat it."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say power and duration; start nothing.")
    ] = False,
    despite: Annotated[
        str, typer.Option(help="Why it is started although earlier experiments speak against it.")
    ] = "",
    options: dict[str, Any] | None = None,
) -> present.Answer[StartedExperiment]:
    """Share an alias's traffic among versions until it is known which one is better.

    Everybody keeps one arm: the user that a call names, or with --unit session the conversation.
    `thumbwheel serve` shares the traffic and looks at every moment; the first arm is the control.
    An arm that wins goes live (basis traffic), also where the gate approved it for a canary only;
    of these, a person is asked about the agent's first. One that gets worse loses its traffic by
    itself. Nothing is edited while it runs.

    Example: thumbwheel experiment start --agent support --arm v0 --arm v3 --metric thumb --guard
    error_rate --dry-run
    """
    from thumbwheel.loop import experiment as verbs
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        served = require_agent(ws, agent)
        plan, forecast = verbs.draft(ws, served, alias, arm, guard or [], options or {})
        started = None
        if not dry_run:
            started = verbs.start(ws, served, alias, plan, forecast, despite)
    data = StartedExperiment(started.id if started else None, plan, forecast)
    return present.page(data, _start_page(plan, forecast, started))


experiment.command("start")(options_of(ExperimentConfig)(start))


def _start_page(
    plan: Plan, forecast: Forecast, started: Experiment | None
) -> Iterator[present.Part]:
    source = "so far" if forecast.is_known else "assumed, as nothing is known"
    units = "more than anybody has" if forecast.units is None else f"{forecast.units:,}"
    rows: list[tuple[str, object]] = [
        ("arms", " against ".join(arm.name for arm in plan.arms)),
        ("metric", f"{plan.config.metric}, {forecast.rate:.3f} ({source})"),
        ("error", f"{forecast.error:.4g}, test {forecast.spend} on the agent's account of alpha"),
        ("units with an outcome", f"{units} for a gain of {forecast.effect:g} (power 80 %)"),
    ]
    if forecast.days is not None and forecast.units_a_day is not None:
        rows.append(("days", f"{forecast.days:.1f}, at {forecast.units_a_day:.0f} units a day"))
        horizon = f"seen within {forecast.horizon_days:g} days"
        rows.append((horizon, f"a gain of {forecast.horizon_effect:.3f}"))
    else:
        rows.append(("days", "nobody knows: no outcome of the control is recorded yet"))
    for guard in plan.guards:
        limit = "" if guard.threshold is None else f" (slow is more than {guard.threshold:.2f} s)"
        rows.append((f"guard {guard.name}", f"worse by at most {guard.margin:g}{limit}"))
    if forecast.veto:
        rows.append(("against it", forecast.veto))
    title = f"{started.id} runs" if started else "dry run: nothing was started"
    yield present.Table(title, ("", ""), rows)
    if started:
        yield present.Note(f"Look at it: thumbwheel experiment show {started.id}")


@experiment.command("list")
def list_(
    ctx: typer.Context,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
) -> present.Answer[list[ListedExperiment]]:
    """Experiments and what became of them, oldest first.

    Example: thumbwheel experiment list --agent support
    """
    from thumbwheel.experiments import controller
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        rows = controller.experiments_of(ws, require_agent(ws, agent) if agent else None)
    columns = {
        "experiment": lambda row: row.id,
        "agent": lambda row: f"{row.agent}:{row.alias}",
        "arms": lambda row: " ".join(arm.name for arm in row.plan.arms),
        "metric": lambda row: row.plan.config.metric,
        "state": lambda row: str(row.state),
        "started": lambda row: f"{row.recorded_at:%Y-%m-%d %H:%M}",
        "why": lambda row: present.shortened(row.reason),
    }
    data = [ListedExperiment.of(row) for row in rows]
    empty = "no experiments; start one: thumbwheel experiment start --help"
    return present.records(rows, "experiments", columns, data=data, empty=empty)


@experiment.command()
def show(ctx: typer.Context, id: Id, agent: OfAgent = None) -> present.Answer[ShownExperiment]:
    """Show the figures of each arm and each guard, and the events. You may look at any
    time: the verdict stays valid.

    Example: thumbwheel experiment show exp_06gk
    """
    from thumbwheel.experiments import controller
    from thumbwheel.loop.experiment import waiting_winner

    with ctx.obj() as ws:
        current = controller.find(ws, id, agent)
        inputs, decision = controller.look(ws, current)
        events = controller.events_of(ws, current)
        verdicts = controller.verdicts_of(ws, current)
        pending = waiting_winner(ws, current)
    data = ShownExperiment(
        **vars(ListedExperiment.of(current)),
        inputs=inputs,
        decision=decision,
        events=events,
        verdicts=verdicts,
        waiting=pending.id if pending else None,
    )

    def page() -> Iterator[present.Part]:
        yield from _figures_page(current, inputs, decision)
        rows = [
            (f"{event.recorded_at:%Y-%m-%d %H:%M}", event.kind, event.content.get("reason", ""))
            for event in events
        ]
        if rows:
            yield present.Table("what happened", ("when", "what", "why"), rows)
        for verdict in verdicts:
            yield present.Note(f"verdict {verdict.id}: {verdict.verdict}")
        if pending:
            yield present.Note(
                f"{pending.question} A person decides: thumbwheel loop approve {pending.id} "
                f"--agent {current.agent} --by NAME"
            )

    return present.page(data, page())


def _figures_page(
    current: Experiment, inputs: Inputs, decision: Decision
) -> Iterator[present.Part]:
    shares = current.stratum.shares
    arms = [
        (
            arm.name,
            f"{shares.get(arm.name, 0.0):.0%}",
            arm.exposed,
            arm.answered,
            "" if arm.mean is None else f"{arm.mean:.4f}",
        )
        for arm in inputs.arms
    ]
    title = f"{current.id} of {current.agent}:{current.alias}: {current.state}"
    heads = ("arm", "share", "units", "with an outcome", current.plan.config.metric)
    yield present.Table(title, heads, arms)
    rows: list[tuple[str, str, str, str]] = []
    for comparison in inputs.comparisons:
        ends = _ends(comparison.low, comparison.high)
        gain = "" if comparison.gain is None else f"{comparison.gain:+.4f}"
        rows.append((f"{comparison.arm} gains", gain, ends, comparison.method))
        if comparison.answering is not None:
            of_control, of_arm = comparison.answering
            answering = f"{of_control:.0%} to {of_arm:.0%}"
            p_value = f"p = {comparison.answering_p:.2g}"
            rows.append(("  units that answer", answering, p_value, ""))
        for guard in comparison.guards:
            state = "holds" if guard.holds else "is broken" if guard.broken else "is open"
            worse = _ends(guard.low, guard.high)
            rows.append((f"  {guard.name} {state}", f"at most {guard.margin:g}", worse, ""))
    yield present.Table("against the control", ("", "", "interval at any moment", ""), rows)
    collected = current.collected
    yield present.Note(
        f"{collected.calls} calls; not counted: {collected.overridden} overrides, "
        f"{collected.fallbacks} fallbacks, {collected.without_unit} without a "
        f"{current.plan.config.unit}, {collected.held_out} held out, {collected.moved} of moved "
        f"units; {inputs.late} late words, {inputs.flooded} of floods"
    )
    for reason in (current.reason,) if current.reason else decision.reasons:
        yield present.Note(reason)


def _ends(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{low:+.4f} to {high:+.4f}"


@experiment.command()
def pause(
    ctx: typer.Context,
    id: Id,
    reason: Reason,
    agent: OfAgent = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a paused one.")] = False,
) -> present.Answer[ListedExperiment]:
    """Send everybody to what the alias points at, until it goes on with --resume.

    Example: thumbwheel experiment pause exp_06gk --reason "the provider is down"
    """
    from thumbwheel.experiments import controller

    with ctx.obj() as ws:
        current = controller.find(ws, id, agent)
        verb = controller.resume if resume else controller.pause
        current = verb(ws, current, reason)
    return present.message(ListedExperiment.of(current), f"{current.id} is {current.state}")


@experiment.command()
def stop(
    ctx: typer.Context, id: Id, reason: Reason, agent: OfAgent = None
) -> present.Answer[ListedExperiment]:
    """End an experiment without a decision; the alias stays where it is.

    Example: thumbwheel experiment stop exp_06gk --reason "the prompt was changed"
    """
    from thumbwheel.experiments import controller

    with ctx.obj() as ws:
        current = controller.stop(ws, controller.find(ws, id, agent), reason)
    return present.message(ListedExperiment.of(current), f"{current.id} is stopped")


@experiment.command()
def replay(
    ctx: typer.Context, id: Id, agent: OfAgent = None
) -> present.Answer[list[ReplayedVerdict]]:
    """Compute the verdicts of an experiment again, from what was signed and from its exposures.

    The signature is checked first, then the seal of every exposure and call. Exit code 4 where the
    stored figures give another decision now, or a row was changed after it was recorded.

    Example: thumbwheel experiment replay exp_06gk
    """
    from thumbwheel.experiments import controller
    from thumbwheel.experiments.row_seals import check_seals, vouched_calls

    results: list[ReplayedVerdict] = []
    with ctx.obj() as ws:
        current = controller.find(ws, id, agent)
        rows = check_seals(ws, current)
        n_vouched = vouched_calls(ws, current)
        for verdict in controller.verdicts_of(ws, current):
            stored, decision, recomputed = controller.replay(ws, verdict)
            results.append(
                {
                    "verdict": verdict.id,
                    "was": verdict.verdict,
                    "is": decision.verdict,
                    "same_units": stored.units == recomputed.units,
                    "changed_rows": list(rows.changed),
                    "gone_calls": rows.gone,
                    "calls": current.collected.calls,
                    "sealed_calls": n_vouched,
                    "reasons": list(decision.reasons),
                    "recomputed": recomputed,
                }
            )
    answer = present.page(results, _replay_page(current, results, rows, n_vouched))
    differs = rows.changed or any(result["was"] != result["is"] for result in results)
    return answer.ending(DIFFERS) if differs else answer


def _replay_page(
    current: Experiment, results: list[ReplayedVerdict], rows: SealCheck, n_vouched: int
) -> Iterator[present.Part]:
    lines = []
    for result in results:
        state = "the same" if result["same_units"] else "not the same any more"
        lines.append((result["verdict"], result["was"], result["is"], state))
    heads = ("verdict", "was", "is now", "its units")
    yield present.Table(f"replay of {current.id}", heads, lines)
    yield present.Note(
        f"{n_vouched} of {current.collected.calls} calls have the seal of the gateway"
    )
    if rows.changed:
        changed = [(row,) for row in rows.changed]
        yield present.Table("changed after they were recorded", ("row",), changed)
    if rows.gone:
        yield present.Note(f"{rows.gone} calls are gone, such as those of erased subjects")
