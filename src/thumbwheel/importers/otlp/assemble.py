"""From the spans of one OpenTelemetry trace to ours: the run of the agent with its steps, runs of
nested agents as traces with a parent, and evaluation results as feedback.

A span that only wraps others (an agent, a chain, a workflow) is no step; what it was given and what
it answered is the trace's. Where no such span says that, the first call of a model says what was
asked and the last one what was answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.otlp import conventions
from thumbwheel.importers.otlp.evaluations import evaluation_record, is_evaluation
from thumbwheel.importers.otlp.messages import text_in
from thumbwheel.importers.otlp.span import Span
from thumbwheel.importers.types import (
    MOST_STEPS,
    AnyRecord,
    StepRecord,
    TargetRef,
    Tokens,
    TraceRecord,
    Unreadable,
)

_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class SpanNode:
    """A span with the spans inside it."""

    span: Span
    children: list[SpanNode] = field(default_factory=list)


def is_complete(spans: Iterable[Span]) -> bool:
    """Return whether the trace has its root and no span lacks its parent."""
    spans = list(spans)
    ids = {span.span_id for span in spans}
    has_root = any(span.parent_id is None for span in spans)
    return has_root and all(span.parent_id is None or span.parent_id in ids for span in spans)


class NoRun(Unreadable):
    """The spans are of something else than a model that was asked: embeddings, a web server."""


@dataclass(frozen=True)
class SpanRun:
    """One run of an agent: its trace, the spans that are the trace's steps, and all spans in it."""

    trace: TraceRecord
    steps: Sequence[Span]
    inside: Sequence[Span]

    @cached_property
    def targets(self) -> Mapping[str, TargetRef]:
        """Span id -> what feedback about this span is about: the trace if the span wraps it or gave
        its answer, else a step of it."""
        whole = self.trace.as_target()
        targets = {span.span_id: whole for span in self.inside}
        if len(self.steps) > 1:
            for position, span in enumerate(self.steps):
                if conventions.answer(span) != self.trace.output:
                    step = TargetRef(kind="step", id=self.trace.external_id, step=position)
                    targets[span.span_id] = step
        return targets


def records_of(spans: Sequence[Span]) -> list[AnyRecord]:
    """Return the records of the spans of one trace: the run itself, runs of nested agents,
    feedback. Raises NoRun if the spans hold no run of a model, Unreadable."""
    runs = runs_of(spans)
    records: list[AnyRecord] = [run.trace for run in runs]
    for span in sorted(spans, key=_start):
        events = filter(is_evaluation, span.events)
        records += [evaluation_record(event, span.trace_id, span.sender) for event in events]
    return records


def runs_of(spans: Sequence[Span]) -> list[SpanRun]:
    """Return the runs in the spans of one trace, the outermost first. Raises NoRun, Unreadable."""
    distinct = {span.span_id: span for span in spans}
    ordered = sorted(distinct.values(), key=_start)
    nodes = {span.span_id: SpanNode(span) for span in ordered}
    roots = []
    for node in nodes.values():
        parent = nodes.get(node.span.parent_id or "")
        if parent is None or parent is node:
            roots.append(node)
        else:
            parent.children.append(node)
    if not roots:
        raise Unreadable("its spans are each other's parents")
    runs = _runs(ordered[0].trace_id, None, roots)
    if not runs:
        raise NoRun("none of its spans says what a model was asked")
    return runs


def target_of(runs: Iterable[SpanRun], span_id: str) -> TargetRef | None:
    """Return the target of feedback about this span, or None if no run has the span."""
    return next((run.targets[span_id] for run in runs if span_id in run.targets), None)


def _start(span: Span) -> datetime:
    return span.started_at or _START


def _runs(name: str, parent: str | None, roots: Sequence[SpanNode]) -> list[SpanRun]:
    """Return the run of an agent, followed by the runs of agents that it called."""
    runs = []
    agents = [(name, parent, roots)]
    while agents:
        name, parent, roots = agents.pop()
        # agents called by this one are runs of their own
        root_ids = {node.span.span_id for node in roots}
        inside: list[Span] = []
        nested: list[SpanNode] = []
        waiting = list(reversed(roots))
        while waiting:
            node = waiting.pop()
            is_agent = conventions.operation(node.span) in conventions.AGENT_OPERATIONS
            if is_agent and node.span.span_id not in root_ids:
                nested.append(node)
                continue
            inside.append(node.span)
            waiting += reversed(node.children)
        inside.sort(key=_start)

        run = _run(name, parent, [node.span for node in roots], inside)
        if run is not None:
            runs.append(run)
        for node in reversed(nested):
            nested_name = f"{node.span.trace_id}/{node.span.span_id}"
            agents.append((nested_name, name if run else parent, [node]))
    return runs


