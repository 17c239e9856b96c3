"""What to do about tainted versions and reward models: commands that make them anew from the base, from the feedback that is left."""

from __future__ import annotations

import shlex

import sqlalchemy as sa

from thumbwheel.db import schema
from thumbwheel.loop import store
from thumbwheel.loop.report import changed, option
from thumbwheel.loop.types import Record, Tainted

DROPPED = ("continue_from",)
"""Settings that would start from what is tainted."""


def retrain(connection: sa.Connection, agent: str, tainted: Tainted) -> list[str]:
    """Commands in order: reward models first, for others learn from them; of several runs with the same settings, one."""
    rows = [row for row_id in sorted(tainted.runs) if (row := store.one(connection, schema.runs, row_id)) and row["state"] == "finished"]
    rows.sort(key=lambda row: (row["algorithm"] != "reward", row["recorded_at"]))
    trained = list(dict.fromkeys(_train(agent, row) for row in rows))
    judged = [row for row in rows if row["algorithm"] != "reward"]
    return [*trained, *([shlex.join(["thumbwheel", "evaluate", "latest", "--agent", agent])] if judged else [])]


def _train(agent: str, run: Record) -> str:
    settings = {key: value for key, value in changed(run["algorithm"], run["config"]).items() if key not in DROPPED}
    if settings.get("reward_model") is not None:
        settings["reward_model"] = "latest"
    options = [part for key, value in settings.items() for part in option(key, value)]
    return shlex.join(["thumbwheel", "train", run["algorithm"], "--agent", agent, "--base", run["base"], *options])
