"""`thumbwheel loop enable|disable|status|check|decisions|approve|refuse`: the loop that turns by
itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options
from thumbwheel.core.options import Here
from thumbwheel.jobs.request import JobRequest
from thumbwheel.loop.cycle_types import CheckResult, CycleConfig
from thumbwheel.loop.quarantine_types import Quarantine
from thumbwheel.loop.trigger_types import DecisionOutcome, LoopStatus, Pending, TriggerConfig

if TYPE_CHECKING:
    from thumbwheel.loop.trigger_types import Check

AgentName = Annotated[str, typer.Option(help="Whose loop is meant.")]


@options(TriggerConfig, CycleConfig)
def enable(
    ctx: typer.Context,
    agent: AgentName,
    options: Mapping[str, Any] = {},
) -> present.Answer[LoopStatus]:
    """Let the loop of an agent turn by itself, where enough informative feedback is new.

    What is not set here is as it was when the loop was enabled before, else the default.

    Example: thumbwheel loop enable --agent support --least 50 --window 01:00-05:00
    """
    from thumbwheel.loop.loops import enable as enable_loop
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        status = enable_loop(ws, require_agent(ws, agent), options)
    return present.page(status, _status_page(status, agent, False))


def disable(ctx: typer.Context, agent: AgentName) -> present.Answer[LoopStatus]:
    """Let the loop of an agent do nothing by itself. A turn that runs goes on to its end.

    Example: thumbwheel loop disable --agent support
    """
    from thumbwheel.loop.loops import disable as disable_loop
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        status = disable_loop(ws, require_agent(ws, agent))
    return present.page(status, _status_page(status, agent, False))


def status(
    ctx: typer.Context,
    agent: AgentName,
    why: Annotated[
        bool, typer.Option("--why", help="Also what would happen now, and the newest checks.")
    ] = False,
) -> present.Answer[LoopStatus]:
    """Show the state of an agent's loop: its settings, the new feedback, its last turns, the
    verdicts of live traffic, and the decisions that wait for a person.

    Example: thumbwheel loop status --agent support --why
    """
    from thumbwheel.loop.loops import status as loop_status
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        result = loop_status(ws, require_agent(ws, agent))
    return present.page(result, _status_page(result, agent, why))


def check(
    ctx: typer.Context,
    agent: AgentName,
    here: Here = False,
) -> JobRequest[CheckResult, CheckResult]:
    """Look at whether a turn is due, and run it if it is. Every look leaves one line: the rule that
    decided, its numbers, and when the next look is.

    The server does this by itself; without one, call it from a timer. A turn that was not due is no
    error.

    Example: thumbwheel loop check --agent support
    """
    from thumbwheel.loop.cycle_commands import cycle_page
    from thumbwheel.loop.jobs import LoopCheckSpec

    def show(result: CheckResult) -> present.Answer[CheckResult]:
        check = result.check
        due = "due" if check.fired else "not due"
        rows: list[present.Row] = [
            ("", due),
            (check.rule, check.reason),
            ("next check", check.next_at),
        ]
        if result.job:
            rows.append(("the turn", f"is job {result.job}"))
        parts: list[present.Part] = [
            present.Table(f"a turn of the wheel for {agent}", ("", ""), rows)
        ]
        if result.turn:
            parts += cycle_page(result.turn)
        return present.page(result, parts)

    return JobRequest("loop check", LoopCheckSpec(agent=agent), show, here=here)


def decisions(
    ctx: typer.Context,
    agent: AgentName,
    every: Annotated[bool, typer.Option("--all", help="Also what was answered.")] = False,
) -> present.Answer[Sequence[Pending]]:
    """List the decisions that a turn of the loop waits for.

    Example: thumbwheel loop decisions --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.loop.gold import gold_request
    from thumbwheel.loop.inbox import decisions as inbox
    from thumbwheel.loop.triggers import trigger_config
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        pendings = inbox(ws, learner, every)
        request = gold_request(ws, learner, trigger_config(ws, learner))
    if request:
        log.say(f"gold: {request}")
    columns = {
        "id": lambda pending: pending.id,
        "asked": lambda pending: f"{pending.recorded_at:%Y-%m-%d %H:%M}",
        "question": lambda pending: pending.question,
        "gate": lambda pending: pending.evidence.get("verdict"),
        "state": lambda pending: pending.state,
        "by": lambda pending: pending.answered_by,
    }
    empty = f"nothing waits for you; how the loop is doing: thumbwheel loop status --agent {agent}"
    return present.records(pendings, f"decisions of {agent}", columns, empty=empty)


Decision = Annotated[str, typer.Argument(help="A decision, as `loop decisions` names it.")]
By = Annotated[str, typer.Option(help="Who answers.")]


def approve(
    ctx: typer.Context,
    decision: Decision,
    agent: AgentName,
    by: By = "owner",
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    alias: Annotated[
        str | None,
        typer.Option(help="live or canary [default: as the settings of the turn say]."),
    ] = None,
    here: Here = False,
) -> JobRequest[DecisionOutcome, DecisionOutcome]:
    """Answer yes to what a turn asks, and take the step: export, deploy as canary, or make live.

    With --alias canary, the question whether it goes live goes on waiting.

    No gate check is skipped. What is out of date, as a newer version is live, is refused
    and marked moot.

    Example: thumbwheel loop approve dec_01k3 --agent support --by anna
    """
    from thumbwheel.loop.jobs import LoopApproveSpec

    def show(answered: DecisionOutcome) -> present.Answer[DecisionOutcome]:
        rows = [(name.replace("_", " "), value) for name, value in vars(answered).items() if value]
        return present.page(answered, [present.Table("approved", ("", ""), rows)])

    spec = LoopApproveSpec(agent=agent, decision=decision, by=by, reason=reason, alias=alias)
    return JobRequest("loop approve", spec, show, here=here)


