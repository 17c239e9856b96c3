"""All SQL of this stage: reads cases and where held-out rows are, keeps evaluations and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.schema import cases, decisions, evaluations, messages, runs
from thumbwheel.evaluation.types import Case, Decision, Evaluation, EvaluationConfig, GateInputs, GatePolicy, Message, StoredDecision

VARIABLES = 500
"""Values in one IN (...): SQLite takes at least 999 variables."""


def judgeable(connection: sa.Connection, agent_id: str, basis: str) -> list[Case]:
    """Cases of this basis that have a reference or a checker, by id; a case whose history is broken has an empty prompt."""
    query = (
        sa.select(cases)
        .where(cases.c.agent_id == agent_id, cases.c.basis == basis, sa.or_(cases.c.reference.is_not(None), cases.c.checker.is_not(None)))
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
            level |= {row["id"]: row for row in connection.execute(sa.select(messages).where(messages.c.id.in_(some))).mappings()}
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


def find(connection: sa.Connection, candidate_id: str) -> list[Evaluation]:
    """Evaluations of a candidate, oldest first."""
    query = sa.select(evaluations).where(evaluations.c.candidate_id == candidate_id).order_by(evaluations.c.recorded_at, evaluations.c.id)
    return [_evaluation(row) for row in connection.execute(query).mappings()]


def by_id(connection: sa.Connection, evaluation_id: str) -> Evaluation | None:
    """The evaluation with this id."""
    row = connection.execute(sa.select(evaluations).where(evaluations.c.id == evaluation_id)).mappings().first()
    return _evaluation(row) if row else None


def _evaluation(row: sa.RowMapping) -> Evaluation:
    return Evaluation(**row["results"], id=row["id"], config=EvaluationConfig(**row["config"]))


def add(connection: sa.Connection, agent_id: str, evaluation: Evaluation) -> Evaluation:
    """Keep `evaluation`; where another process kept the same one first, that one is returned."""
    known = next((one for one in find(connection, evaluation.candidate_id) if one.key == evaluation.key), None)
    if known is not None:
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
    connection: sa.Connection, agent_id: str, evaluation: Evaluation, decision: Decision, inputs: GateInputs, policy: GatePolicy
) -> StoredDecision:
    """Keep a decision with its inputs and policy."""
    stored = StoredDecision(
        id=ids.new("dec"),
        version_id=evaluation.candidate_id,
        evaluation_id=evaluation.id,
        decision=decision,
        inputs=inputs,
        policy=policy,
    )
    connection.execute(
        decisions.insert().values(
            id=stored.id,
            agent_id=agent_id,
            version_id=stored.version_id,
            evaluation_id=stored.evaluation_id,
            decision=decision.verdict,
            reasons=list(decision.reasons),
            policy=policy.model_dump(mode="json"),
            inputs=inputs.model_dump(mode="json"),
            recorded_at=datetime.now(UTC),
        )
    )
    return stored


def find_decisions(
    connection: sa.Connection, *, decision_id: str | None = None, evaluation_id: str | None = None, version_id: str | None = None
) -> list[StoredDecision]:
    """Decisions that match what is given, oldest first."""
    wanted = ((decisions.c.id, decision_id), (decisions.c.evaluation_id, evaluation_id), (decisions.c.version_id, version_id))
    where = [column == value for column, value in wanted if value is not None]
    rows = connection.execute(sa.select(decisions).where(*where).order_by(decisions.c.recorded_at, decisions.c.id)).mappings()
    return [
        StoredDecision(
            id=row["id"],
            version_id=row["version_id"],
            evaluation_id=row["evaluation_id"],
            decision=Decision(verdict=row["decision"], reasons=row["reasons"]),
            inputs=GateInputs(**row["inputs"]),
            policy=GatePolicy(**row["policy"]),
        )
        for row in rows
    ]
