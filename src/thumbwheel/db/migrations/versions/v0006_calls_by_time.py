"""Steps know the agent and the time of their trace, so that the calls of a model or a version are
found in the order in which traces are listed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Utc, text

revision = "tw0006"
down_revision = "tw0005"
branch_labels = None
depends_on = None

COLUMNS = ("requested_model", "served_model", "model_version_id")


def upgrade() -> None:
    """Apply."""
    op.add_column("steps", sa.Column("agent_id", text(40), nullable=True))
    op.add_column("steps", sa.Column("recorded_at", Utc(), nullable=True))
    op.execute(
        "UPDATE steps SET (agent_id, recorded_at) = "
        "(SELECT agent_id, recorded_at FROM traces WHERE traces.id = steps.trace_id)"
    )
    for column in COLUMNS:
        op.drop_index(op.f(f"ix_steps_{column}"), "steps")
    for column in COLUMNS:
        by_agent = [] if column == "model_version_id" else ["agent_id"]
        columns = [*by_agent, column, "recorded_at", "trace_id"]
        is_known = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            op.f(f"ix_steps_{'_'.join(columns)}"),
            "steps",
            columns,
            sqlite_where=is_known,
            postgresql_where=is_known,
        )
