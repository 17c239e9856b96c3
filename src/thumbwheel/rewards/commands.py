"""`thumbwheel reward run|list|explain|reweight|pending`: each calls one verb and presents what it
gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.rewards.presets import PRESETS

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.rewards.ledger import Report

reward = typer.Typer(no_args_is_help=True)

Agent = Annotated[str, typer.Option("--agent", "-a", help="The agent whose answers are judged.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        help="With the traces and the feedback of this time, as 2026-01-05T08:30:00Z (default: "
        "now)."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--component", help="Only this component of the reward; may be repeated."),
]


@reward.command()
def run(
    ctx: typer.Context,
    agent: Agent,
    component: Only = None,
    as_of: AsOf = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Judge again what failed; what was blocked is always tried again."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be judged; judge and store nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Judge the recorded answers of an agent, by every component of its reward, into the ledger.

    What is in the ledger is not judged again: after new feedback, or a new trace, only what reads
    it. A component that fails is recorded as failed and is never a 0. Components, weights and
    settings stand in thumbwheel.yaml:

        rewards:
          components:
            length: {weight: 0.5, settings: {most: 120}}
          agents:
            support: {preset: none}

    Example: thumbwheel reward run --agent support
    """
    from thumbwheel.core import log

    with ctx.obj() as ws:
        report = _run(ws, agent, component or (), as_of, retry, dry_run)
    if json:
        log.answer(_as_dict(report) | {"agent": agent, "dry_run": dry_run})
    else:
        _present(report, agent, dry_run)


@reward.command("list")
def list_(
    ctx: typer.Context,
    agent: Agent,
    as_of: AsOf = None,
    lowest: Annotated[
        int, typer.Option(min=0, help="Show so many traces with the lowest reward.")
    ] = 5,
    json: AsJson = False,
) -> None:
    """The rewards of an agent: what each component said how often, their means, and the combined
    reward.

    What does not apply, is pending, failed or is blocked has no value and takes no part in a mean.
    `not judged` are traces that came after the last run, or components that were set up or changed
    since: thumbwheel reward run judges them. A component with a weight that has never judged
    anything with its present settings is named in a warning.

    Traces have their ids in their source; one that came without an id has ours, abbreviated. reward
    explain takes either.

    Example: thumbwheel reward list --agent support --lowest 10
    """
    from thumbwheel.core import log
    from thumbwheel.rewards.ledger_stats import reward_summary

    with ctx.obj() as ws:
        summary = reward_summary(ws, agent, _time(as_of), lowest)
    if json:
        log.answer(summary)
        return
    statuses = ("ok", "not_applicable", "pending", "failed", "blocked")
    rows = [
        (
            name,
            f"{component['weight']:g}",
            _number(component["mean"]),
            *(component["statuses"].get(status, 0) for status in statuses),
            component["not_judged"],
        )
        for name, component in summary["components"].items()
    ]
    columns = (
        "component",
        "weight",
        "mean",
        "ok",
        "n/a",
        "pending",
        "failed",
        "blocked",
        "not judged",
    )
    log.table(f"Rewards of {agent}, {summary['traces']} traces", columns, rows)
    whole = summary["reward"]
    log.show(
        f"reward: {whole['n']} traces, mean {_number(whole['mean'])}, {whole['good']} good "
        f"({whole['good_from']:g} or more)"
    )
    if summary["lowest"]:
        short_ids = log.short_ids(row["trace"] for row in summary["lowest"])
        names = [row["external_id"] or short_ids[row["trace"]] for row in summary["lowest"]]
        values = [_number(row["reward"]) for row in summary["lowest"]]
        log.table("Lowest rewards", ("trace", "reward"), zip(names, values, strict=True))
    _warn(agent, summary["not_run"])


