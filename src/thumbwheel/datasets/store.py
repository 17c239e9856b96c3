"""The SQL of this stage: reads traces, prompts and cases in the order of the prompt ids, writes
datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from thumbwheel.core.written_calls import write_answer
from thumbwheel.datasets.episode import RunStep
from thumbwheel.datasets.types import EXCLUDED, HELD_OUT, Dataset, JudgingCase, Message, owner_mark
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.engine import streamed
from thumbwheel.db.message_chains import Links, add_ancestors, chain
from thumbwheel.db.schema import (
    agents,
    cases,
    datasets,
    feedback,
    feedback_targets,
    messages,
    raters,
    rewards,
    steps,
    traces,
)
from thumbwheel.importers.types import OWNER_MARKS
from thumbwheel.rewards.cases import offered_tools
from thumbwheel.rewards.feedback_queries import in_range
from thumbwheel.rewards.types import EVERY_PROMPT, FeedbackScope, PromptRange

GOLD = "gold"
AUTOMATIC = ("checker", "model")
"""Kinds of raters that are not persons."""
CALLS = ("llm", "tool")
"""Kinds of steps that are calls of a model or a tool."""
CLUSTER_ID = sa.func.coalesce(traces.c.session_id, cases.c.input_id)


class TraceRow(NamedTuple):
    """A trace that feedback is about. `calls` counts its model and tool steps; the model fields are
    those of its last model step.

    `cluster_id` names the traces that a confidence interval counts as one unit: its session, else
    the prompt of its case, else None.
    """

    id: str
    prompt_id: str
    cluster_id: str | None
    subject_id: str | None
    output: str | None
    tools: list[dict[str, Any]] | None
    calls: int
    finish_reason: str | None
    complete: bool | None
    """Whether the output is the whole answer; None where nobody knows."""
    token_ids: list[int] | None
    logps: list[float] | None
    task: str | None
    """The prompt of its case."""
    mark: str | None = None
    """What its owner marked it for, see `types.owner_mark`."""


def judged_traces(
    connection: sa.Connection, agent_id: str, scope: FeedbackScope | None = None
) -> Iterator[TraceRow]:
    """Return the traces that feedback is about, in the order of `rewards.label.judgements`."""
    return _traces(connection, _wanted(agent_id, scope, judged=True))


def unjudged_traces(
    connection: sa.Connection, agent_id: str, scope: FeedbackScope | None = None
) -> Iterator[TraceRow]:
    """Return every other trace of the agent, in the same order as `judged_traces`."""
    return _traces(connection, _wanted(agent_id, scope, judged=False))


def _traces(connection: sa.Connection, wanted: sa.ColumnElement[bool]) -> Iterator[TraceRow]:
    all_steps = steps.alias("all_steps")
    of_trace = (
        sa.select(all_steps.c.position).where(all_steps.c.trace_id == traces.c.id).correlate(traces)
    )
    calls = (
        of_trace.where(all_steps.c.kind.in_(CALLS))
        .with_only_columns(sa.func.count())
        .scalar_subquery()
    )
    last_model_step = (
        of_trace.where(all_steps.c.kind == "llm")
        .with_only_columns(sa.func.max(all_steps.c.position))
        .scalar_subquery()
    )
    columns = [
        traces.c.id,
        traces.c.input_id,
        CLUSTER_ID,
        traces.c.subject_id,
        traces.c.output,
        traces.c.metadata,
        calls,
        steps.c.finish_reason,
        steps.c.complete,
        steps.c.token_ids,
        steps.c.token_logprobs,
        cases.c.input_id,
        steps.c.input,
        sa.case((traces.c.output.is_(None), steps.c.output), else_=sa.null()),
    ]
    joined = _WITH_CASES.outerjoin(
        steps, sa.and_(steps.c.trace_id == traces.c.id, steps.c.position == last_model_step)
    )
    query = sa.select(*columns).select_from(joined).where(wanted).order_by(*_BY_PROMPT)
    for row in streamed(connection, query):
        trace_id, prompt_id, cluster_id, subject_id, output, metadata, call_count, *step = row
        finish_reason, complete, token_ids, logps, case_prompt_id, step_input, last_output = step
        yield TraceRow(
            trace_id,
            prompt_id,
            cluster_id,
            subject_id,
            output if output is not None else _written_calls(last_output),
            offered_tools(step_input, metadata) if step_input or metadata else None,
            call_count,
            finish_reason,
            complete,
            token_ids,
            logps,
            case_prompt_id,
            owner_mark(metadata),
        )


def _written_calls(step_output: Any) -> str | None:
    """Return the answer of a trace that ends in calls of tools, as a text; None if it does not."""
    if not isinstance(step_output, dict) or not step_output.get("tool_calls"):
        return None
    content, calls = step_output.get("content"), step_output["tool_calls"]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return None
    return write_answer(content if isinstance(content, str) else None, calls)


def run_steps(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, list[RunStep]]:
    """Return the model and tool steps of each trace, in their order."""
    by_trace: dict[str, list[RunStep]] = {}
    columns = (steps.c.trace_id, steps.c.kind, steps.c.input, steps.c.output)
    for batch in batches(trace_ids):
        query = sa.select(*columns).where(steps.c.trace_id.in_(batch))
        ordered = query.order_by(steps.c.trace_id, steps.c.position)
        for trace_id, kind, input_, output in connection.execute(ordered):
            if kind in CALLS:
                by_trace.setdefault(trace_id, []).append(RunStep(kind, input_, output))
    return by_trace


def _range(prompt_id: sa.Column[Any], scope: FeedbackScope | None) -> list[sa.ColumnElement[bool]]:
    conditions = []
    if scope and scope.first:
        conditions.append(prompt_id >= scope.first)
    if scope and scope.last:
        conditions.append(prompt_id < scope.last)
    return conditions


class AskedTrace(NamedTuple):
    """What the split needs of a trace. `several`: it took several model and tool calls, so its
    answer is not one to its prompt alone."""

    prompt_id: str
    trace_id: str
    several: bool
    gold: bool
    """Whether its case is gold."""
    case_prompt_id: str | None
    output: str | None
    mark: str | None
    """What its owner marked it for, see `types.owner_mark`."""


def asked_traces(
    connection: sa.Connection,
    agent_id: str,
    scope: FeedbackScope | None = None,
    judged: bool = True,
) -> Iterator[AskedTrace]:
    """Return the judged traces, or all others, in the order of their prompts."""
    wanted = _wanted(agent_id, scope, judged)
    output_column = traces.c.output if judged else sa.null()
    columns = [
        traces.c.input_id,
        traces.c.id,
        _several(),
        sa.func.coalesce(cases.c.basis == GOLD, sa.false()),
        cases.c.input_id,
        output_column,
        _marked(),
    ]
    query = sa.select(*columns).select_from(_WITH_CASES).where(wanted).order_by(*_BY_PROMPT)
    for row in streamed(connection, query):
        prompt_id, trace_id, several, gold, case_prompt_id, output, metadata = row
        yield AskedTrace(
            prompt_id,
            trace_id,
            bool(several),
            bool(gold),
            case_prompt_id,
            output,
            owner_mark(metadata),
        )


def _several() -> sa.ColumnElement[bool]:
    later: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        steps.c.trace_id == traces.c.id, steps.c.position > 0
    )
    calls = (
        sa.select(sa.func.count())
        .where(steps.c.trace_id == traces.c.id, steps.c.kind.in_(CALLS))
        .scalar_subquery()
    )
    # Most traces have one step, and the index alone shows whether there is a later one.
    return sa.and_(later.exists(), calls > 1)


def _marked() -> sa.ColumnElement[Any]:
    """Select the metadata of traces that their owner marked; null elsewhere, which is most of
    them."""
    text = sa.cast(traces.c.metadata, sa.Text)
    is_marked = sa.or_(*(text.contains(name, autoescape=True) for name in OWNER_MARKS))
    return sa.case((is_marked, traces.c.metadata))


def person_judged(connection: sa.Connection, agent_id: str) -> set[str]:
    """Return the ids of the traces with feedback of a person; an unnamed rater counts as a
    person."""
    about = feedback.join(
        feedback_targets, feedback_targets.c.feedback_id == feedback.c.id
    ).outerjoin(raters)
    query = sa.select(feedback_targets.c.target_id).distinct().select_from(about)
    wanted = [
        feedback.c.agent_id == agent_id,
        feedback_targets.c.kind == "trace",
        feedback_targets.c.target_id.is_not(None),
    ]
    wanted.append(sa.func.coalesce(raters.c.kind, "person").not_in(AUTOMATIC))
    return {trace_id for (trace_id,) in streamed(connection, query.where(*wanted))}


def marked(connection: sa.Connection, agent_id: str) -> dict[str, int]:
    """Count the traces of the agent by their owner's mark."""
    counts = Counter[str]()
    query = sa.select(_marked()).where(traces.c.agent_id == agent_id)
    for (metadata,) in streamed(connection, query):
        counts[owner_mark(metadata) or "training"] += 1
    return {
        "training": counts["training"],
        "validation": counts[HELD_OUT],
        "neither": counts[EXCLUDED],
    }


