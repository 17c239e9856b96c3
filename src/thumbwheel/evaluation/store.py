"""All SQL of this stage: reads cases and recorded answers, stores replies, evaluations,
decisions, declarations and verdicts of experiments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.capture.prompts import prompts_of_chats
from thumbwheel.core import ids
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.message_chains import conversations
from thumbwheel.db.new_rows import insert_new
from thumbwheel.db.schema import (
    answers,
    cases,
    decisions,
    evaluations,
    experiments,
    model_versions,
    runs,
    steps,
    traces,
)
from thumbwheel.db.schema import declarations as declarations_
from thumbwheel.db.schema import traffic_verdicts as traffic_verdicts_
from thumbwheel.evaluation.policy import (
    Declaration,
    GateDecision,
    GateInputs,
    GatePolicy,
    Look,
    StoredDecision,
)
from thumbwheel.evaluation.traffic import TrafficVerdict
from thumbwheel.evaluation.types import (
    Evaluation,
    EvaluationConfig,
    HeldOutCase,
    Measure,
    ModelAnswer,
)
from thumbwheel.models.types import ModelVersion

MODEL_FUNCTIONS = {"reward_model", "learned", "judge"}
"""Reward functions that ask a model."""
CALL_COLUMNS = (
    "finish_reason",
    "completion_tokens",
    "prompt_tokens",
    "started_at",
    "ended_at",
    "model_version_id",
    "served_model",
    "requested_model",
)
"""What is read of a recorded model call."""

PROMPT_SLICE = "prompt"
"""Name of the slices by system prompt, unless the cases have slices of this name."""


def judgeable(connection: sa.Connection, agent_id: str, basis: str) -> list[HeldOutCase]:
    """Return the cases of this basis that have a reference or a checker, by id. A case whose prompt
    lacks a message has an empty prompt. If the cases have several system prompts, each is a
    slice."""
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
    prompts = conversations(connection, {row["input_id"] for row in rows})
    titles = prompts_of_chats(connection, agent_id, prompts)
    has_several = len(set(titles.values())) > 1
    judgeable_cases = []
    for row in rows:
        slices = {str(name): str(value) for name, value in (row["slices"] or {}).items()}
        if has_several and row["input_id"] in titles:
            slices.setdefault(PROMPT_SLICE, titles[row["input_id"]])
        case = HeldOutCase(
            row["id"],
            row["group_key"] or row["input_id"],
            row["input_id"],
            prompts.get(row["input_id"], []),
            row["reference"],
            row["checker"],
            row["checker_config"],
            slices,
        )
        judgeable_cases.append(case)
    return judgeable_cases


def dataset_of_run(connection: sa.Connection, run_id: str) -> str | None:
    """Return the id of the dataset that a run trained on, or None."""
    return connection.execute(sa.select(runs.c.dataset_id).where(runs.c.id == run_id)).scalar()


def stored_answers(
    connection: sa.Connection, model: str, kind: str, keys: Collection[str]
) -> dict[str, Any]:
    """Return key of a question -> the stored reply of `model`, for those of `keys` that have
    one."""
    replies: dict[str, Any] = {}
    for batch in batches(sorted(keys)):
        query = sa.select(answers.c.row, answers.c.result).where(
            answers.c.model == model, answers.c.suite == kind, answers.c.row.in_(batch)
        )
        replies |= dict(connection.execute(query).tuples().all())
    return replies


def store_answers(
    connection: sa.Connection, agent_id: str, model: str, kind: str, values: Mapping[str, Any]
) -> None:
    """Store replies of `model`; the first one to a question stays."""
    stored = stored_answers(connection, model, kind, values)
    common = {"model": model, "suite": kind, "agent_id": agent_id, "recorded_at": datetime.now(UTC)}
    rows = []
    for key, value in values.items():
        if key not in stored:
            rows.append({**common, "row": key, "result": value})
    insert_new(connection, answers, rows)  # of a model that other agents may ask, too


def recorded(
    connection: sa.Connection, version: ModelVersion, prompt_ids: Collection[str]
) -> dict[str, ModelAnswer]:
    """Return prompt id -> the newest answer that the app recorded, with the token counts of its
    last model call. Answers of another model than `version` are left out."""
    last_calls = (
        sa.select(steps.c.trace_id, sa.func.max(steps.c.position).label("position"))
        .where(steps.c.kind == "llm")
        .group_by(steps.c.trace_id)
        .subquery()
    )
    is_last_call = (steps.c.trace_id == traces.c.id) & (steps.c.position == last_calls.c.position)
    joined = traces.outerjoin(last_calls, last_calls.c.trace_id == traces.c.id).outerjoin(
        steps, is_last_call
    )
    columns = [traces.c.input_id, traces.c.output, *(steps.c[name] for name in CALL_COLUMNS)]
    newest: dict[str, ModelAnswer] = {}
    for batch in batches(sorted(prompt_ids)):
        query = (
            sa.select(*columns)
            .select_from(joined)
            .where(
                traces.c.agent_id == version.agent_id,
                traces.c.output.is_not(None),
                traces.c.input_id.in_(batch),
            )
            .order_by(traces.c.recorded_at, traces.c.id)
        )
        for row in connection.execute(query).mappings():
            if not _by_another_model(row, version):
                newest[row["input_id"]] = _answer(row)
    return newest


def _by_another_model(row: sa.RowMapping, version: ModelVersion) -> bool:
    """Return whether the call names another model. Only an endpoint has a model name to compare
    with."""
    if row["model_version_id"] is not None:
        return bool(row["model_version_id"] != version.id)
    if version.endpoint is None:
        return False
    names = [name for name in (row["served_model"], row["requested_model"]) if name]
    same = [_same_model(name, version.endpoint["model"]) for name in names]
    return bool(same) and not any(same)


def _same_model(name: str, other: str) -> bool:
    """Return whether the names are equal, but for a provider before the name and a date or
    `:latest` after it."""
    short, long = sorted((name.rpartition("/")[2], other.rpartition("/")[2]), key=len)
    suffix = long.removeprefix(short)
    return long.startswith(short) and re.fullmatch(r"(-\d[\d.-]*|:latest)?", suffix) is not None


def _answer(row: sa.RowMapping) -> ModelAnswer:
    timed = row["started_at"] is not None and row["ended_at"] is not None
    seconds = (row["ended_at"] - row["started_at"]).total_seconds() if timed else None
    return ModelAnswer(
        row["output"],
        row["finish_reason"] or "stop",
        row["completion_tokens"],
        row["prompt_tokens"],
        seconds,
    )


def find(connection: sa.Connection, candidate_id: str) -> list[Evaluation]:
    """Return the evaluations of a candidate, oldest first."""
    query = (
        sa.select(evaluations)
        .where(evaluations.c.candidate_id == candidate_id)
        .order_by(evaluations.c.recorded_at, evaluations.c.id)
    )
    records = [_evaluation(row) for row in connection.execute(query).mappings()]
    return [evaluation for evaluation in records if evaluation is not None]


def evaluation_of(connection: sa.Connection, evaluation_id: str) -> Evaluation | None:
    """Return the evaluation with this id, which may be abbreviated; None if there is none."""
    query = sa.select(evaluations).where(has_id(evaluations.c.id, evaluation_id)).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _evaluation(row)


def _evaluation(row: sa.RowMapping) -> Evaluation | None:
    """Return the evaluation of a row; None for a row that somebody edited so that it is no
    evaluation any more."""
    try:
        config = EvaluationConfig(**row["config"])
        return Evaluation(**row["results"] | {"id": row["id"], "config": config})
    except (ValidationError, TypeError):
        return None


def add(
    connection: sa.Connection,
    evaluation: Evaluation,
    genuine: Callable[[Evaluation], bool],
) -> Evaluation:
    """Store `evaluation`. If another process stored the same one first and it is `genuine`, return
    that one."""
    for stored in find(connection, evaluation.candidate_id):
        if stored.key == evaluation.key and genuine(stored):
            return stored
    connection.execute(
        evaluations.insert().values(
            id=evaluation.id,
            agent_id=evaluation.agent_id,
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
    """Store a decision. With `declare`, its policy becomes the first declaration, for that
    reason."""
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
    """Return the decisions with these ids, oldest first. Ids may be abbreviated."""
    filters = (
        (decisions.c.id, decision_id),
        (decisions.c.evaluation_id, evaluation_id),
        (decisions.c.version_id, version_id),
    )
    where = [has_id(column, value) for column, value in filters if value is not None]
    query = sa.select(decisions).where(*where).order_by(decisions.c.recorded_at, decisions.c.id)
    records = [_decision(row) for row in connection.execute(query).mappings()]
    return [decision for decision in records if decision is not None]


def is_decision(connection: sa.Connection, agent_id: str, decision_id: str) -> bool:
    """Return whether the agent has a decision with this id."""
    query = sa.select(decisions.c.id).where(
        decisions.c.id == decision_id, decisions.c.agent_id == agent_id
    )
    return connection.execute(query).scalar() is not None


def decisions_after(
    connection: sa.Connection, agent_id: str, after: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the agent's next decisions after this one, oldest first, with the names of the
    versions."""
    query = (
        sa.select(
            decisions.c.id,
            model_versions.c.number,
            decisions.c.decision,
            decisions.c.reasons,
            decisions.c.recorded_at,
        )
        .join(model_versions, model_versions.c.id == decisions.c.version_id)
        .where(decisions.c.agent_id == agent_id)
        .order_by(decisions.c.recorded_at, decisions.c.id)
        .limit(limit)
    )
    if after is not None:
        last = sa.select(decisions.c.recorded_at).where(decisions.c.id == after).scalar_subquery()
        same_time = sa.and_(decisions.c.recorded_at == last, decisions.c.id > after)
        query = query.where(sa.or_(decisions.c.recorded_at > last, same_time))
    rows = []
    for row in connection.execute(query).mappings():
        fields = {name: value for name, value in row.items() if name != "number"}
        rows.append({**fields, "version": f"v{row['number']}"})
    return rows


