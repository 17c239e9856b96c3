"""People write notes about runs, and name the system prompts of an agent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Id, Json, Utc, text

revision = "tw0014"
down_revision = "tw0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "run_notes",
        sa.Column("run_id", Id, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("note", text(), nullable=False),
        sa.Column("tags", Json, nullable=False),
        sa.Column("recorded_at", Utc, nullable=False),
    )
    op.create_table(
        "prompt_names",
        sa.Column("agent_id", Id, sa.ForeignKey("agents.id"), primary_key=True),
        sa.Column("hash", Id, primary_key=True),
        sa.Column("name", text(), nullable=False),
        sa.Column("text", text(), nullable=False),
        sa.Column("note", text(), nullable=False),
        sa.Column("recorded_at", Utc, nullable=False),
    )
