"""`thumbwheel replay`: recorded traces, answered again by a version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_options import filters_traces
from thumbwheel.core import present
from thumbwheel.core.files import write_output
from thumbwheel.core.options import Here
from thumbwheel.evaluation.replay_csv import csv_of
from thumbwheel.evaluation.replay_types import (
    MOST_TRACES,
    ReplayedTrace,
    ReplaySpec,
    ShownReplay,
    TraceReplay,
)
from thumbwheel.jobs.request import JobRequest

replay = typer.Typer()
Agent = Annotated[str, typer.Option("--agent", "-a", help="The agent whose traces are meant.")]


@replay.command("run")
@filters_traces
def run_(
    ctx: typer.Context,
    candidate: Annotated[
        str, typer.Argument(metavar="VERSION", help="Who answers: v3, an alias, or latest.")
    ],
    agent: Agent,
    trace: Annotated[
        list[str] | None,
        typer.Option(help="Only this trace; may be repeated. The filters do not apply then."),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, max=MOST_TRACES, help="Traces, at most: the newest ones.")
    ] = 50,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="Tokens of an answer, at most.")
    ] = 256,
    here: Here = False,
    *,
    wanted: TraceFilter,
) -> JobRequest[TraceReplay, TraceReplay]:
    """Let a version answer recorded traces again, and keep its answers beside the recorded ones.

    The version need not be deployed. People vote on the page of the replay, and each vote is
    feedback. The option --version selects recorded answers of a version.

    Example: thumbwheel replay run v3 --agent support --judged bad --most 20
    """
    from thumbwheel.evaluation.trace_replay import select_traces
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        version = versions.version(ws, agent, candidate)
        learner = versions.require_agent(ws, agent)
        trace_ids = select_traces(ws, learner, wanted, most, trace or ())
    spec = ReplaySpec(
        version=version.name,
        agent=agent,
        traces=tuple(trace_ids),
        max_new_tokens=max_new_tokens,
    )
    return JobRequest("replay run", spec, _outcome, here=here)


def _outcome(result: TraceReplay) -> present.Answer[TraceReplay]:
    rows: list[present.Row] = [
        ("answered", result.answered),
        ("word for word as recorded", result.equal),
    ]
    rows += [(f"left out: {trace_id}", why) for trace_id, why in result.left_out.items()]
    if result.answered:
        side_by_side = f"thumbwheel replay show {result.id} --agent {result.agent}"
        rows.append(("side by side", side_by_side))
    return present.record(result, f"replay by {result.version} of {result.agent}", rows)


@replay.command("show")
def show_(
    ctx: typer.Context,
    replay: Annotated[str, typer.Argument(help="Its id, as `replay run` prints it.")],
    agent: Agent,
    output: Annotated[
        Path | None, typer.Option(help="Also write the whole texts to this file, as CSV.")
    ] = None,
) -> present.Answer[ShownReplay]:
    """Show recorded answers beside those of a replay, and how people voted.

    Example: thumbwheel replay show rpl_0f3k2m8v1 --agent support --output answers.csv
    """
    from thumbwheel.evaluation.trace_replay import show_replay
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        shown = show_replay(ws, require_agent(ws, agent), replay)
    if output is not None:
        write_output("--output", output, csv_of(shown))
    columns = {
        "question": lambda row: _clip(row.question),
        "recorded": lambda row: _clip(row.before),
        "by": lambda row: row.answered_by,
        shown.version: lambda row: "the same" if row.is_equal else _clip(row.after),
        "preferred": _votes,
    }
    title = f"replay by {shown.version} of {agent}"
    return present.records(shown.traces, title, columns, data=shown)


def _votes(row: ReplayedTrace) -> str:
    return ", ".join(f"{winner} {count}" for winner, count in row.votes.items())


def _clip(text: str) -> str:
    return present.shortened(" ".join(text.split()), 40)