def _run(
    name: str, parent: str | None, roots: Sequence[Span], inside: Sequence[Span]
) -> SpanRun | None:
    """Return the run; None if no span holds a prompt."""
    steps = [span for span in inside if conventions.step_kind(span) != "task"]
    calls = [span for span in steps if conventions.step_kind(span) == "llm"]
    calls = [span for span in calls if conventions.operation(span) not in conventions.EMBEDDINGS]
    if not calls:
        # a wrapper whose inner call was not sent, or sent as a trace of its own
        calls = [span for span in roots if conventions.prompt(span) and conventions.answer(span)]
        step_ids = {span.span_id for span in steps}
        calls = [span for span in calls if span.span_id not in step_ids]
        steps = sorted([*steps, *calls], key=_start)

    # what the run's own span does not say, its first and last call of a model do
    step_ids = {span.span_id for span in steps}
    wrappers = [span for span in roots if span.span_id not in step_ids]
    prompts = map(conventions.prompt, [*wrappers, *calls])
    prompt = next((prompt for prompt in prompts if prompt), None)
    if prompt is None:
        return None
    answers = map(conventions.answer, [*wrappers, *reversed(calls)])
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None and steps and conventions.step_kind(steps[-1]) == "tool":
        # an agent that answers by a tool, such as final_answer
        answer = text_in(conventions.first(steps[-1].attributes, conventions.TOOL_OUTPUT))

    steps = steps[:MOST_STEPS]  # as none are added later to a trace that has so many
    fields: dict[str, Any] = {
        "id": name,
        "session": _first_name(inside, conventions.SESSION),
        "subject": _first_name(inside, conventions.SUBJECT),
        "parent": parent,
        "input": prompt,
        "output": answer,
        "steps": list(map(_step, steps)) or [StepRecord()],
        "status": "error" if any(span.is_error for span in roots) else "ok",
        "occurred_at": min(map(_start, inside)) if any(s.started_at for s in inside) else None,
        "metadata": _metadata(roots, calls),
    }
    return SpanRun(TraceRecord.model_validate(fields), steps, inside)


def _first_name(spans: Iterable[Span], names: Sequence[str]) -> str | None:
    values = (conventions.name_in(span, names) for span in spans)
    return next((value for value in values if value), None)


def _metadata(roots: Sequence[Span], calls: Sequence[Span]) -> dict[str, Any] | None:
    metadata: dict[str, Any] = {"name": roots[0].name} if roots[0].name else {}
    offered = (conventions.tools(span) for span in calls)
    tools = next((tools for tools in offered if tools), None)
    if tools:
        metadata["tools"] = tools
    response_ids = [conventions.first(span.attributes, conventions.RESPONSE_ID) for span in calls]
    known_ids = [str(response_id) for response_id in response_ids if response_id]
    if known_ids:
        metadata["response_ids"] = known_ids
    return metadata or None


def _step(span: Span) -> StepRecord:
    kind = conventions.step_kind(span)
    ended_at = span.ended_at
    if ended_at and span.started_at and ended_at < span.started_at:
        ended_at = None  # clocks of two machines
    fields: dict[str, Any] = {
        "kind": kind if kind != "task" else "llm",
        "name": span.name[:512] or None,
        "status": "error" if span.is_error else "ok",
        "started_at": span.started_at,
        "ended_at": ended_at,
    }
    if kind == "tool":
        name = conventions.first(span.attributes, conventions.TOOL_NAME)
        if name:
            fields["name"] = str(name)[:512]
        arguments = conventions.first(span.attributes, conventions.TOOL_INPUT)
        result = conventions.first(span.attributes, conventions.TOOL_OUTPUT)
        return StepRecord.model_validate(
            fields | {"input": unpacked(arguments), "output": unpacked(result)}
        )
    counts = conventions.tokens(span)
    return StepRecord.model_validate(
        fields
        | {
            "input": conventions.prompt(span),
            "output": _output(span),
            "model": _model_name(conventions.requested_model(span)),
            "served_model": _model_name(
                conventions.first(span.attributes, conventions.SERVED_MODEL)
            ),
            "finish_reason": conventions.finish_reason(span),
            "sampling": conventions.sampling(span),
            "tokens": Tokens.model_validate(counts) if counts else None,
        }
    )


def _output(span: Span) -> Any:
    """Return the model's answer as text, or its tool calls if it called tools."""
    text = conventions.answer(span)
    if text is not None:
        return text
    value = conventions.first(span.attributes, (*conventions.ANSWER, "ai.response.toolCalls"))
    return unpacked(value)


def _model_name(value: Any) -> str | None:
    return str(value)[:512] if value else None
