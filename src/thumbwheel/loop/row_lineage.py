"""Where one row of a dataset comes from, and where one piece of feedback or one trace has gone:
lineage of single things, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.core.seal import make_seal
from thumbwheel.datasets.build import by_id
from thumbwheel.datasets.rewrite import find_row
from thumbwheel.datasets.types import Dataset
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop import store
from thumbwheel.loop.erase import named
from thumbwheel.loop.formatting import compact, visible
from thumbwheel.loop.lineage import source_and_feedback_ids
from thumbwheel.loop.taint import datasets_holding, descendants
from thumbwheel.loop.types import Record
from thumbwheel.models.versions import require_agent

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
"""What made a row -> the same in words."""
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


def why(ws: Workspace, name: str, *, subjects: bool = False) -> dict[str, Any]:
    """Everything that the row `name` (its id, or DATASET:ROW) was made from, as a JSON value; the
    newest dataset that has it counts.

    Subjects are keyed hashes unless `subjects`. Raises NotFound for a row that no dataset has.
    """
    dataset, row = _find(ws, name)
    with ws.db.read() as connection:
        said = [
            _said(connection, one)
            for one in store.rows_by_id(connection, schema.feedback, row["feedback_ids"])
        ]
        traced = [
            _traced(connection, one)
            for one in store.rows_by_id(connection, schema.traces, row["trace_ids"])
        ]
        known = store.rows_by_id(connection, schema.subjects, row["subject_ids"])
        case = store.one(connection, schema.cases, row.get("case_id"))
        rewards = store.rewards_of(
            connection, [*row["trace_ids"], *([row["case_id"]] if row.get("case_id") else [])]
        )
    seal = None if subjects or not known else make_seal(ws.home.secret)
    called = {
        one["id"]: seal.of("subject", one["external_id"])[:16] if seal else one["external_id"]
        for one in known
    }
    manifest = dataset.manifest
    return {
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
        "feedback": said,
        "traces": [{**one, "subject": called.get(one["subject"])} for one in traced],
        "subjects": sorted(called.values()),
        "case": {
            key: case[key]
            for key in ("id", "source", "external_id", "basis", "reference", "checker")
        }
        if case
        else None,
        "rewards": [{key: one[key] for key in REWARD} for one in rewards],
    }


REWARD = (
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
        among = [dataset_id] if colon else store.dataset_ids(connection)
    for one in among:
        dataset = by_id(ws, one)
        if row := find_row(ws, dataset, row_id if colon else name):
            return dataset, row
    rewritten = (
        " (rows of it were erased)"
        if colon and by_id(ws, dataset_id).manifest.get("erased")
        else ""
    )
    why_ = f"the dataset has no such row{rewritten}" if colon else "no dataset has a row of that id"
    raise NotFound(f"row {name!r}", why_, "See some: thumbwheel dataset show DATASET --json")


def _said(connection: sa.Connection, one: Record) -> dict[str, Any]:
    rater = store.one(connection, schema.raters, one["rater_id"])
    keys = (
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
    return {key: one[key] for key in keys} | {"rater_kind": rater["kind"] if rater else None}


def _traced(connection: sa.Connection, one: Record) -> dict[str, Any]:
    keys = ("id", "source", "external_id", "status", "output", "occurred_at")
    question = store.chain(connection, one["input_id"])
    return {key: one[key] for key in keys} | {"subject": one["subject_id"], "input": question}


def in_words(found: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The answer of `why` as lines of (depth, text)."""
    dataset = found["dataset"]
    taint = (
        ", of which rows were erased or that was made with such rows" if dataset["tainted"] else ""
    )
    yield (
        0,
        f"row {found['row_id']} of {dataset['id']} ({dataset['shape']} of "
        f"{dataset['agent']}{taint})",
    )
    yield 1, f"split {found['split']}, weight {found['weight']:g}, group {found['group']}"
    yield (
        1,
        f"it is there because {ORIGINS.get(found['origin'], found['origin'])} ({found['origin']})",
    )
    yield 1, f"rule: {found['rule']}"
    for key, value in found["answer"].items():
        yield 1, f"{key}: {_short(value)}"
    yield 1, f"feedback: {len(found['feedback'])}"
    for one in found["feedback"]:
        remark = f", remark {_short(one['comment'])}" if one["comment"] else ""
        named_ = f"{one['kind']} {one['name'] or ''}".strip()
        when = (one["occurred_at"] or one["recorded_at"])[:16]
        yield (
            2,
            f"{one['id']}  {named_} = {_short(one['value'])}, by "
            f"{one['rater_kind'] or 'nobody named'}, {when}{remark}",
        )
    yield 1, f"traces: {len(found['traces'])}"
    for one in found["traces"]:
        who = f", subject {visible(one['subject'])}" if one["subject"] else ""
        yield (
            2,
            f"{one['id']}  {one['source']} {visible(one['external_id'])}{who}, "
            f"{(one['occurred_at'] or 'no time')[:16]}",
        )
    if found["case"]:
        case = found["case"]
        yield (
            1,
            f"case {case['id']}  {case['basis']}, checker {case['checker']}, reference "
            f"{_short(case['reference'])}",
        )
    yield from _rewarded(found["rewards"])


def _rewarded(rewards: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    yield 1, f"rewards in the ledger: {len(rewards)}"
    for one in rewards:
        value = "no value" if one["value"] is None else f"{one['value']:g}"
        yield (
            2,
            f"{one['component']} {one['component_version']}: {value} ({one['status']}) for "
            f"{one['target_id']}",
        )


def _short(value: Any, most: int = 120) -> str:
    text = " ".join(visible(compact(value)).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def used_in(ws: Workspace, source: str, agent: str | None = None) -> dict[str, Any]:
    """Where a piece of feedback, a trace or a subject has ended up, as a JSON value; without
    `agent` it has to be an id of ours.

    Raises NotFound for what was never recorded, or was erased.
    """
    with ws.db.read() as connection:
        agent = agent or store.agent_slug(connection, source)
        if agent is None:
            raise NotFound(
                f"{source!r}",
                "no feedback or trace has that id here",
                "Name its agent with --agent, where it is not our own id",
            )
        agent_id = require_agent(ws, agent)
        wanted = source_and_feedback_ids(ws, connection, agent, source)
    holding = datasets_holding(ws, agent, wanted)
    with ws.db.read() as connection:
        found = descendants(ws, connection, agent_id, holding)
        runs = store.rows_by_id(connection, schema.runs, found.runs)
        names = named(connection, found, agent_id)
        datasets = [
            {
                "id": one,
                "shape": (store.dataset(connection, one) or {})["shape"],
                "rows": held_rows.rows,
                "counts": held_rows.counts,
            }
            for one, held_rows in holding.items()
        ]
    ran = [{key: run[key] for key in ("id", "algorithm", "dataset_id", "state")} for run in runs]
    named_ = {kind: names[kind] for kind in ("versions", "reward_models", "evaluations", "exports")}
    return {
        "source": source,
        "agent": agent,
        "sources": sorted(wanted),
        "datasets": datasets,
        "runs": ran,
        **named_,
    }
