"""Where the blobs of a home are, and what a bucket has of runs and bases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Id, Json, Utc, text

revision = "tw0013"
down_revision = "tw0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("homes", sa.Column("blobs", text(), nullable=True))
    fence = sa.Column("fence", sa.Integer, nullable=False, server_default=sa.text("0"))
    op.add_column("runs", fence)
    op.create_table(
        "run_checkpoints",
        sa.Column("run_id", Id, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("files", Json, nullable=False),
        sa.Column("recorded_at", Utc, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "fence", "step", name=op.f("pk_run_checkpoints")),
    )
    op.create_table(
        "stored_bases",
        sa.Column("fingerprint", text(64), primary_key=True),
        sa.Column("name", text(), nullable=False),
        sa.Column("files", Json, nullable=False),
        sa.Column("recorded_at", Utc, nullable=False),
    )
