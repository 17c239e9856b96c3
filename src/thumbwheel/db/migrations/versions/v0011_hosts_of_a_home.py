"""A home may have many hosts: their sealed keys, what they count together, and the jobs,
runs and deployments of one of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Utc, text

revision = "tw0011"
down_revision = "tw0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("jobs", sa.Column("folder", text(), nullable=True))
    op.add_column("runs", sa.Column("folder", text(), nullable=True))
    op.add_column("deployments", sa.Column("folder", text(), nullable=True))
    op.create_table(
        "cluster_keys",
        sa.Column("name", text(), primary_key=True),
        sa.Column("sealed", text(), nullable=False),
        sa.Column("recorded_at", Utc, nullable=False),
    )
    op.create_table(
        "day_counts",
        sa.Column("day", text(10), primary_key=True),
        sa.Column("name", text(), primary_key=True),
        sa.Column("amount", sa.Double, nullable=False),
    )
    op.create_table(
        "call_windows",
        sa.Column("name", text(), primary_key=True),
        sa.Column("minute", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer, nullable=False),
    )
