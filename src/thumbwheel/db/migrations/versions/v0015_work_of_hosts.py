"""Hosts record what they run, workers which jobs they leave to others, and jobs have parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Id, Json, Utc, text

revision = "tw0015"
down_revision = "tw0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("hosts", sa.Column("software", Json, nullable=True))
    op.add_column("workers", sa.Column("lacks", Json, nullable=True))
    op.create_table(
        "job_parts",
        sa.Column("job_id", Id, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("key", text(64), nullable=False),
        sa.Column("kind", text(64), nullable=False),
        sa.Column("spec", Json, nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("worker_id", Id, nullable=True),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("unfit", Json, nullable=False),
        sa.Column("result", Json, nullable=True),
        sa.Column("recorded_at", Utc, nullable=False),
    )
    op.create_index("ix_job_parts_state", "job_parts", ["state"])
