"""SQL of named prompts, and of the traces whose prompts are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.trace_types import REPLAY_SOURCE
from thumbwheel.db.schema import prompt_names, traces


def named(connection: sa.Connection, agent_id: str) -> Sequence[sa.RowMapping]:
    """Return the named prompts of an agent, oldest first."""
    query = (
        sa.select(prompt_names)
        .where(prompt_names.c.agent_id == agent_id)
        .order_by(prompt_names.c.recorded_at, prompt_names.c.hash)
    )
    return connection.execute(query).mappings().all()


def store(connection: sa.Connection, agent_id: str, values: Mapping[str, Any]) -> None:
    """Store a prompt, in place of an earlier row about the same text. A row that keeps its name
    keeps its place among the versions of that name."""
    same = (prompt_names.c.agent_id == agent_id) & (prompt_names.c.hash == values["hash"])
    earlier = connection.execute(sa.select(prompt_names).where(same)).mappings().first()
    recorded_at = datetime.now(UTC)
    if earlier is not None:
        connection.execute(prompt_names.delete().where(same))
        if earlier["name"] == values["name"]:
            recorded_at = earlier["recorded_at"]
    row = {**values, "agent_id": agent_id, "recorded_at": recorded_at}
    connection.execute(prompt_names.insert().values(**row))


def newest_traces(connection: sa.Connection, agent_id: str, limit: int) -> Sequence[Any]:
    """Return (id, input_id, occurred_at, recorded_at) of the newest traces of an agent, without
    those of replays."""
    query = (
        sa.select(traces.c.id, traces.c.input_id, traces.c.occurred_at, traces.c.recorded_at)
        .where(traces.c.agent_id == agent_id, traces.c.source != REPLAY_SOURCE)
        .order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
        .limit(limit)
    )
    return connection.execute(query).all()
