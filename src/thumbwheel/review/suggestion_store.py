"""SQL of suggested labels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import (
    suggestions,
)


def suggested(connection: sa.Connection, agent_id: str) -> list[sa.RowMapping]:
    """Return every suggestion, in the order of review."""
    query = sa.select(suggestions).where(suggestions.c.agent_id == agent_id)
    return list(connection.execute(query.order_by(suggestions.c.rank, suggestions.c.id)).mappings())


def suggest(
    connection: sa.Connection, agent_id: str, classifier: str, fresh: Sequence[dict[str, Any]]
) -> None:
    """Add suggestions of a classifier; open ones of other classifiers are replaced."""
    old = (
        suggestions.c.agent_id == agent_id,
        suggestions.c.classifier != classifier,
        suggestions.c.state == "open",
    )
    connection.execute(suggestions.update().where(*old).values(state="replaced"))
    if fresh:
        connection.execute(suggestions.insert(), fresh)


def decide(
    connection: sa.Connection,
    suggestion_id: str,
    state: str,
    feedback_id: str | None,
    now: datetime,
) -> None:
    """Store the state of a suggestion, its feedback and the time of review."""
    values = {"state": state, "feedback_id": feedback_id, "reviewed_at": now}
    connection.execute(
        suggestions.update().where(suggestions.c.id == suggestion_id).values(**values)
    )