@reward.command()
def explain(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(help="A trace, by our id or by its id in its source.")],
    agent: Agent,
    as_of: AsOf = None,
    json: AsJson = False,
) -> None:
    """Why a trace has the reward that it has: every component's value, weight, status, evidence,
    and the feedback behind it.

    Example: thumbwheel reward explain t-1042 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.rewards.explain import explain as explain_trace

    with ctx.obj() as ws:
        explanation = explain_trace(ws, agent, trace, _time(as_of))
    if json:
        log.answer(explanation.as_dict())
        return
    for line in explanation.to_words():
        log.show(line)
    _warn(agent, explanation.not_run)


@reward.command()
def reweight(
    ctx: typer.Context,
    agent: Agent,
    weight: Annotated[
        list[str] | None,
        typer.Option(help="A component and its weight, as thumb=2; may be repeated."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help=f"Start from this preset instead: {', '.join(PRESETS.names())}."),
    ] = None,
    json: AsJson = False,
) -> None:
    """What other weights would make of the rewards; no reward function is run, and nothing is
    stored.

    The reward is combined when it is read. To keep the weights, put the lines that are printed into
    thumbwheel.yaml: from then on every command uses them, and datasets that were built with the old
    ones are shown as stale.

    Example: thumbwheel reward reweight --agent support --weight thumb=2 --weight length=0
    """
    from thumbwheel.core import log
    from thumbwheel.rewards.ledger_stats import reweigh

    with ctx.obj() as ws:
        comparison = reweigh(ws, agent, dict(_weight(text) for text in weight or ()), preset)
    if json:
        log.answer(comparison)
        return
    rows = [
        (
            name,
            comparison[name]["n"],
            *(_number(comparison[name][key]) for key in ("mean", "least", "most")),
        )
        for name in ("before", "after")
    ]
    log.table(f"Rewards of {agent} by other weights", ("", "traces", "mean", "least", "most"), rows)
    good = (
        f"{comparison['now_good']} would be good that are not, "
        f"{comparison['no_longer_good']} would no longer be"
    )
    log.show(f"{comparison['changed']} rewards would change; {good}.\n\n{comparison['yaml']}")
    _warn(agent, comparison["not_run"])
    if comparison["not_run_yet"]:
        names = ", ".join(comparison["not_run_yet"])
        log.say(f"Not judged yet, so without a part in this: {names}. Then: thumbwheel reward run")


@reward.command()
def pending(
    ctx: typer.Context,
    agent: Agent,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be judged; judge and store nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Judge what could not be judged before: late feedback, outcomes that have come, decisions
    without a reward. Made to run every night.

    Nothing that is unknown becomes 0: what still has no signal stays pending, is listed with its
    reason, and is looked at again next time.

    Example: thumbwheel reward pending --agent filer --json
    """
    from thumbwheel.core import log
    from thumbwheel.rewards.ledger_stats import missing_values

    with ctx.obj() as ws:
        report = _run(ws, agent, (), None, True, dry_run)
        waiting = missing_values(ws, agent)
    if json:
        log.answer(_as_dict(report) | {"agent": agent, "dry_run": dry_run, "waiting": waiting})
        return
    _present(report, agent, dry_run)
    if waiting:
        rows = [(row["component"], row["status"], row["count"], row["reason"]) for row in waiting]
        log.table("Still without a value", ("component", "status", "traces", "why"), rows)


def _warn(agent: str, not_run: list[str]) -> None:
    from thumbwheel.core import log
    from thumbwheel.rewards.ledger import not_run_warning

    if not_run:
        log.say(not_run_warning(agent, not_run))


def _run(
    ws: Workspace, agent: str, only: Any, as_of: str | None, retry: bool, dry_run: bool
) -> Report:
    from thumbwheel.core import log
    from thumbwheel.models.versions import require_agent
    from thumbwheel.rewards import ledger
    from thumbwheel.rewards.component import components

    require_agent(ws, agent)
    parts = components(ws, agent, ledger.settings(ws, agent), only)
    time = _time(as_of)
    with log.progress(f"judge {agent}", ledger.count(ws, agent, time), "traces") as advance:
        return ledger.run(
            ws, agent, parts, as_of=time, retry=retry, dry_run=dry_run, advance=advance
        )


def _present(report: Report, agent: str, dry_run: bool) -> None:
    from thumbwheel.core import log

    statuses = ("ok", "not_applicable", "pending", "failed", "blocked")
    rows = [
        (
            name,
            report.judged[name],
            report.standing[name],
            *("" if dry_run else report.statuses[name, status] for status in statuses),
        )
        for name in report.standing
    ]
    done = "would be judged" if dry_run else "judged now"
    columns = ("component", done, "stood already", "ok", "n/a", "pending", "failed", "blocked")
    log.table(
        f"{agent}: {report.traces} traces, {report.rewarded} with a reward for the first time",
        columns,
        rows,
    )
    for (name, status, reason), count in report.reasons.most_common(5):
        log.say(f"{name} {status} on {count}: {reason}")


def _as_dict(report: Report) -> dict[str, Any]:
    components: Mapping[str, Any] = {
        name: {
            "judged": report.judged[name],
            "stood": report.standing[name],
            "statuses": {
                status: count for (part, status), count in report.statuses.items() if part == name
            },
        }
        for name in report.standing
    }
    reasons = [
        {"component": name, "status": status, "reason": why, "count": n}
        for (name, status, why), n in report.reasons.most_common()
    ]
    return {
        "traces": report.traces,
        "rewarded": report.rewarded,
        "components": components,
        "reasons": reasons,
    }


def _time(text: str | None) -> datetime | None:
    from thumbwheel.capture.types import Unreadable, parse_time
    from thumbwheel.core.errors import InputError

    try:
        return None if text is None else parse_time(text)
    except Unreadable as error:
        raise InputError(f"--as-of {text!r}", str(error), "Give a day or a time") from None


def _weight(text: str) -> tuple[str, float]:
    from thumbwheel.core.errors import InputError

    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise InputError(
            f"--weight {text!r}", "it is no component with a number", "Write it as thumb=2"
        ) from None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
