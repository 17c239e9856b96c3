"""What to do about tainted versions and reward models: commands that make them anew from the base,
from the feedback that is left."""

from __future__ import annotations

import shlex
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.db import schema
from thumbwheel.loop import store
from thumbwheel.loop.report import changed, option
from thumbwheel.loop.types import Record, Tainted

DROPPED = ("continue_from",)
"""Settings that would start from what is tainted."""


def retrain(connection: sa.Connection, tainted: Tainted) -> list[str]:
    """Commands in order: reward models first, for others learn from them; of several runs with the
    same settings, one. What was trained over a tainted export is trained over the base of that."""
    rows = [
        row
        for row_id in sorted(tainted.runs)
        if (row := store.one(connection, schema.runs, row_id)) and row["state"] == "finished"
    ]
    rows.sort(key=lambda row: (row["algorithm"] != "reward", row["recorded_at"]))
    names = dict(
        connection.execute(sa.select(schema.agents.c.id, schema.agents.c.slug)).tuples().all()
    )
    exported = {
        str(Path(one["path"]).resolve()): one
        for one in store.rows_by_id(connection, schema.exports, tainted.exports)
    }
    below = {
        path: (store.version(connection, one["version_id"]) or {}).get("base")
        for path, one in exported.items()
    }
    trained = list(
        dict.fromkeys(
            _train(names[row["agent_id"]], {**row, "base": below.get(row["base"]) or row["base"]})
            for row in rows
        )
    )
    judged = list(
        dict.fromkeys(names[row["agent_id"]] for row in rows if row["algorithm"] != "reward")
    )
    return [
        *trained,
        *(shlex.join(["thumbwheel", "evaluate", "latest", "--agent", one]) for one in judged),
    ]


def _train(agent: str, run: Record) -> str:
    settings = {
        key: value
        for key, value in changed(run["algorithm"], run["config"]).items()
        if key not in DROPPED
    }
    if settings.get("reward_model") is not None:
        settings["reward_model"] = "latest"
    options = [part for key, value in settings.items() for part in option(key, value)]
    return shlex.join(
        ["thumbwheel", "train", run["algorithm"], "--agent", agent, "--base", run["base"], *options]
    )
