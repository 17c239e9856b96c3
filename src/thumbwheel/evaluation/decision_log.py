"""The decisions of the gate about an agent's versions, in the order in which they were made."""

from __future__ import annotations

from typing import Any

from thumbwheel.core.errors import NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.models.types import Agent


def decisions_after(
    ws: Workspace, agent: Agent, after: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the next decisions after the one with the id `after`, oldest first: id, version,
    decision, reasons and time. Raises NotFound if the agent has no decision `after`."""
    with ws.db.read() as connection:
        if after is not None and not store.is_decision(connection, agent.id, after):
            raise NotFound(
                f"decision {after!r}",
                f"agent {agent.slug!r} has no such decision",
                "Leave the id out to start with the first one",
            )
        return store.decisions_after(connection, agent.id, after, limit)