def refuse(
    ctx: typer.Context,
    decision: Decision,
    agent: AgentName,
    by: By = "owner",
    reason: Annotated[str | None, typer.Option(help="Why not.")] = None,
) -> present.Answer[Pending]:
    """Answer no to what a turn asks. It does not ask again for this version.

    Example: thumbwheel loop refuse dec_01k3 --agent support --reason "too long answers"
    """
    from thumbwheel.loop.inbox import refuse as refuse_decision
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        result = refuse_decision(ws, require_agent(ws, agent), decision, by, reason)
    rows = [("decision", result.id), ("question", result.question)]
    return present.page(result, [present.Table("refused", ("", ""), rows)])


def quarantines(
    ctx: typer.Context,
    agent: AgentName,
    every: Annotated[bool, typer.Option("--all", help="Also what was decided.")] = False,
) -> present.Answer[Sequence[Quarantine]]:
    """Bursts of feedback that are held: one rater's thumbs within minutes, nearly all the same.
    Nothing learns from them before a person has looked.

    Example: thumbwheel loop quarantines --agent support
    """
    from thumbwheel.loop.quarantine import quarantines as all_quarantines
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        records = all_quarantines(ws, require_agent(ws, agent), every)
    columns = {
        "id": lambda quarantine: quarantine.id,
        "rater": lambda quarantine: quarantine.speaker or f"unnamed ({quarantine.source})",
        "thumbs": lambda quarantine: quarantine.count,
        "good": lambda quarantine: quarantine.evidence["good"],
        "first": lambda quarantine: quarantine.evidence["first"],
        "last": lambda quarantine: quarantine.evidence["last"],
        "state": lambda quarantine: quarantine.state,
        "by": lambda quarantine: quarantine.decided_by,
    }
    empty = f"no feedback is held; all of it: thumbwheel feedback list --agent {agent}"
    return present.records(records, f"held feedback of {agent}", columns, empty=empty)


Held = Annotated[str, typer.Argument(help="A quarantine, as `loop quarantines` names it.")]


def release(
    ctx: typer.Context,
    quarantine: Held,
    agent: AgentName,
    by: By = "owner",
) -> present.Answer[Quarantine]:
    """Let held feedback count again. It is not held a second time.

    Example: thumbwheel loop release qrt_01k3 --agent support --by anna
    """
    return _decide(ctx, quarantine, agent, "released", by)


def discard(
    ctx: typer.Context,
    quarantine: Held,
    agent: AgentName,
    by: By = "owner",
) -> present.Answer[Quarantine]:
    """Leave held feedback out for good. It stays stored, and is heard by nothing.

    Example: thumbwheel loop discard qrt_01k3 --agent support --by anna
    """
    return _decide(ctx, quarantine, agent, "discarded", by)


def _decide(
    ctx: typer.Context, quarantine: str, agent: str, state: str, by: str
) -> present.Answer[Quarantine]:
    from thumbwheel.core.clock import utc_now
    from thumbwheel.loop.quarantine import decide
    from thumbwheel.loop.quarantine_types import QuarantineState
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        decided = decide(ws, learner, quarantine, QuarantineState(state), by, utc_now())
    rows = [("quarantine", decided.id), ("thumbs", decided.count), ("state", decided.state)]
    return present.page(decided, [present.Table(f"{state}", ("", ""), rows)])


def _status_page(status: LoopStatus, agent: str, why: bool) -> Iterator[present.Part]:
    rows: list[tuple[str, object]] = [("loop", "enabled" if status.enabled else "disabled")]
    rows += [(name.replace("_", " "), value) for name, value in status.shown_settings.items()]
    new = status.new
    rows.append(("new since the last turn", f"{new.informative} informative of {new.events}"))
    rows += [("", f"{count} {kind}") for kind, count in new.kinds.items()]
    rows += [("left out", f"{count}: {reason}") for reason, count in new.left_out.items()]
    rows.append(("now", f"{status.verdict.rule}: {status.verdict.reason}"))
    if status.verdict.next_at is not None:
        rows.append(("next check", f"{status.verdict.next_at:%Y-%m-%d %H:%M} UTC"))
    if status.missing:
        rows.append(("missing", status.missing))
    if status.gold:
        rows.append(("gold", status.gold))
    yield present.Table(f"the loop of {agent}", ("", ""), rows)
    if status.waiting:
        waiting = [(pending.id, pending.question) for pending in status.waiting]
        yield present.Table("waiting for a person (loop approve, loop refuse)", ("", ""), waiting)
    if status.turns:
        turns = [
            (
                f"{turn.recorded_at:%Y-%m-%d %H:%M}",
                turn.trigger,
                turn.state,
                turn.informative,
                turn.reason or "",
            )
            for turn in status.turns
        ]
        columns = ("turn of", "trigger", "ended as", "informative", "why")
        yield present.Table("newest turns", columns, turns)
    if status.experiments:
        decided = [
            (line.experiment, " against ".join(line.arms), line.state, line.reason)
            for line in status.experiments
        ]
        heads = ("experiment", "arms", "state", "why")
        yield present.Table("what live traffic decided", heads, decided)
    if why and status.checks:
        yield _checks_table(status.checks, agent)


def _checks_table(checks: list[Check], agent: str) -> present.Table:
    rows = []
    for line in checks:
        next_check = "" if line.next_at is None else f"{line.next_at:%Y-%m-%d %H:%M}"
        due = "due" if line.fired else "not due"
        rows.append((f"{line.recorded_at:%m-%d %H:%M}", due, line.rule, line.reason, next_check))
    return present.Table(
        f"checks of {agent}, newest first", ("at", "", "rule", "why", "next check"), rows
    )
