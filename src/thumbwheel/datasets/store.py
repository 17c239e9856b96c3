"""All SQL of this stage: reads traces, prompts and cases in the order of the prompts, writes datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.datasets.types import Case, Dataset, Message
from thumbwheel.db.schema import agents, cases, datasets, feedback, feedback_targets, messages, steps, traces

T = TypeVar("T")
GOLD = "gold"
STREAM = {"yield_per": 1000}
VARIABLES = 500
"""Values in one IN (...): SQLite takes at least 999 variables."""


@dataclass(frozen=True)
class TraceRow:
    """A trace that feedback is about. `calls` counts its model and tool steps; the model fields are those of its only call."""

    id: str
    prompt_id: str
    session_id: str | None
    subject_id: str | None
    output: str | None
    tools: list[dict[str, Any]] | None
    calls: int
    finish_reason: str | None
    token_ids: list[int] | None
    logps: list[float] | None


def judged_traces(connection: sa.Connection, agent_id: str) -> Iterator[TraceRow]:
    """Every trace of the agent that some feedback is about, in the order of `rewards.label.judgements`."""
    return _traces(connection, _judged(agent_id))


def unjudged_traces(connection: sa.Connection, agent_id: str) -> Iterator[TraceRow]:
    """Every other trace of the agent, in the same order."""
    return _traces(connection, sa.and_(traces.c.agent_id == agent_id, sa.not_(_judged(agent_id))))


def _traces(connection: sa.Connection, which: sa.ColumnElement[bool]) -> Iterator[TraceRow]:
    every = steps.alias("every")
    own = sa.select(every.c.position).where(every.c.trace_id == traces.c.id).correlate(traces)
    calls = own.where(every.c.kind.in_(("llm", "tool"))).with_only_columns(sa.func.count()).scalar_subquery()
    answer = own.where(every.c.kind == "llm").with_only_columns(sa.func.max(every.c.position)).scalar_subquery()
    query = (
        sa.select(
            traces, calls.label("calls"), steps.c.finish_reason, steps.c.token_ids, steps.c.token_logprobs, steps.c.input.label("asked")
        )
        .select_from(traces.outerjoin(steps, sa.and_(steps.c.trace_id == traces.c.id, steps.c.position == answer)))
        .where(which)
        .order_by(traces.c.input_id, traces.c.id)
    )
    for row in connection.execute(query, execution_options=STREAM).mappings():
        yield TraceRow(
            row["id"], row["input_id"], row["session_id"], row["subject_id"], row["output"], _tools(row),
            row["calls"], row["finish_reason"], row["token_ids"], row["token_logprobs"],
        )  # fmt: skip


def judged_groups(connection: sa.Connection, agent_id: str) -> Iterator[tuple[str, str | None]]:
    """(prompt id, session id) of the judged traces, each once."""
    query = sa.select(traces.c.input_id, traces.c.session_id).where(_judged(agent_id)).distinct().order_by(traces.c.input_id)
    for row in connection.execute(query, execution_options=STREAM):
        yield row.input_id, row.session_id


def case_inputs(connection: sa.Connection, agent_id: str) -> list[tuple[str, str]]:
    """(prompt id, basis) of every case of the agent."""
    query = sa.select(cases.c.input_id, cases.c.basis).where(cases.c.agent_id == agent_id).order_by(cases.c.id)
    return [(input_id, basis) for input_id, basis in connection.execute(query)]


def open_cases(connection: sa.Connection, agent_id: str) -> Iterator[Case]:
    """The cases of the agent that are not gold, by prompt."""
    query = sa.select(cases).where(cases.c.agent_id == agent_id, cases.c.basis != GOLD).order_by(cases.c.input_id, cases.c.id)
    for row in connection.execute(query, execution_options=STREAM).mappings():
        yield Case(row["id"], row["input_id"], row["reference"], row["checker"], row["checker_config"])


def prompts(connection: sa.Connection, prompt_ids: Collection[str]) -> dict[str, list[Message]]:
    """The chat messages of each prompt, oldest first; a chain with a missing link is left out."""
    found: dict[str, tuple[str | None, Message]] = {}
    wanted = set(prompt_ids)
    while wanted:
        level = _messages(connection, sorted(wanted))
        found |= level
        wanted = {parent for parent, _ in level.values() if parent is not None and parent not in found}
    chains = {prompt_id: _chain(found, prompt_id) for prompt_id in prompt_ids}
    return {prompt_id: chain for prompt_id, chain in chains.items() if chain}


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _messages(connection: sa.Connection, wanted: Iterable[str]) -> dict[str, tuple[str | None, Message]]:
    found: dict[str, tuple[str | None, Message]] = {}
    for some in batched(wanted, VARIABLES):
        for row in connection.execute(sa.select(messages).where(messages.c.id.in_(some))).mappings():
            found[row["id"]] = (row["parent_id"], {"role": row["role"], **row["content"]})
    return found


def _chain(found: dict[str, tuple[str | None, Message]], last: str) -> list[Message]:
    chain: list[Message] = []
    at: str | None = last
    while at is not None:
        if at not in found:
            return []
        at, message = found[at]
        chain.append(message)
    return chain[::-1]


def _judged(agent_id: str) -> sa.ColumnElement[bool]:
    about = sa.select(feedback_targets.c.target_id).where(feedback_targets.c.kind == "trace", feedback_targets.c.target_id.is_not(None))
    return sa.and_(traces.c.agent_id == agent_id, traces.c.id.in_(about))


def _tools(row: sa.RowMapping) -> list[dict[str, Any]] | None:
    """The tools that the model was given: as the input of its step has them, else as the trace's metadata has them."""
    for place in (row["asked"], row["metadata"]):
        if isinstance(place, dict) and isinstance(place.get("tools"), list) and place["tools"]:
            return list(place["tools"])
    return None