def decision_keys(connection: sa.Connection) -> list[tuple[str, str, str | None]]:
    """Return (id, verdict, signature) of every decision."""
    query = sa.select(decisions.c.id, decisions.c.decision, decisions.c.signature)
    return sorted(tuple(row) for row in connection.execute(query))


def _decision(row: sa.RowMapping) -> StoredDecision | None:
    """Return the decision of a row; None for a row that somebody edited so that it is no decision
    any more."""
    try:
        return StoredDecision(
            id=row["id"],
            version_id=row["version_id"],
            evaluation_id=row["evaluation_id"],
            decision=GateDecision(verdict=row["decision"], reasons=row["reasons"]),
            inputs=GateInputs(**row["inputs"]),
            policy=GatePolicy(**row["policy"]),
            signature=row["signature"],
        )
    except (ValidationError, TypeError):
        return None


def add_traffic_verdict(connection: sa.Connection, agent_id: str, verdict: TrafficVerdict) -> None:
    """Store the verdict of an experiment on a version."""
    connection.execute(
        traffic_verdicts_.insert().values(
            id=verdict.id,
            agent_id=agent_id,
            version_id=verdict.version_id,
            experiment_id=verdict.experiment_id,
            verdict=verdict.verdict,
            content=verdict.model_dump(mode="json"),
            signature=verdict.signature,
            recorded_at=datetime.now(UTC),
        )
    )