def edits(connection: sa.Connection, agent_id: str) -> Iterator[tuple[str, str]]:
    """Yield (trace id, text) of every correction."""
    about = feedback.join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
    query = sa.select(feedback_targets.c.target_id, feedback.c.value).select_from(about)
    wanted = (
        feedback.c.agent_id == agent_id,
        feedback.c.kind == "correction",
        feedback_targets.c.kind == "trace",
        feedback_targets.c.target_id.is_not(None),
    )
    for trace_id, text in streamed(connection, query.where(*wanted)):
        if isinstance(text, str):
            yield trace_id, text


def judged_prompts(
    connection: sa.Connection,
    agent_id: str,
    scope: FeedbackScope | None = None,
    judged: bool = True,
) -> Iterator[tuple[str, list[Message]]]:
    """Yield (prompt id, its messages) for the judged traces or all others, each prompt once, in
    order of id; a chain with a missing message is left out."""
    prompt_ids = sa.select(traces.c.input_id).where(_wanted(agent_id, scope, judged))
    query = sa.select(messages).where(messages.c.id.in_(prompt_ids)).order_by(messages.c.id)
    for batch in batches(streamed(connection, query)):
        links: Links = {}
        for message_id, parent_id, role, content in batch:
            links[message_id] = (parent_id, {"role": role, **content})
        batch_ids = list(links)
        add_ancestors(connection, links)
        for prompt_id in batch_ids:
            if prompt := chain(links, prompt_id):
                yield prompt_id, prompt


