"""What descends from data: datasets that hold it, and everything that was made with these, however
many steps away.

A dataset of rewards descends from the classifier that had a part in them. A run descends from its
dataset, from the judged answers by which it weighed raters, from the reward model or the classifier
that judged it, from the version that it started from, and from the export that was its base.
Versions and reward models descend from their run. This module changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import StorageError
from thumbwheel.core.home_paths import may_be
from thumbwheel.datasets.build import datasets
from thumbwheel.datasets.rewrite import AffectedRows, affected_rows
from thumbwheel.db import stored_rows
from thumbwheel.db.schema import evaluations, exports, model_versions, reward_models, runs
from thumbwheel.db.stored_rows import Record
from thumbwheel.db.workspace import Workspace
from thumbwheel.report.types import Tainted

LEARNED = "learned"
"""The reward function that judges by a classifier."""


def datasets_holding(
    ws: Workspace, agent: str, wanted: Collection[str], *, lost: bool = False
) -> dict[str, AffectedRows]:
    """Return dataset id -> its rows that refer to one of the ids `wanted`, for the agent's datasets
    that have any.

    Raises StorageError for a file that cannot be read; with `lost`, all rows of such a file count.
    """
    holding = {}
    for dataset in datasets(ws, agent):
        rows = affected_rows(ws, dataset, wanted)
        if rows.lost and not lost:
            raise StorageError(
                f"dataset {dataset.id!r}",
                f"its file of {next(iter(rows.lost))} is missing or damaged",
                "Restore it from a backup, or build it again",
            )
        if rows.counts:
            holding[dataset.id] = rows
    return holding


def reward_datasets(ws: Workspace, agent: str) -> set[str]:
    """Return the ids of the datasets whose rows carry rewards of the ledger."""
    return {dataset.id for dataset in datasets(ws, agent) if "reward" in dataset.manifest}


def descendants(
    ws: Workspace,
    connection: sa.Connection,
    agent_id: str,
    of: Collection[str],
    cases: Collection[str] = (),
    classifier: bool = False,
    modelled: Collection[str] = (),
) -> Tainted:
    """Return everything that descends from the datasets `of` of the agent.

    `classifier`: also runs that its classifier judged. `modelled`: datasets of rewards in which its
    reward models had a part. `cases`: also evaluations that show one of these. Other agents are
    included, since they may have trained over an export of this one.
    """
    tainted = Tainted(datasets=set(of))
    family = _Family.read(ws, connection)
    own_reward_models = {
        model["id"] for model in family.reward_models if model["agent_id"] == agent_id
    }
    size = -1
    while tainted.size() > size:  # until nothing is added
        size = tainted.size()
        if tainted.reward_models & own_reward_models:
            tainted.datasets |= set(modelled)
        if classifier:
            tainted.runs |= {
                run["id"]
                for run in family.runs
                if run["agent_id"] == agent_id and _uses_classifier(run)
            }
        _add_children(tainted, family)

    for evaluation in family.evaluations:
        compared = {evaluation["candidate_id"], evaluation["against_id"]}
        if compared & tainted.versions or not _shown_cases(evaluation).isdisjoint(cases):
            tainted.evaluations.add(evaluation["id"])
            tainted.shown.add(evaluation["candidate_id"])
    tainted.shown -= tainted.versions
    return tainted


def _add_children(tainted: Tainted, family: _Family) -> None:
    """Add everything made from a tainted item."""
    tainted_names = {
        (version["agent_id"], f"v{version['number']}")
        for version in family.versions
        if version["id"] in tainted.versions
    }
    for run in family.runs:
        if (
            run["dataset_id"] in tainted.datasets
            or family.judged_dataset_of[run["id"]] in tainted.datasets
            or family.judge_of_run[run["id"]] in tainted.reward_models
            or (run["agent_id"], run["config"].get("continue_from")) in tainted_names
            or family.base_export_of[run["id"]] in tainted.exports
        ):
            tainted.runs.add(run["id"])
    for model in family.reward_models:
        if model["run_id"] in tainted.runs:
            tainted.reward_models.add(model["id"])
    for version in family.versions:
        over_export = family.base_export_of[version["id"]] in tainted.exports
        if version["run_id"] in tainted.runs or over_export:
            tainted.versions.add(version["id"])
    for export in family.exports:
        if export["version_id"] in tainted.versions:
            tainted.exports.add(export["id"])


@dataclass(frozen=True)
class _Family:
    """The rows of the home that may descend from one another."""

    runs: list[Record]
    versions: list[Record]
    reward_models: list[Record]
    exports: list[Record]
    evaluations: list[Record]
    judge_of_run: dict[str, str | None]
    """Run -> the reward model that judged it."""
    judged_dataset_of: dict[str, str | None]
    """Run -> the dataset of the judged answers by which it weighed raters."""
    base_export_of: dict[str, str | None]
    """Run or version -> the export that was its base."""

    @classmethod
    def read(cls, ws: Workspace, connection: sa.Connection) -> _Family:
        all_runs = stored_rows.rows_of_agent(connection, runs, None)
        all_versions = stored_rows.rows_of_agent(connection, model_versions, None)
        all_reward_models = stored_rows.rows_of_agent(connection, reward_models, None)
        all_exports = stored_rows.rows_of_agent(connection, exports, None)
        return cls(
            all_runs,
            all_versions,
            all_reward_models,
            all_exports,
            stored_rows.rows_of_agent(connection, evaluations, None),
            {run["id"]: judge_of(ws, run, all_reward_models) for run in all_runs},
            {run["id"]: _learned_from(ws, run).get("judged_dataset") for run in all_runs},
            _base_exports([*all_runs, *all_versions], all_exports),
        )


def _base_exports(
    rows: Collection[Record], all_exports: Collection[Record]
) -> dict[str, str | None]:
    """Return run or version -> the export that is its base: the newest one in that folder at the
    time."""
    exports_of: dict[str, list[Record]] = {}
    for base in {row["base"] for row in rows}:
        exports_of[base] = [export for export in all_exports if may_be(export["path"], base)]
    base_exports: dict[str, str | None] = {}
    for row in rows:
        base_exports[row["id"]] = None
        for export in exports_of[row["base"]]:
            if export["recorded_at"] <= row["recorded_at"]:
                base_exports[row["id"]] = str(export["id"])
    return base_exports


def _uses_classifier(run: Record) -> bool:
    functions = run["config"].get("reward_functions") or ()
    return any(str(function).split("=")[0] == LEARNED for function in functions)


def _shown_cases(evaluation: Record) -> set[str | None]:
    """Return the cases whose answers an evaluation shows."""
    results = evaluation["results"]
    examples = list(results.get("examples", ()))
    for suite in results.get("suites", ()):
        for details in suite["details"].values():
            if isinstance(details, dict):
                examples += details.get("error_examples", ())
    return {example.get("case") for example in examples}


def judge_of(ws: Workspace, run: Record, models: Collection[Record]) -> str | None:
    """Return the id of the reward model among `models` against which a run trained; None without
    one, or if it is a folder from elsewhere."""
    name = run["config"].get("reward_model")
    if name is None:
        return None
    # The run read a checkout of the reward model, whose folder has the model's id as its name.
    checkout = Path(str(_learned_from(ws, run).get("reward_model") or "")).name
    for model in reversed(list(models)):
        names = (model["id"], f"rm{model['number']}", str(model["number"]))
        named = model["agent_id"] == run["agent_id"] and name in names
        if model["id"] == checkout or named:
            return str(model["id"])
    return None


def _learned_from(ws: Workspace, run: Record) -> Mapping[str, Any]:
    """Return what a run learned from beside its dataset: by its row, or of a run that was begun
    before rows said so, by the spec in its folder."""
    if run["learned_from"] is not None:
        learned_from: Mapping[str, Any] = run["learned_from"]
        return learned_from
    run_id = run["id"]
    try:
        spec = json.loads((ws.home.runs / run_id / "spec.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return spec if isinstance(spec, dict) else {}
