"""What descends from data: datasets that hold it, and everything that was made with these, however
many steps away.

A dataset of the ledger's rewards descends from the classifier that had a part in them. A run
descends from its dataset, from the reward model or the classifier that judged it, from the version
that it started from and from the export that it took for its base; a version and a reward model
from their run. Nothing is changed here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import StorageError
from thumbwheel.datasets.build import datasets
from thumbwheel.datasets.rewrite import AffectedRows, affected_rows
from thumbwheel.db.schema import evaluations, exports, model_versions, reward_models, runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop import store
from thumbwheel.loop.types import Record, Tainted

LEARNED = "learned"
"""The reward function that judges by a classifier."""


def datasets_holding(
    ws: Workspace, agent: str, wanted: Collection[str], *, lost: bool = False
) -> dict[str, AffectedRows]:
    """Dataset id -> its rows that name one of the ids `wanted`, for the datasets of the agent that
    have any.

    Raises StorageError for a file that cannot be read; with `lost` such a file may hold them.
    """
    found = {one.id: affected_rows(ws, one, wanted) for one in datasets(ws, agent)}
    if not lost and (
        unread := [(name, split) for name, rows in found.items() for split in rows.lost]
    ):
        name, split = unread[0]
        raise StorageError(
            f"dataset {name!r}",
            f"its file of {split} is missing or damaged",
            "Restore it from a backup, or build it anew",
        )
    return {dataset_id: rows for dataset_id, rows in found.items() if rows.counts}


def reward_datasets(ws: Workspace, agent: str) -> set[str]:
    """Datasets of the ledger's rewards: what judges for the ledger has a part in them."""
    return {one.id for one in datasets(ws, agent) if "reward" in one.manifest}


def descendants(
    ws: Workspace,
    connection: sa.Connection,
    agent_id: str,
    of: Collection[str],
    cases: Collection[str] = (),
    classifier: bool = False,
    modelled: Collection[str] = (),
) -> Tainted:
    """Everything that was made with the datasets `of` of the agent, or judged by a `classifier` of
    it in training; `modelled` are datasets of rewards in which its reward models had a part.
    Evaluations also where they show one of `cases`. Other agents may have trained over an export of
    this one."""
    found, rows = Tainted(datasets=set(of)), store.rows_of_agent(connection, runs, None)
    made = {
        table: store.rows_of_agent(connection, table, None)
        for table in (model_versions, reward_models, exports, evaluations)
    }
    judges = {row["id"]: judge_of(ws, row, made[reward_models]) for row in rows}
    folders = [(str(Path(one["path"]).resolve()), one) for one in made[exports]]
    own = {row["id"] for row in made[reward_models] if row["agent_id"] == agent_id}
    over = {row["id"]: _export_below(row, folders) for row in [*rows, *made[model_versions]]}
    before = -1
    while found.size() > before:
        before = found.size()
        names = {
            (row["agent_id"], f"v{row['number']}")
            for row in made[model_versions]
            if row["id"] in found.versions
        }
        if found.reward_models & own:
            found.datasets |= set(modelled)
        found.runs |= {
            row["id"]
            for row in rows
            if row["dataset_id"] in found.datasets
            or judges[row["id"]] in found.reward_models
            or (classifier and row["agent_id"] == agent_id and LEARNED in _functions(row))
            or (row["agent_id"], row["config"].get("continue_from")) in names
            or over[row["id"]] in found.exports
        }
        found.reward_models |= {
            row["id"] for row in made[reward_models] if row["run_id"] in found.runs
        }
        found.versions |= {
            row["id"]
            for row in made[model_versions]
            if row["run_id"] in found.runs or over[row["id"]] in found.exports
        }
        found.exports |= {row["id"] for row in made[exports] if row["version_id"] in found.versions}
    looked = [row for row in made[evaluations] if _looked(row, found.versions, cases)]
    found.evaluations = {row["id"] for row in looked}
    found.shown = {row["candidate_id"] for row in looked} - found.versions
    return found


def _export_below(row: Record, folders: Collection[tuple[str, Record]]) -> str | None:
    """The id of the export that a run or a version took for its base: the newest one of that folder
    then."""
    there = [
        one
        for folder, one in folders
        if folder == row["base"] and one["recorded_at"] <= row["recorded_at"]
    ]
    return str(there[-1]["id"]) if there else None


def _functions(run: Record) -> set[str]:
    return {str(one).split("=")[0] for one in run["config"].get("reward_functions") or ()}


def _looked(row: Record, versions: Collection[str], cases: Collection[str]) -> bool:
    details = [
        side
        for one in row["results"].get("suites", ())
        for side in one["details"].values()
        if isinstance(side, dict)
    ]
    errors = [example for side in details for example in side.get("error_examples", ())]
    shown = {example.get("case") for example in [*row["results"].get("examples", ()), *errors]}
    return (
        row["candidate_id"] in versions
        or row["against_id"] in versions
        or not shown.isdisjoint(cases)
    )


def judge_of(ws: Workspace, run: Record, known: Collection[Record]) -> str | None:
    """The id of the reward model among `known` against which a run trained; None without one, or
    for a folder of somebody else."""
    named = run["config"].get("reward_model")
    if named is None:
        return None
    told = Path(
        str(_spec(ws, run["id"]).get("reward_model") or "")
    ).name  # the folder of its checkout has its id
    for one in reversed(list(known)):
        if one["id"] == told or (
            one["agent_id"] == run["agent_id"]
            and named in (one["id"], f"rm{one['number']}", str(one["number"]))
        ):
            return str(one["id"])
    return None


def _spec(ws: Workspace, run_id: str) -> Mapping[str, Any]:
    try:
        found = json.loads((ws.home.runs / run_id / "spec.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
