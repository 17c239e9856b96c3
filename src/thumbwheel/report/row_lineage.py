"""The lineage of single things: where one row of a dataset comes from, and where one piece of
feedback or one trace was used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.core.home_paths import located
from thumbwheel.core.seal import make_seal
from thumbwheel.datasets.build import by_id
from thumbwheel.datasets.rewrite import find_row
from thumbwheel.datasets.types import Dataset
from thumbwheel.db import schema, stored_rows
from thumbwheel.db.message_chains import conversation
from thumbwheel.db.stored_rows import Record
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.report import store
from thumbwheel.report.formatting import compact, visible
from thumbwheel.report.lineage import source_and_feedback_ids
from thumbwheel.report.taint import datasets_holding, descendants
from thumbwheel.report.tainted_names import names_of
from thumbwheel.report.types import RowOrigin, UsageReport, UsedDataset, UsedRun

ORIGINS = {
    "correction": "somebody replaced the answer by a better text",
    "preference": "somebody put one answer above another",
    "upvote": "somebody found the answer good",
    "downvote": "somebody found the answer bad",
    "rating": "somebody rated the answer",
    "score": "the answer was scored",
    "label": "the answer was labelled",
    "outcome": "what came of the answer was recorded",
}
"""Origin of a row -> why the row is there, in words."""
ANSWERS = (
    "completion",
    "chosen",
    "rejected",
    "completions",
    "label",
    "value",
    "values",
    "reference",
    "checker",
)


def why(ws: Workspace, name: str, *, subjects: bool = False) -> RowOrigin:
    """Return everything that the row `name` (its id, or DATASET:ROW) was made from, as a JSON
    value. If several datasets have the row, the newest one counts.

    Subjects are keyed hashes unless `subjects`. Raises NotFound for a row that no dataset has.
    """
    dataset, row = _find(ws, name)
    case_id = row.get("case_id")
    with ws.db.read() as connection:
        feedback = [
            _feedback_json(connection, record)
            for record in stored_rows.rows_by_id(connection, schema.feedback, row["feedback_ids"])
        ]
        traces = [
            _trace_json(connection, record)
            for record in stored_rows.rows_by_id(connection, schema.traces, row["trace_ids"])
        ]
        subject_rows = stored_rows.rows_by_id(connection, schema.subjects, row["subject_ids"])
        case = stored_rows.row_by_id(connection, schema.cases, case_id)
        targets = [*row["trace_ids"], case_id] if case_id else row["trace_ids"]
        rewards = store.rewards_of(connection, targets)

    subject_names = {subject["id"]: subject["external_id"] for subject in subject_rows}
    if subject_names and not subjects:
        seal = make_seal(ws.home.secret)
        for subject_id, external_id in subject_names.items():
            subject_names[subject_id] = seal.of("subject", external_id)[:16]
    for trace in traces:
        trace["subject"] = subject_names.get(trace["subject"])
    manifest = dataset.manifest
    origin = {
        "row_id": row["row_id"],
        "dataset": {
            "id": dataset.id,
            "agent": dataset.agent,
            "shape": dataset.shape,
            "tainted": bool(manifest.get("tainted")),
        },
        **{key: row[key] for key in ("split", "group", "origin", "weight", "prompt")},
        "answer": {key: row[key] for key in ANSWERS if key in row},
        "rule": manifest.get("rule"),
        "feedback": feedback,
        "traces": traces,
        "subjects": sorted(subject_names.values()),
        "case": {key: case[key] for key in CASE_KEYS} if case else None,
        "rewards": [_columns(reward, REWARD_KEYS) for reward in rewards],
    }
    return cast(RowOrigin, origin)


def _columns(row: Record, keys: Sequence[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys}


CASE_KEYS = ("id", "source", "external_id", "basis", "reference", "checker")
FEEDBACK_KEYS = (
    "id",
    "source",
    "external_id",
    "kind",
    "name",
    "value",
    "scale",
    "comment",
    "occurred_at",
    "recorded_at",
)
TRACE_KEYS = ("id", "source", "external_id", "status", "output", "occurred_at")
REWARD_KEYS = (
    "target_id",
    "component",
    "component_version",
    "value",
    "status",
    "evidence",
    "as_of",
    "recorded_at",
)


def _find(ws: Workspace, name: str) -> tuple[Dataset, dict[str, Any]]:
    dataset_id, colon, row_id = name.partition(":")
    if colon and not (dataset_id and row_id):
        raise InputError(
            f"row {name!r}",
            "it is not DATASET:ROW",
            "Give a row id, or a dataset's id, a colon and a row id",
        )
    with ws.db.read() as connection:
        dataset_ids = [dataset_id] if colon else store.dataset_ids(connection)
    for candidate_id in dataset_ids:
        dataset = by_id(ws, candidate_id)
        row = find_row(ws, dataset, row_id if colon else name)
        if row:
            return dataset, row
    reason = "no dataset has a row of that id"
    if colon:
        reason = "the dataset has no such row"
        if by_id(ws, dataset_id).manifest.get("erased"):
            reason += " (rows of it were erased)"
    raise NotFound(f"row {name!r}", reason, "See some: thumbwheel dataset show DATASET --json")


def _feedback_json(connection: sa.Connection, feedback: Record) -> dict[str, Any]:
    rater = stored_rows.row_by_id(connection, schema.raters, feedback["rater_id"])
    return _columns(feedback, FEEDBACK_KEYS) | {"rater_kind": rater["kind"] if rater else None}


def _trace_json(connection: sa.Connection, trace: Record) -> dict[str, Any]:
    """Return a trace with its input as JSON; its `subject` is the id of the subject."""
    messages = conversation(connection, trace["input_id"])
    return _columns(trace, TRACE_KEYS) | {"subject": trace["subject_id"], "input": messages}


def feedback_pieces(ws: Workspace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the pieces of feedback with these ids, each with its targets."""
    with ws.db.read() as connection:
        rows = stored_rows.rows_by_id(connection, schema.feedback, names)
        targets = store.target_ids(connection, names)
        return [
            _feedback_json(connection, row) | {"target_ids": targets.get(row["id"], [])}
            for row in rows
        ]


