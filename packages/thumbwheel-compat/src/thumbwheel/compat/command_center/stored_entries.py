"""Entries of runs that were imported into a home, as the file of a run has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.capture import trace_queries
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import agents

SOURCE = "widgets"
OF_ENTRY = (
    "question",
    "question_id",
    "scenario",
    "fixture",
    "size",
    "category",
    "natural",
    "forced",
    "widget_index",
)


def stored_entries(
    ws: Workspace, ratings: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return entry id -> the entry that ratings are about: the one of the run that a rating names,
    else of the newest run of any agent that has it."""
    runs = {str(rating["entry_id"]): rating.get("run_id") for rating in ratings}
    rows = []
    with ws.db.read() as connection:
        for agent in agents(ws):
            rows += trace_queries.by_metadata(connection, agent.id, SOURCE, "entry_id", list(runs))
    rows.sort(key=lambda row: (row["recorded_at"], row["id"]), reverse=True)
    entries: dict[str, dict[str, Any]] = {}
    for row in rows:
        about = row["metadata"]
        entry_id = str(about["entry_id"])
        if runs[entry_id] in (None, about.get("run_id")):
            entries.setdefault(entry_id, _entry(about))
    return entries


def _entry(about: Mapping[str, Any]) -> dict[str, Any]:
    entry = {name: about[name] for name in OF_ENTRY if name in about}
    if "data" in about:
        entry["data_override"] = about["data"]
    if "intent" in about:
        entry["pipeline_meta"] = {"intent": about["intent"]}
    return entry
