"""`thumbwheel reward run|list|explain|reweight|pending|rewrite`: each calls one verb and presents
what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.config import options
from thumbwheel.core.options import Here
from thumbwheel.jobs.request import JobRequest
from thumbwheel.rewards.presets import PRESETS
from thumbwheel.rewards.rewrite_config import RewriteConfig
from thumbwheel.rewards.types import (
    JudgeReport,
    PendingReport,
    RewardExplanation,
    RewardSummary,
    Reweighed,
    RewrittenAnswers,
)

reward = typer.Typer(no_args_is_help=True)

Agent = Annotated[str, typer.Option("--agent", "-a", help="The agent whose answers are judged.")]
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
    here: Here = False,
) -> JobRequest[JudgeReport, JudgeReport]:
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
    from thumbwheel.rewards.jobs import RewardRunSpec

    spec = RewardRunSpec(
        agent=agent,
        component=tuple(component or ()),
        as_of=as_of,
        retry=retry,
        dry_run=dry_run,
    )

    def show(report: JudgeReport) -> present.Answer[JudgeReport]:
        return present.page(report, _run_page(report))

    return JobRequest("reward run", spec, show, here=here or dry_run)


@reward.command("list")
def list_(
    ctx: typer.Context,
    agent: Agent,
    as_of: AsOf = None,
    lowest: Annotated[
        int, typer.Option(min=0, help="Show so many traces with the lowest reward.")
    ] = 5,
) -> present.Answer[RewardSummary]:
    """Show the rewards of an agent: the values of each component, their means, and the combined
    reward.

    What does not apply, is pending, failed or is blocked has no value and takes no part in a mean.
    `not judged` are traces that came after the last run, or components that were set up or changed
    since: thumbwheel reward run judges them. A component with a weight that has never judged
    anything with its present settings is named in a warning.

    Traces have their ids in their source; one that came without an id has ours, abbreviated. reward
    explain takes either.

    Example: thumbwheel reward list --agent support --lowest 10
    """
    from thumbwheel.rewards.judge_traces import instant
    from thumbwheel.rewards.ledger_stats import reward_summary

    with ctx.obj() as ws:
        summary = reward_summary(ws, agent, instant(as_of), lowest)
    return present.page(RewardSummary.model_validate(summary), _summary_page(summary, agent))


STATUSES = {
    "ok": "ok",
    "not_applicable": "n/a",
    "pending": "pending",
    "failed": "failed",
    "blocked": "blocked",
}
"""Status of a judgement -> its column."""


def _summary_page(summary: Mapping[str, Any], agent: str) -> Iterator[present.Part]:
    rows = []
    for name, component in summary["components"].items():
        counts = [component["statuses"].get(status, 0) for status in STATUSES]
        weight, mean = f"{component['weight']:g}", _number(component["mean"])
        rows.append((name, weight, mean, *counts, component["not_judged"]))
    columns = ("component", "weight", "mean", *STATUSES.values(), "not judged")
    yield present.Table(f"Rewards of {agent}, {summary['traces']} traces", columns, rows)

    whole = summary["reward"]
    yield (
        f"reward: {whole['n']} traces, mean {_number(whole['mean'])}, {whole['good']} good "
        f"({whole['good_from']:g} or more)"
    )
    if summary["lowest"]:
        short_ids = present.short_ids(row["trace"] for row in summary["lowest"])
        lowest = []
        for row in summary["lowest"]:
            trace = row["external_id"] or short_ids[row["trace"]]
            lowest.append((trace, _number(row["reward"])))
        yield present.Table("Lowest rewards", ("trace", "reward"), lowest)
    yield from _warnings(agent, summary["not_run"])


@reward.command()
def explain(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(help="A trace, by our id or by its id in its source.")],
    agent: Agent,
    as_of: AsOf = None,
) -> present.Answer[RewardExplanation]:
    """Explain the reward of a trace: every component's value, weight, status, evidence, and the
    feedback behind it.

    Example: thumbwheel reward explain t-1042 --agent support
    """
    from thumbwheel.rewards.explain import explain as explain_trace
    from thumbwheel.rewards.judge_traces import instant

    with ctx.obj() as ws:
        explanation = explain_trace(ws, agent, trace, instant(as_of))
    lines: list[present.Part] = [*explanation.to_words(), *_warnings(agent, explanation.not_run)]
    return present.page(RewardExplanation.model_validate(explanation.as_dict()), lines)


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
) -> present.Answer[Reweighed]:
    """Compute the rewards with other weights; no reward function is run, and nothing is stored.

    The reward is combined when it is read. To keep the weights, put the lines that are printed into
    thumbwheel.yaml: from then on every command uses them, and datasets that were built with the old
    ones are shown as stale.

    Example: thumbwheel reward reweight --agent support --weight thumb=2 --weight length=0
    """
    from thumbwheel.rewards.ledger_stats import reweigh

    with ctx.obj() as ws:
        comparison = reweigh(ws, agent, dict(_weight(text) for text in weight or ()), preset)
    return present.page(Reweighed.model_validate(comparison), _comparison_page(comparison, agent))


def _comparison_page(comparison: Mapping[str, Any], agent: str) -> Iterator[present.Part]:
    rows = []
    for name in ("before", "after"):
        figures = comparison[name]
        values = [_number(figures[key]) for key in ("mean", "least", "most")]
        rows.append((name, figures["n"], *values))
    columns = ("", "traces", "mean", "least", "most")
    yield present.Table(f"Rewards of {agent} by other weights", columns, rows)
    good = (
        f"{comparison['now_good']} would be good that are not, "
        f"{comparison['no_longer_good']} would no longer be"
    )
    yield f"{comparison['changed']} rewards would change; {good}.\n\n{comparison['yaml']}"
    yield from _warnings(agent, comparison["not_run"])
    if comparison["not_run_yet"]:
        names = ", ".join(comparison["not_run_yet"])
        text = f"Not judged yet, so without a part in this: {names}. Then: thumbwheel reward run"
        yield present.Note(text)


@reward.command()
def pending(
    ctx: typer.Context,
    agent: Agent,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be judged; judge and store nothing.")
    ] = False,
    here: Here = False,
) -> JobRequest[PendingReport, PendingReport]:
    """Judge what could not be judged before: late feedback, outcomes that have come, decisions
    without a reward. Made to run every night.

    Nothing that is unknown becomes 0: what still has no signal stays pending, is listed with its
    reason, and is looked at again next time.

    Example: thumbwheel reward pending --agent filer --json
    """
    from thumbwheel.rewards.jobs import RewardPendingSpec

    def show(report: PendingReport) -> present.Answer[PendingReport]:
        parts = list(_run_page(report))
        if report.waiting:
            rows = [(row.component, row.status, row.count, row.reason) for row in report.waiting]
            columns = ("component", "status", "traces", "why")
            parts.append(present.Table("Still without a value", columns, rows))
        return present.page(report, parts)

    spec = RewardPendingSpec(agent=agent, dry_run=dry_run)
    return JobRequest("reward pending", spec, show, here=here or dry_run)


@reward.command("rewrite")
@options(RewriteConfig)
def rewrite_(
    ctx: typer.Context,
    agent: Agent,
    options: Mapping[str, Any] = {},
) -> present.Answer[RewrittenAnswers]:
    """Have answers written again that users complained about in words that say what would be right,
    as "no, it is in Berlin".

    A language model at --url writes them. Each is stored as a correction by that model, so it makes
    a pair and a good answer to learn from. A person's edit replaces it, and no evaluation reads it.

    Example: thumbwheel reward rewrite --agent support --url http://127.0.0.1:11434/v1 --model qwen3
    """
    from thumbwheel.models.versions import require_agent
    from thumbwheel.rewards.rewrite import rewrite

    with ctx.obj() as ws:
        learner = require_agent(ws, agent)
        result = rewrite(ws, learner, ws.settings(RewriteConfig, "rewrite", options))
    data = RewrittenAnswers(agent, list(result.feedback), dict(result.left_out))
    rows = [("rewritten", len(result.feedback)), *result.left_out.most_common()]
    return present.page(data, [present.Table(f"rewritten answers of {agent}", ("", ""), rows)])


def _warnings(agent: str, not_run: list[str]) -> Iterator[present.Note]:
    from thumbwheel.rewards.ledger import not_run_warning

    if not_run:
        yield present.Note(not_run_warning(agent, not_run))


def _run_page(report: JudgeReport) -> Iterator[present.Part]:
    rows: list[tuple[object, ...]] = []
    for name, component in report.components.items():
        by_status: list[object] = [component.statuses.get(status, 0) for status in STATUSES]
        if report.dry_run:
            by_status = [""] * len(STATUSES)
        rows.append((name, component.judged, component.stood, *by_status))
    done = "would be judged" if report.dry_run else "judged now"
    title = (
        f"{report.agent}: {report.traces} traces, {report.rewarded} with a reward for the first "
        "time"
    )
    yield present.Table(title, ("component", done, "stood already", *STATUSES.values()), rows)
    for row in report.reasons[:5]:
        yield present.Note(f"{row.component} {row.status} on {row.count}: {row.reason}")


def _weight(text: str) -> tuple[str, float]:
    from thumbwheel.core.errors import InputError

    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise InputError(
            f"--weight {text!r}", "it is not a component with a number", "Write it as thumb=2"
        ) from None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
