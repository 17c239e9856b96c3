"""Hosts record what they run, workers which jobs they leave to others, and jobs have parts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json

revision = "tw0015"
down_revision = "tw0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("hosts", sa.Column("software", Json, nullable=True))
    op.add_column("workers", sa.Column("lacks", Json, nullable=True))
