"""The commands that train tainted versions and reward models anew: from the base, on the feedback
that is left."""

from __future__ import annotations

import shlex

import sqlalchemy as sa

from thumbwheel.core.home_paths import may_be
from thumbwheel.db import schema, stored_rows
from thumbwheel.db.stored_rows import Record
from thumbwheel.report.report import changed, option
from thumbwheel.report.types import Tainted
from thumbwheel.training.algorithms import ALGORITHMS

DROPPED = ("continue_from",)
"""Settings that would start from a tainted version."""


def retrain(connection: sa.Connection, tainted: Tainted) -> list[str]:
    """Return the commands that train and evaluate the tainted runs again.

    Reward models come first, since other runs learn from them. Runs with the same settings give one
    command. A run over a tainted export is repeated over the base of that export.
    """
    runs = [
        run
        for run in stored_rows.rows_by_id(connection, schema.runs, tainted.runs)
        if run["state"] == "finished"
    ]
    reward_methods = {
        name for name in ALGORITHMS.names() if ALGORITHMS.get(name).produces_reward_model
    }
    runs.sort(key=lambda run: (run["algorithm"] not in reward_methods, run["recorded_at"]))
    agents = sa.select(schema.agents.c.id, schema.agents.c.slug)
    name_of = dict(connection.execute(agents).tuples().all())
    bases_of_exports: list[tuple[str, str]] = []
    for export in stored_rows.rows_by_id(connection, schema.exports, tainted.exports):
        version = (
            stored_rows.row_by_id(connection, schema.model_versions, export["version_id"]) or {}
        )
        if version.get("base"):
            bases_of_exports.append((export["path"], version["base"]))

    commands: dict[str, None] = {}
    evaluated: dict[str, None] = {}
    for run in runs:
        agent = name_of[run["agent_id"]]
        base = run["base"]
        for path, base_of_export in bases_of_exports:
            if may_be(path, run["base"]):
                base = base_of_export
        commands[_train_command(agent, run, base)] = None
        if run["algorithm"] not in reward_methods:
            evaluated[agent] = None
    for agent in evaluated:
        commands[shlex.join(["thumbwheel", "evaluate", "latest", "--agent", agent])] = None
    return list(commands)


def _train_command(agent: str, run: Record, base: str) -> str:
    settings = {
        key: value
        for key, value in changed(run["algorithm"], run["config"]).items()
        if key not in DROPPED
    }
    if settings.get("reward_model") is not None:
        settings["reward_model"] = "latest"
    words = ["thumbwheel", "train", run["algorithm"], "--agent", agent, "--base", base]
    for key, value in settings.items():
        words += option(key, value)
    return shlex.join(words)