def in_words(row: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the answer of `why` as lines of (depth, text)."""
    dataset = row["dataset"]
    taint = ""
    if dataset["tainted"]:
        taint = ", of which rows were erased or that was made with such rows"
    where = f"{dataset['id']} ({dataset['shape']} of {dataset['agent']}{taint})"
    yield 0, f"row {row['row_id']} of {where}"
    yield 1, f"split {row['split']}, weight {row['weight']:g}, group {row['group']}"
    origin = row["origin"]
    yield 1, f"it is there because {ORIGINS.get(origin, origin)} ({origin})"
    yield 1, f"rule: {row['rule']}"
    for key, value in row["answer"].items():
        yield 1, f"{key}: {_short(value)}"
    yield 1, f"feedback: {len(row['feedback'])}"
    for feedback in row["feedback"]:
        kind = f"{feedback['kind']} {feedback['name'] or ''}".strip()
        rater = feedback["rater_kind"] or "nobody named"
        when = (feedback["occurred_at"] or feedback["recorded_at"])[:16]
        remark = f", remark {_short(feedback['comment'])}" if feedback["comment"] else ""
        value = _short(feedback["value"])
        yield 2, f"{feedback['id']}  {kind} = {value}, by {rater}, {when}{remark}"
    yield 1, f"traces: {len(row['traces'])}"
    for trace in row["traces"]:
        subject = f", subject {visible(trace['subject'])}" if trace["subject"] else ""
        when = (trace["occurred_at"] or "no time")[:16]
        name = f"{trace['source']} {visible(trace['external_id'])}"
        yield 2, f"{trace['id']}  {name}{subject}, {when}"
    case = row["case"]
    if case:
        reference = _short(case["reference"])
        judged_by = f"checker {case['checker']}, reference {reference}"
        yield 1, f"case {case['id']}  {case['basis']}, {judged_by}"
    yield 1, f"rewards in the ledger: {len(row['rewards'])}"
    for reward in row["rewards"]:
        value = "no value" if reward["value"] is None else f"{reward['value']:g}"
        component = f"{reward['component']} {reward['component_version']}"
        yield 2, f"{component}: {value} ({reward['status']}) for {reward['target_id']}"


def _short(value: Any, limit: int = 120) -> str:
    text = " ".join(visible(compact(value)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def used_in(ws: Workspace, source: str, agent: str | None = None) -> UsageReport:
    """Return where a piece of feedback, a trace or a subject was used. Without `agent`, `source`
    must be one of Thumbwheel's own ids.

    Raises NotFound for a source that was never recorded, or was erased.
    """
    with ws.db.read() as connection:
        agent = agent or store.agent_slug(connection, source)
        if agent is None:
            raise NotFound(
                f"{source!r}",
                "no feedback or trace has that id here",
                "Name its agent with --agent, where it is not our own id",
            )
        agent_id = require_agent(ws, agent).id
        wanted = source_and_feedback_ids(ws, connection, agent, source)
    holding = datasets_holding(ws, agent, wanted)
    with ws.db.read() as connection:
        tainted = descendants(ws, connection, agent_id, holding)
        runs = stored_rows.rows_by_id(connection, schema.runs, tainted.runs)
        names = names_of(connection, tainted, agent_id)
        datasets = []
        for dataset_id, affected in holding.items():
            shape = (store.dataset(connection, dataset_id) or {})["shape"]
            datasets.append(UsedDataset(dataset_id, shape, affected.rows, affected.counts))
    return UsageReport(
        source=source,
        agent=agent,
        sources=sorted(wanted),
        datasets=datasets,
        runs=[
            UsedRun(run["id"], run["algorithm"], run["dataset_id"], run["state"]) for run in runs
        ],
        versions=names["versions"],
        reward_models=names["reward_models"],
        evaluations=names["evaluations"],
        exports=located(names["exports"], ws.home.path),
    )