class CaseInput(NamedTuple):
    """What the split needs of a case; a case without a group key is grouped by its prompt."""

    prompt_id: str
    basis: str
    group: str
    reference: Any


def case_inputs(connection: sa.Connection, agent_id: str) -> list[CaseInput]:
    """Return every case of the agent."""
    group = sa.func.coalesce(cases.c.group_key, cases.c.input_id)
    query = (
        sa.select(cases.c.input_id, cases.c.basis, group, cases.c.reference)
        .where(cases.c.agent_id == agent_id)
        .order_by(cases.c.id)
    )
    return [CaseInput(*row) for row in connection.execute(query)]


def open_cases(
    connection: sa.Connection, agent_id: str, scope: FeedbackScope | None = None
) -> Iterator[JudgingCase]:
    """Yield the cases of the agent that are not gold, by prompt."""
    query = sa.select(cases).where(
        cases.c.agent_id == agent_id, cases.c.basis != GOLD, *_range(cases.c.input_id, scope)
    )
    for row in streamed(connection, query.order_by(cases.c.input_id, cases.c.id)):
        yield JudgingCase(row.id, row.input_id, row.reference, row.checker, row.checker_config)


_WITH_CASES = traces.outerjoin(
    cases, sa.and_(cases.c.id == traces.c.case_id, cases.c.agent_id == traces.c.agent_id)
)
"""A trace may claim any id of a case; only one of its agent counts."""
_BY_PROMPT = traces.c.input_id, traces.c.id