def watermark(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> dict[str, Any]:
    """How much feedback there was, and when the newest piece was recorded."""
    query = sa.select(sa.func.count(), sa.func.max(feedback.c.recorded_at)).where(feedback.c.agent_id == agent_id)
    count, newest = connection.execute(query if as_of is None else query.where(feedback.c.recorded_at <= as_of)).one()
    return {"feedback": count, "recorded_at": newest.isoformat() if newest else None}


def trace_count(connection: sa.Connection, agent_id: str) -> int:
    """All traces of the agent, judged or not."""
    return connection.execute(sa.select(sa.func.count()).where(traces.c.agent_id == agent_id)).scalar_one()


def add(connection: sa.Connection, dataset: Dataset) -> bool:
    """Insert `dataset` where its fingerprint is new for the agent; False where it was there."""
    if connection.execute(sa.select(datasets.c.id).where(datasets.c.id == dataset.id)).scalar():
        return False
    agent_id = connection.execute(sa.select(agents.c.id).where(agents.c.slug == dataset.agent)).scalar_one()
    connection.execute(
        datasets.insert().values(
            id=dataset.id, agent_id=agent_id, shape=dataset.shape, manifest=dataset.manifest, fingerprint=dataset.fingerprint,
            recorded_at=datetime.now(UTC),
        )
    )  # fmt: skip
    return True


def find(connection: sa.Connection, agent: str | None = None, dataset_id: str | None = None) -> list[Dataset]:
    """Datasets, oldest first."""
    query = sa.select(datasets, agents.c.slug).join(agents, agents.c.id == datasets.c.agent_id)
    if agent is not None:
        query = query.where(agents.c.slug == agent)
    if dataset_id is not None:
        query = query.where(datasets.c.id == dataset_id)
    rows = connection.execute(query.order_by(datasets.c.recorded_at, datasets.c.id)).mappings()
    return [Dataset(row["id"], row["slug"], row["shape"], row["fingerprint"], row["manifest"], row["recorded_at"]) for row in rows]
