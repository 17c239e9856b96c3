"""All SQL of this stage: reads cases and where held-out rows are, keeps evaluations and decisions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.core import ids
from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import (
    answers,
    cases,
    decisions,
    evaluations,
    messages,
    runs,
    steps,
    traces,
)
from thumbwheel.db.schema import declarations as declarations_
from thumbwheel.evaluation.policy import (
    Decision,
    Declaration,
    GateInputs,
    GatePolicy,
    Look,
    StoredDecision,
)
from thumbwheel.evaluation.types import Answer, Case, Evaluation, EvaluationConfig, Measure, Message
from thumbwheel.models.types import ModelVersion

VARIABLES = 500
"""Values in one IN (...): SQLite takes at least 999 variables."""
LEARNED = {"reward_model", "learned", "judge"}
"""Reward functions that ask a model."""
TOLD = (
    "finish_reason",
    "completion_tokens",
    "prompt_tokens",
    "started_at",
    "ended_at",
    "model_version_id",
    "served_model",
    "requested_model",
)
"""What a call of a model may have told."""


def judgeable(connection: sa.Connection, agent_id: str, basis: str) -> list[Case]:
    """Cases of this basis that have a reference or a checker, by id; a case whose history is broken
    has an empty prompt."""
    query = (
        sa.select(cases)
        .where(
            cases.c.agent_id == agent_id,
            cases.c.basis == basis,
            sa.or_(cases.c.reference.is_not(None), cases.c.checker.is_not(None)),
        )
        .order_by(cases.c.id)
    )
    rows = connection.execute(query).mappings().all()
    prompts = _prompts(connection, sorted({row["input_id"] for row in rows}))
    return [
        Case(
            row["id"],
            row["group_key"] or row["input_id"],
            row["input_id"],
            prompts.get(row["input_id"], []),
            row["reference"],
            row["checker"],
            row["checker_config"],
            {str(name): str(value) for name, value in (row["slices"] or {}).items()},
        )
        for row in rows
    ]


def _prompts(connection: sa.Connection, prompt_ids: Sequence[str]) -> dict[str, list[Message]]:
    found: dict[str, sa.RowMapping] = {}
    wanted = set(prompt_ids)
    while wanted:
        level: dict[str, sa.RowMapping] = {}
        ordered = sorted(wanted)
        for start in range(0, len(ordered), VARIABLES):
            some = ordered[start : start + VARIABLES]
            level |= {
                row["id"]: row
                for row in connection.execute(
                    sa.select(messages).where(messages.c.id.in_(some))
                ).mappings()
            }
        found |= level
        wanted = {row["parent_id"] for row in level.values()} - found.keys() - {None}
    return {prompt_id: _chain(found, prompt_id) for prompt_id in prompt_ids}


def _chain(found: dict[str, sa.RowMapping], last: str) -> list[Message]:
    chain: list[Message] = []
    at: str | None = last
    while at is not None:
        if at not in found:
            return []
        chain.append({"role": found[at]["role"], **found[at]["content"]})
        at = found[at]["parent_id"]
    return chain[::-1]


def dataset_of_run(connection: sa.Connection, run_id: str) -> str | None:
    """The dataset that a run trained on."""
    return connection.execute(sa.select(runs.c.dataset_id).where(runs.c.id == run_id)).scalar()


def kept_answers(
    connection: sa.Connection, model: str, kind: str, keys: Collection[str]
) -> dict[str, Any]:
    """question -> reply, of those that `model` was asked before."""
    found: dict[str, Any] = {}
    ordered = sorted(keys)
    for start in range(0, len(ordered), VARIABLES):
        some = ordered[start : start + VARIABLES]
        query = sa.select(answers.c.row, answers.c.result).where(
            answers.c.model == model, answers.c.suite == kind, answers.c.row.in_(some)
        )
        found |= dict(connection.execute(query).tuples().all())
    return found


def keep_answers(
    connection: sa.Connection, agent_id: str, model: str, kind: str, values: Mapping[str, Any]
) -> None:
    """Keep replies of `model`; the first one to a question stays."""
    known = kept_answers(connection, model, kind, values)
    common = {"model": model, "suite": kind, "agent_id": agent_id, "recorded_at": datetime.now(UTC)}
    rows = [
        {**common, "row": key, "result": value} for key, value in values.items() if key not in known
    ]
    if rows:
        connection.execute(answers.insert(), rows)


def recorded(
    connection: sa.Connection, agent_id: str, version: ModelVersion, prompt_ids: Collection[str]
) -> dict[str, Answer]:
    """prompt -> the newest answer to it that the app recorded, with what its last call of a model
    counted; none that says another one made it than `version`."""
    last = sa.select(steps.c.trace_id, sa.func.max(steps.c.position).label("position")).where(
        steps.c.kind == "llm"
    )
    ended = last.group_by(steps.c.trace_id).subquery()
    joined = traces.outerjoin(ended, ended.c.trace_id == traces.c.id).outerjoin(
        steps, (steps.c.trace_id == traces.c.id) & (steps.c.position == ended.c.position)
    )
    found: dict[str, Answer] = {}
    ordered = sorted(prompt_ids)
    for start in range(0, len(ordered), VARIABLES):
        query = (
            sa.select(traces.c.input_id, traces.c.output, *(steps.c[name] for name in TOLD))
            .select_from(joined)
            .where(
                traces.c.agent_id == agent_id,
                traces.c.output.is_not(None),
                traces.c.input_id.in_(ordered[start : start + VARIABLES]),
            )
            .order_by(traces.c.recorded_at, traces.c.id)
        )
        found |= {
            row["input_id"]: _recorded(row)
            for row in connection.execute(query).mappings()
            if not _foreign(row, version)
        }
    return found


def _foreign(row: sa.RowMapping, version: ModelVersion) -> bool:
    """Whether the call names another model; only an endpoint is known by the name that calls have
    for it."""
    if row["model_version_id"] is not None:
        return bool(row["model_version_id"] != version.id)
    called = [one for one in (row["served_model"], row["requested_model"]) if one]
    return (
        bool(called)
        and version.endpoint is not None
        and not any(_same_model(one, version.endpoint["model"]) for one in called)
    )


def _same_model(one: str, other: str) -> bool:
    """With or without the provider before it, and the date or tag of what stands behind the name
    after it."""
    short, long = sorted((one.rpartition("/")[2], other.rpartition("/")[2]), key=len)
    return (
        long.startswith(short)
        and re.fullmatch(r"(-\d[\d.-]*|:latest)?", long[len(short) :]) is not None
    )


def _recorded(row: sa.RowMapping) -> Answer:
    timed = row["started_at"] is not None and row["ended_at"] is not None
    seconds = (row["ended_at"] - row["started_at"]).total_seconds() if timed else None
    return Answer(
        row["output"],
        row["finish_reason"] or "stop",
        row["completion_tokens"],
        row["prompt_tokens"],
        seconds,
    )


def find(connection: sa.Connection, candidate_id: str) -> list[Evaluation]:
    """Evaluations of a candidate, oldest first."""
    query = (
        sa.select(evaluations)
        .where(evaluations.c.candidate_id == candidate_id)
        .order_by(evaluations.c.recorded_at, evaluations.c.id)
    )
    return [
        evaluation
        for row in connection.execute(query).mappings()
        if (evaluation := _evaluation(row)) is not None
    ]


def _evaluation(row: sa.RowMapping) -> Evaluation | None:
    """None for a row that was edited into something that is no evaluation."""
    try:
        return Evaluation(
            **row["results"] | {"id": row["id"], "config": EvaluationConfig(**row["config"])}
        )
    except (ValidationError, TypeError):
        return None


def add(
    connection: sa.Connection,
    agent_id: str,
    evaluation: Evaluation,
    genuine: Callable[[Evaluation], bool],
) -> Evaluation:
    """Keep `evaluation`; where another process kept the same one first and it is `genuine`, that
    one is returned."""
    for known in find(connection, evaluation.candidate_id):
        if known.key == evaluation.key and genuine(known):
            return known
    connection.execute(
        evaluations.insert().values(
            id=evaluation.id,
            agent_id=agent_id,
            candidate_id=evaluation.candidate_id,
            against_id=evaluation.against_id,
            basis=evaluation.basis,
            config=evaluation.config.model_dump(mode="json"),
            results=evaluation.model_dump(mode="json", exclude={"id", "config"}),
            recorded_at=datetime.now(UTC),
        )
    )
    return evaluation


def add_decision(
    connection: sa.Connection, agent_id: str, stored: StoredDecision, declare: str | None
) -> None:
    """Keep a decision; with `declare`, its policy becomes the first declaration, for that reason."""
    if declare is not None:
        add_declaration(connection, agent_id, stored.policy, declare)
    connection.execute(
        decisions.insert().values(
            id=stored.id,
            agent_id=agent_id,
            version_id=stored.version_id,
            evaluation_id=stored.evaluation_id,
            decision=stored.decision.verdict,
            reasons=list(stored.decision.reasons),
            policy=stored.policy.model_dump(mode="json"),
            inputs=stored.inputs.model_dump(mode="json"),
            signature=stored.signature,
            recorded_at=datetime.now(UTC),
        )
    )


def find_decisions(
    connection: sa.Connection,
    *,
    decision_id: str | None = None,
    evaluation_id: str | None = None,
    version_id: str | None = None,
) -> list[StoredDecision]:
    """Decisions that match what is given, oldest first. Ids may be abbreviated.

    A row that was edited into something that is no decision is left out.
    """
    wanted = (
        (decisions.c.id, decision_id),
        (decisions.c.evaluation_id, evaluation_id),
        (decisions.c.version_id, version_id),
    )
    where = [has_id(column, value) for column, value in wanted if value is not None]
    rows = connection.execute(
        sa.select(decisions).where(*where).order_by(decisions.c.recorded_at, decisions.c.id)
    ).mappings()
    return [decision for row in rows if (decision := _decision(row)) is not None]


def _decision(row: sa.RowMapping) -> StoredDecision | None:
    try:
        return StoredDecision(
            id=row["id"],
            version_id=row["version_id"],
            evaluation_id=row["evaluation_id"],
            decision=Decision(verdict=row["decision"], reasons=row["reasons"]),
            inputs=GateInputs(**row["inputs"]),
            policy=GatePolicy(**row["policy"]),
            signature=row["signature"],
        )
    except (ValidationError, TypeError):
        return None


def add_declaration(
    connection: sa.Connection, agent_id: str, policy: GatePolicy, reason: str
) -> Declaration:
    """Keep a policy of the gate as the one that counts from now on."""
    made = Declaration(
        id=ids.new("dcl"), policy=policy, reason=reason, recorded_at=datetime.now(UTC)
    )
    values = made.model_dump(exclude={"policy"}) | {
        "policy": policy.model_dump(mode="json"),
        "agent_id": agent_id,
    }
    connection.execute(declarations_.insert().values(**values))
    return made


def declarations(connection: sa.Connection, agent_id: str) -> list[Declaration]:
    """The policies that were declared for an agent, oldest first."""
    query = (
        sa.select(declarations_)
        .where(declarations_.c.agent_id == agent_id)
        .order_by(declarations_.c.recorded_at, declarations_.c.id)
    )
    return [
        Declaration(
            id=row["id"],
            policy=GatePolicy(**row["policy"]),
            reason=row["reason"],
            recorded_at=row["recorded_at"],
        )
        for row in connection.execute(query).mappings()
    ]


def looks(connection: sa.Connection, agent_id: str) -> list[Look]:
    """Every look at held-out rows of this home, oldest first.

    Rows are known by their content, so a look by another agent at the same rows counts. An
    evaluation that did not say what it read counts for its own agent only.
    """
    query = sa.select(evaluations.c.agent_id, evaluations.c.results).order_by(
        evaluations.c.recorded_at, evaluations.c.id
    )
    history = []
    for owner, results in connection.execute(query).tuples():
        rows = frozenset(results.get("read", ()))
        if rows or owner == agent_id:
            history.append(
                Look(
                    tuple(results.get("sides", ())),
                    results["primary"]["name"],
                    rows,
                    seen(results["primary"]),
                )
            )
    return history


def seen(primary: Mapping[str, Any] | Measure) -> tuple[float, ...]:
    """What a look showed, in numbers."""
    known = primary.model_dump() if isinstance(primary, Measure) else primary
    return tuple(
        float(known[name])
        for name in ("before", "after", "low", "high", "n", "clusters", "changed")
    )


def optimised(connection: sa.Connection, run_id: str | None) -> tuple[str, ...]:
    """The judges that a run trained against and that may be fooled: its reward model, and functions
    that ask a model."""
    config = connection.execute(sa.select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    found = {name.partition("=")[0] for name in config.get("reward_functions") or ()} & LEARNED
    model = config.get("reward_model")
    return tuple(sorted(found | ({"reward_model", model} if model else set())))