def traffic_verdicts(
    connection: sa.Connection, *, version_id: str | None = None, experiment_id: str | None = None
) -> list[TrafficVerdict]:
    """Return the verdicts of experiments, oldest first. A row that somebody edited so that it is no
    verdict any more is left out."""
    columns = traffic_verdicts_.c
    filters = ((columns.version_id, version_id), (columns.experiment_id, experiment_id))
    where = [column == value for column, value in filters if value is not None]
    query = sa.select(traffic_verdicts_).where(*where).order_by(columns.recorded_at, columns.id)
    verdicts = []
    for row in connection.execute(query).mappings():
        identity = {name: row[name] for name in ("id", "version_id", "experiment_id", "verdict")}
        with suppress(ValidationError, TypeError):
            verdicts.append(TrafficVerdict(**row["content"] | identity))
    return verdicts


def experiments_of(connection: sa.Connection, agent_id: str) -> int:
    """Return how many experiments an agent started."""
    query = sa.select(sa.func.count()).where(experiments.c.agent_id == agent_id)
    return int(connection.execute(query).scalar_one())


def add_declaration(
    connection: sa.Connection, agent_id: str, policy: GatePolicy, reason: str
) -> Declaration:
    """Store a policy of the gate as the one in force from now on."""
    declaration = Declaration(
        id=ids.new("dcl"), policy=policy, reason=reason, recorded_at=datetime.now(UTC)
    )
    values = declaration.model_dump(exclude={"policy"})
    values["policy"] = policy.model_dump(mode="json")
    values["agent_id"] = agent_id
    connection.execute(declarations_.insert().values(**values))
    return declaration


def declarations(connection: sa.Connection, agent_id: str) -> list[Declaration]:
    """Return the policies that were declared for an agent, oldest first."""
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


def looks_at_others(connection: sa.Connection, version: ModelVersion) -> list[Look]:
    """Return every look at held-out rows of this home that was not about this candidate, oldest
    first."""
    return looks(connection, version.agent_id, evaluations.c.candidate_id != version.id)


def own_looks(connection: sa.Connection, agent_id: str) -> list[Look]:
    """Return every look of this agent at held-out rows, oldest first."""
    return looks(connection, agent_id, evaluations.c.agent_id == agent_id)


def looks(connection: sa.Connection, agent_id: str, *where: sa.ColumnElement[bool]) -> list[Look]:
    """Return every look at held-out rows of this home, oldest first.

    Rows are identified by their content, so a look by another agent at the same rows counts. An
    evaluation that did not record which rows it read counts for its agent only.
    """
    query = (
        sa.select(evaluations.c.agent_id, evaluations.c.results)
        .where(*where)
        .order_by(evaluations.c.recorded_at, evaluations.c.id)
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
                    shown_figures(results["primary"]),
                )
            )
    return history


def shown_figures(primary: Mapping[str, Any] | Measure) -> tuple[float, ...]:
    """Return the figures of a primary measure that a look showed."""
    fields = primary.model_dump() if isinstance(primary, Measure) else primary
    names = ("before", "after", "low", "high", "n", "clusters", "changed")
    return tuple(float(fields[name]) for name in names)


def optimised(connection: sa.Connection, run_id: str | None) -> tuple[str, ...]:
    """Return the judges that a run trained against and that may be fooled: its reward model, and
    functions that ask a model."""
    config = connection.execute(sa.select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    functions = {name.partition("=")[0] for name in config.get("reward_functions") or ()}
    judges = functions & MODEL_FUNCTIONS
    if config.get("reward_model"):
        judges |= {"reward_model", config["reward_model"]}
    return tuple(sorted(judges))
