"""The commands `traces list|show|exclude`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from thumbwheel.capture.commands import Agent, Limit
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_options import filters_traces
from thumbwheel.capture.trace_types import (
    ExcludedTraces,
    ShownJudgement,
    ShownStep,
    ShownTrace,
    TracePage,
    TraceSummary,
)
from thumbwheel.core import present

traces = typer.Typer()


@traces.command("list")
@filters_traces
def traces_list(
    ctx: typer.Context,
    agent: Agent,
    wanted: TraceFilter,
    seconds: Annotated[
        float, typer.Option(min=0, max=60, help="With --text or --judged: search on for so long.")
    ] = 0.0,
    limit: Limit = 20,
    after: Annotated[str | None, typer.Option(help="Go on after this page's cursor.")] = None,
) -> present.Answer[TracePage]:
    """List the newest traces with the feedback about them.

    Example: thumbwheel traces list --agent support --unrated --since 2026-07-01
    """
    from thumbwheel.capture.traces import list_traces

    with ctx.obj() as ws:
        page = list_traces(ws, agent, wanted, limit=limit, after=after, seconds=seconds)
    columns: dict[str, Callable[[TraceSummary], object]] = {
        "id": lambda trace: trace.id,
        "when": lambda trace: f"{trace.occurred_at or trace.recorded_at:%Y-%m-%d %H:%M}",
        "input": lambda trace: _clip(trace.input),
        "answer": lambda trace: _clip(trace.output),
        "by": lambda trace: " ".join(filter(None, (trace.version, trace.model))),
        "status": lambda trace: trace.status,
        "feedback": lambda trace: ", ".join(trace.feedback),
    }
    empty = (
        "no traces, or none like that; bring some in: thumbwheel import --help, or record your "
        "app: thumbwheel serve"
    )
    answer = present.records(page.traces, f"traces of {agent}", columns, data=page, empty=empty)
    if page.after:
        more = f"more: --after {page.after}"
        if page.searched_to is not None:
            reached = f"{page.searched_to:%Y-%m-%d %H:%M}"
            more = f"searched back to {reached}; older ones: --after {page.after}, or --seconds 60"
        return present.page(page, [*answer.parts, present.Note(more)])
    return answer


@traces.command("show")
def traces_show(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(help="Our id, its beginning, or the id of its source.")],
    agent: Agent,
) -> present.Answer[ShownTrace]:
    """Show a trace: the question, every step, the answer, and the feedback about it.

    Example: thumbwheel traces show trc_8f2k --agent support
    """
    from thumbwheel.capture.traces import show_trace

    with ctx.obj() as ws:
        shown = show_trace(ws, agent, trace)
    rows: list[tuple[str, object]] = [
        (key, shown[key])
        for key in ("id", "external_id", "source", "session", "subject", "parent_id", "status")
        if shown[key] is not None
    ]
    rows.append(("when", f"{shown['occurred_at'] or shown['recorded_at']:%Y-%m-%d %H:%M:%S}"))
    rows += [
        (message["role"], message.get("content") or message.get("tool_calls"))
        for message in shown["input"]
    ]
    for position, step in enumerate(shown["steps"]):
        rows.append((f"step {position}", _step_line(step)))
    rows.append(("answer", shown["output"]))
    rows += [(_feedback_title(judgement), judgement["value"]) for judgement in shown["feedback"]]
    rows += [("called", child) for child in shown["children"]]
    return present.record(shown, f"trace of {agent}", rows)


@traces.command("exclude")
def traces_exclude(
    ctx: typer.Context,
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Ids of traces.")],
    agent: Agent,
    reason: Annotated[str, typer.Option(help="Why nothing shall learn from them.")] = "",
    by: Annotated[str, typer.Option(help="Who says so.")] = "owner",
    undo: Annotated[bool, typer.Option("--undo", help="Take them in again.")] = False,
) -> present.Answer[ExcludedTraces]:
    """Keep traces out of every dataset that is built from now on; frozen ones stay as they are.

    Example: thumbwheel traces exclude trc_8f2k --agent support --reason "a test of ours"
    """
    from thumbwheel.capture.exclusion import exclude, readmit
    from thumbwheel.models.versions import require_agent

    with ctx.obj() as ws:
        owner = require_agent(ws, agent)
        result = readmit(ws, owner, traces) if undo else exclude(ws, owner, traces, reason, by)
    words = "in datasets again" if undo else "in no dataset from now on"
    return present.message(result, f"{len(result.traces)} {words}")


def _step_line(step: ShownStep) -> str:
    """Return a step in one line: its kind and name, who answered, how long it took, how many
    tokens."""
    parts = [step["kind"], step.get("name")]
    parts += [step.get("version"), step.get("served_model") or step.get("requested_model")]
    if step.get("started_at") and step.get("ended_at"):
        seconds = (step["ended_at"] - step["started_at"]).total_seconds()
        parts.append(f"{seconds:.2f} s")
    if step.get("prompt_tokens") is not None:
        parts.append(f"{step['prompt_tokens']} + {step.get('completion_tokens')} tokens")
    if step["status"] != "ok":
        parts.append(step["status"])
    if step["kind"] == "tool":
        parts.append(f"{_clip(step.get('input'))} -> {_clip(step.get('output'))}")
    return ", ".join(str(part) for part in parts if part)


def _feedback_title(judgement: ShownJudgement) -> str:
    name = f" {judgement['name']}" if judgement.get("name") else ""
    rater = f" by {judgement['rater']}" if judgement.get("rater") else ""
    return f"{judgement['kind']}{name}{rater}"


def _clip(value: Any) -> str:
    return "" if value is None else present.shortened(" ".join(str(value).split()), 40)