def _wanted(agent_id: str, scope: FeedbackScope | None, judged: bool) -> sa.ColumnElement[bool]:
    """Build the condition for the agent's traces in a scope that feedback is about, or for all
    others."""
    literal_one: sa.Select[Any] = sa.select(sa.literal_column("1"))
    is_judged: sa.ColumnElement[bool] = literal_one.where(
        feedback_targets.c.target_id == traces.c.id, feedback_targets.c.kind == "trace"
    ).exists()
    if scope and scope.rewarded:
        is_rewarded = literal_one.where(
            rewards.c.target_id == traces.c.id, rewards.c.value.is_not(None)
        ).exists()
        is_judged = sa.or_(is_judged, is_rewarded)
    return sa.and_(
        traces.c.agent_id == agent_id,
        is_judged if judged else sa.not_(is_judged),
        *_range(traces.c.input_id, scope),
    )


def watermark(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> dict[str, Any]:
    """Return how much feedback there was, and when the newest piece was recorded."""
    columns = (sa.func.count(), sa.func.max(feedback.c.recorded_at))
    query = sa.select(*columns).where(feedback.c.agent_id == agent_id)
    if as_of is not None:
        query = query.where(feedback.c.recorded_at <= as_of)
    count, newest = connection.execute(query).one()
    return {"feedback": count, "recorded_at": newest.isoformat() if newest else None}


def state(connection: sa.Connection, agent_id: str) -> list[int]:
    """Return counts that tell two states of the database apart for a build: these tables are never
    changed in place."""
    counts = []
    for table in (feedback, traces, cases):
        query = sa.select(sa.func.count()).where(table.c.agent_id == agent_id)
        counts.append(connection.execute(query).scalar_one())
    linked = sa.select(sa.func.count()).where(feedback_targets.c.target_id.is_not(None))
    return [*counts, connection.execute(linked).scalar_one()]


def trace_count(
    connection: sa.Connection, agent_id: str, prompts: PromptRange = EVERY_PROMPT
) -> int:
    """Count the traces of the agent about some prompts, judged or not."""
    return connection.execute(
        sa.select(sa.func.count()).where(traces.c.agent_id == agent_id, *in_range(prompts))
    ).scalar_one()


def add(connection: sa.Connection, dataset: Dataset) -> bool:
    """Insert `dataset` unless the agent has it already; return whether it was inserted."""
    if connection.execute(sa.select(datasets.c.id).where(datasets.c.id == dataset.id)).scalar():
        return False
    agent_id = connection.execute(
        sa.select(agents.c.id).where(agents.c.slug == dataset.agent)
    ).scalar_one()
    connection.execute(
        datasets.insert().values(
            id=dataset.id,
            agent_id=agent_id,
            shape=dataset.shape,
            manifest=dataset.manifest,
            fingerprint=dataset.fingerprint,
            recorded_at=dataset.recorded_at,
        )
    )
    return True


def confirm(connection: sa.Connection, dataset_id: str, confirmed_at: datetime) -> None:
    """Record that a later build gave the same dataset."""
    has_this_id = datasets.c.id == dataset_id
    manifest = connection.execute(sa.select(datasets.c.manifest).where(has_this_id)).scalar_one()
    manifest = manifest | {"confirmed_at": confirmed_at.isoformat()}
    connection.execute(datasets.update().where(has_this_id).values(manifest=manifest))


def find(
    connection: sa.Connection, agent: str | None = None, dataset_id: str | None = None
) -> list[Dataset]:
    """Return datasets, oldest first."""
    query = sa.select(datasets, agents.c.slug).join(agents, agents.c.id == datasets.c.agent_id)
    if agent is not None:
        query = query.where(agents.c.slug == agent)
    if dataset_id is not None:
        query = query.where(has_id(datasets.c.id, dataset_id))
    rows = connection.execute(query.order_by(datasets.c.recorded_at, datasets.c.id))
    return [
        Dataset(row.id, row.slug, row.shape, row.fingerprint, row.manifest, row.recorded_at)
        for row in rows
    ]
