"""All SQL of this stage: reads traces, prompts and cases in the order of the prompts, writes
datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from thumbwheel.capture.types import OWNER_MARKS
from thumbwheel.datasets.episode import RunStep
from thumbwheel.datasets.types import EXCLUDED, HELD_OUT, Case, Dataset, Message, owner_mark
from thumbwheel.db.columns import has_id
from thumbwheel.db.engine import streamed
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
from thumbwheel.rewards.cases import offered_tools
from thumbwheel.rewards.types import Scope

T = TypeVar("T")
Links = dict[str, tuple[str | None, Message]]
"""Message id -> (the id of the one before it, the message)."""
GOLD = "gold"
VARIABLES = 500
"""Values in one IN (...): SQLite takes at least 999 variables."""
AUTOMATIC = ("checker", "model")
"""Kinds of raters that are no persons."""
CALLS = ("llm", "tool")
"""Kinds of steps that are calls of a model or a tool."""
JUDGED = sa.Table(
    "judged",
    sa.MetaData(),
    sa.Column("place", sa.Integer),
    sa.Column("input_id", sa.String),
    prefixes=["TEMPORARY"],
)
"""Where the judged traces of a scope lie, in the order of the prompts; what every pass over them
would look up anew."""
PLACE: sa.ColumnElement[int] = sa.literal_column("traces.rowid", sa.Integer)
IN_PLACE: sa.ColumnElement[int] = sa.literal_column("judged.rowid", sa.Integer)
KEPT_WITH = sa.func.coalesce(traces.c.session_id, cases.c.input_id)


class TraceRow(NamedTuple):
    """A trace that feedback is about. `calls` counts its model and tool steps; the model fields are
    those of its last model step.

    `kept_with` is what an interval counts as one with it: its session, else the prompt of its case;
    None where it has neither.
    """

    id: str
    prompt_id: str
    kept_with: str | None
    subject_id: str | None
    output: str | None
    tools: list[dict[str, Any]] | None
    calls: int
    finish_reason: str | None
    token_ids: list[int] | None
    logps: list[float] | None
    task: str | None
    """The prompt of its case."""
    mark: str | None = None
    """What its owner said that it is for, see `types.owner_mark`."""


def find_judged(connection: sa.Connection, agent_id: str, scope: Scope | None = None) -> None:
    """Note which traces of the agent some feedback is about; the other functions whose names say
    `judged` read what was noted last.

    It is gone with the transaction, so one that is there is of the same state of the database.
    """
    there = connection.exec_driver_sql(
        "SELECT count(*) FROM temp.sqlite_master WHERE name = 'judged'"
    ).scalar()
    if there and connection.info.get("judged") == (agent_id, scope):
        return
    connection.info["judged"] = (agent_id, scope)
    connection.exec_driver_sql("DROP TABLE IF EXISTS temp.judged")
    JUDGED.create(connection, checkfirst=False)
    which = sa.and_(_judged(agent_id, scope), *_range(traces.c.input_id, scope))
    found = (
        sa.select(PLACE, traces.c.input_id).where(which).order_by(traces.c.input_id, traces.c.id)
    )
    connection.execute(JUDGED.insert().from_select(["place", "input_id"], found))


def judged_traces(connection: sa.Connection) -> Iterator[TraceRow]:
    """Every trace of the agent that some feedback is about, in the order of
    `rewards.label.judgements`."""
    return _traces(connection, None)


def unjudged_traces(
    connection: sa.Connection, agent_id: str, scope: Scope | None = None
) -> Iterator[TraceRow]:
    """Every other trace of the agent, in the same order."""
    return _traces(connection, _others(agent_id, scope))


def _traces(connection: sa.Connection, others: sa.ColumnElement[bool] | None) -> Iterator[TraceRow]:
    """The judged traces, or all `others`."""
    every = steps.alias("every")
    own = sa.select(every.c.position).where(every.c.trace_id == traces.c.id).correlate(traces)
    calls = own.where(every.c.kind.in_(CALLS)).with_only_columns(sa.func.count()).scalar_subquery()
    answer = (
        own.where(every.c.kind == "llm")
        .with_only_columns(sa.func.max(every.c.position))
        .scalar_subquery()
    )
    told = [
        traces.c.id,
        traces.c.input_id,
        KEPT_WITH,
        *(traces.c[name] for name in ("subject_id", "output", "metadata")),
    ]
    said = [
        steps.c.finish_reason,
        steps.c.token_ids,
        steps.c.token_logprobs,
        cases.c.input_id,
        steps.c.input,
    ]
    answered = _of_cases(others).outerjoin(
        steps, sa.and_(steps.c.trace_id == traces.c.id, steps.c.position == answer)
    )
    query = _in_order(sa.select(*told, calls, *said).select_from(answered), others)
    for (
        name,
        prompt_id,
        kept,
        subject,
        output,
        metadata,
        count,
        reason,
        tokens,
        logps,
        task,
        asked,
    ) in streamed(connection, query):
        tools = offered_tools(asked, metadata) if asked or metadata else None
        yield TraceRow(
            name,
            prompt_id,
            kept,
            subject,
            output,
            tools,
            count,
            reason,
            tokens,
            logps,
            task,
            owner_mark(metadata),
        )


def run_steps(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, list[RunStep]]:
    """The model and tool steps of each trace, in their order."""
    found: dict[str, list[RunStep]] = {}
    for some in batched(trace_ids, VARIABLES):
        query = sa.select(steps.c.trace_id, steps.c.kind, steps.c.input, steps.c.output).where(
            steps.c.trace_id.in_(some)
        )
        for name, *step in connection.execute(query.order_by(steps.c.trace_id, steps.c.position)):
            if step[0] in CALLS:
                found.setdefault(name, []).append(RunStep(*step))
    return found


def _range(prompt_id: sa.Column[Any], scope: Scope | None) -> list[sa.ColumnElement[bool]]:
    found = [prompt_id >= scope.first] if scope and scope.first else []
    return [*found, prompt_id < scope.last] if scope and scope.last else found


class AskedTrace(NamedTuple):
    """A trace as far as the split goes. `several`: it took several model and tool calls, so its
    prompt is not what its answer answers."""

    prompt_id: str
    trace_id: str
    several: bool
    gold: bool
    """Whether its case is."""
    case_prompt_id: str | None
    output: str | None
    mark: str | None
    """What its owner said that it is for, see `types.owner_mark`."""


def asked_traces(
    connection: sa.Connection, agent_id: str, scope: Scope | None = None, judged: bool = True
) -> Iterator[AskedTrace]:
    """The judged traces, or all others, in the order of their prompts."""
    others = None if judged else _others(agent_id, scope)
    columns = [
        traces.c.input_id,
        traces.c.id,
        _several(),
        sa.func.coalesce(cases.c.basis == GOLD, sa.false()),
        cases.c.input_id,
    ]
    columns += [traces.c.output if judged else sa.null(), _marked()]
    query = _in_order(sa.select(*columns).select_from(_of_cases(others)), others)
    for prompt_id, trace_id, several, gold, case_prompt_id, output, metadata in streamed(
        connection, query
    ):
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
    # most traces have one step: that there is a later one is told by the index alone
    return sa.and_(later.exists(), calls > 1)


def _marked() -> sa.ColumnElement[Any]:
    """The metadata of traces whose owner said what they are for, which few do; null elsewhere."""
    text = sa.cast(traces.c.metadata, sa.Text)
    return sa.case(
        (sa.or_(*(text.contains(name, autoescape=True) for name in OWNER_MARKS)), traces.c.metadata)
    )


def person_judged(connection: sa.Connection, agent_id: str) -> set[str]:
    """Ids of the traces that a person said something about, whatever it was; who is unnamed counts
    as a person."""
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
    """Traces of the agent by what their owner said that they are for."""
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
    """(trace id, text) of every correction."""
    about = feedback.join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
    query = sa.select(feedback_targets.c.target_id, feedback.c.value).select_from(about)
    wanted = (
        feedback.c.agent_id == agent_id,
        feedback.c.kind == "correction",
        feedback_targets.c.kind == "trace",
    )
    for trace_id, text in streamed(
        connection, query.where(*wanted, feedback_targets.c.target_id.is_not(None))
    ):
        if isinstance(text, str):
            yield trace_id, text


def _of_cases(others: sa.ColumnElement[bool] | None) -> sa.Join:
    """The judged traces, or all, with their cases."""
    start = JUDGED.join(traces, JUDGED.c.place == PLACE) if others is None else traces
    return start.outerjoin(cases, cases.c.id == traces.c.case_id)


def _in_order(query: sa.Select[Any], others: sa.ColumnElement[bool] | None) -> sa.Select[Any]:
    """`query` over these, in the order of their prompts."""
    return (
        query.order_by(IN_PLACE)
        if others is None
        else query.where(others).order_by(traces.c.input_id, traces.c.id)
    )


def judged_prompts(
    connection: sa.Connection, agent_id: str, scope: Scope | None = None, judged: bool = True
) -> Iterator[tuple[str, list[Message]]]:
    """(prompt id, its messages) for the same traces, each once, in order of id; a chain with a
    missing link is left out."""
    asked = (
        sa.select(JUDGED.c.input_id)
        if judged
        else sa.select(traces.c.input_id).where(_others(agent_id, scope))
    )
    query = sa.select(messages).where(messages.c.id.in_(asked)).order_by(messages.c.id)
    for some in batched(streamed(connection, query), VARIABLES):
        known = {name: (parent, {"role": role, **content}) for name, parent, role, content in some}
        names = list(known)
        _complete(connection, known)
        for name in names:
            if chain := _chain(known, name):
                yield name, chain


def cuts(connection: sa.Connection, agent_id: str, parts: int) -> list[str]:
    """Prompt ids that cut the traces of the agent into so many parts of about one size, fewer where
    there are too few prompts."""
    query = (
        sa.select(traces.c.input_id)
        .where(traces.c.agent_id == agent_id)
        .order_by(traces.c.input_id)
    )
    count = trace_count(connection, agent_id)
    found = [
        connection.execute(query.offset(count * part // parts).limit(1)).scalar()
        for part in range(1, parts)
    ]
    return sorted({cut for cut in found if cut})


class CaseInput(NamedTuple):
    """A case as far as the split goes; without a group of its own it is grouped by its prompt."""

    prompt_id: str
    basis: str
    group: str
    reference: Any


def case_inputs(connection: sa.Connection, agent_id: str) -> list[CaseInput]:
    """Every case of the agent."""
    group = sa.func.coalesce(cases.c.group_key, cases.c.input_id)
    query = (
        sa.select(cases.c.input_id, cases.c.basis, group, cases.c.reference)
        .where(cases.c.agent_id == agent_id)
        .order_by(cases.c.id)
    )
    return [CaseInput(*row) for row in connection.execute(query)]


def open_cases(
    connection: sa.Connection, agent_id: str, scope: Scope | None = None
) -> Iterator[Case]:
    """The cases of the agent that are not gold, by prompt."""
    own = sa.select(cases).where(
        cases.c.agent_id == agent_id, cases.c.basis != GOLD, *_range(cases.c.input_id, scope)
    )
    for row in streamed(connection, own.order_by(cases.c.input_id, cases.c.id)):
        yield Case(row.id, row.input_id, row.reference, row.checker, row.checker_config)


def prompts(connection: sa.Connection, prompt_ids: Collection[str]) -> dict[str, list[Message]]:
    """The chat messages of each prompt, oldest first; a chain with a missing link is left out."""
    known = _messages(connection, sorted(set(prompt_ids)))
    _complete(connection, known)
    chains = {prompt_id: _chain(known, prompt_id) for prompt_id in prompt_ids}
    return {prompt_id: chain for prompt_id, chain in chains.items() if chain}


def _complete(connection: sa.Connection, known: Links) -> None:
    """Add what stands before the messages that are `known`."""
    wanted = {parent for parent, _ in known.values() if parent is not None and parent not in known}
    while wanted:
        level = _messages(connection, sorted(wanted))
        known |= level
        wanted = {
            parent for parent, _ in level.values() if parent is not None and parent not in known
        }


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _messages(connection: sa.Connection, wanted: Iterable[str]) -> Links:
    found: Links = {}
    for some in batched(wanted, VARIABLES):
        for name, parent, role, content in connection.execute(
            sa.select(messages).where(messages.c.id.in_(some))
        ):
            found[name] = (parent, {"role": role, **content})
    return found


def _chain(known: Links, last: str) -> list[Message]:
    chain: list[Message] = []
    at: str | None = last
    while at is not None:
        if at not in known:
            return []
        at, message = known[at]
        chain.append(message)
    return chain[::-1]


def _others(agent_id: str, scope: Scope | None) -> sa.ColumnElement[bool]:
    return sa.and_(
        traces.c.agent_id == agent_id,
        sa.not_(_judged(agent_id, scope)),
        *_range(traces.c.input_id, scope),
    )


def _judged(agent_id: str, scope: Scope | None) -> sa.ColumnElement[bool]:
    one: sa.Select[Any] = sa.select(sa.literal_column("1"))
    found: sa.ColumnElement[bool] = one.where(
        feedback_targets.c.target_id == traces.c.id, feedback_targets.c.kind == "trace"
    ).exists()
    if scope and scope.rewarded:
        found = sa.or_(
            found,
            one.where(rewards.c.target_id == traces.c.id, rewards.c.value.is_not(None)).exists(),
        )
    return sa.and_(traces.c.agent_id == agent_id, found)


def watermark(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> dict[str, Any]:
    """How much feedback there was, and when the newest piece was recorded."""
    query = sa.select(sa.func.count(), sa.func.max(feedback.c.recorded_at)).where(
        feedback.c.agent_id == agent_id
    )
    count, newest = connection.execute(
        query if as_of is None else query.where(feedback.c.recorded_at <= as_of)
    ).one()
    return {"feedback": count, "recorded_at": newest.isoformat() if newest else None}


def state(connection: sa.Connection, agent_id: str) -> list[int]:
    """Counts that tell two states of the database apart, as far as building goes: nothing in these
    tables is ever changed in place."""
    tables = (feedback, traces, cases)
    counts = [
        connection.execute(
            sa.select(sa.func.count()).where(one.c.agent_id == agent_id)
        ).scalar_one()
        for one in tables
    ]
    linked = sa.select(sa.func.count()).where(feedback_targets.c.target_id.is_not(None))
    return [*counts, connection.execute(linked).scalar_one()]


def trace_count(connection: sa.Connection, agent_id: str) -> int:
    """All traces of the agent, judged or not."""
    return connection.execute(
        sa.select(sa.func.count()).where(traces.c.agent_id == agent_id)
    ).scalar_one()


def add(connection: sa.Connection, dataset: Dataset) -> bool:
    """Insert `dataset` where its fingerprint is new for the agent; False where it was there."""
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


def confirm(connection: sa.Connection, dataset_id: str, at: datetime) -> None:
    """Note that the same dataset came out again."""
    this = datasets.c.id == dataset_id
    manifest = connection.execute(sa.select(datasets.c.manifest).where(this)).scalar_one()
    connection.execute(
        datasets.update().where(this).values(manifest=manifest | {"confirmed_at": at.isoformat()})
    )


def find(
    connection: sa.Connection, agent: str | None = None, dataset_id: str | None = None
) -> list[Dataset]:
    """Datasets, oldest first."""
    query = sa.select(datasets, agents.c.slug).join(agents, agents.c.id == datasets.c.agent_id)
    if agent is not None:
        query = query.where(agents.c.slug == agent)
    if dataset_id is not None:
        query = query.where(has_id(datasets.c.id, dataset_id))
    rows = connection.execute(query.order_by(datasets.c.recorded_at, datasets.c.id)).mappings()
    return [
        Dataset(
            row["id"],
            row["slug"],
            row["shape"],
            row["fingerprint"],
            row["manifest"],
            row["recorded_at"],
        )
        for row in rows
    ]
