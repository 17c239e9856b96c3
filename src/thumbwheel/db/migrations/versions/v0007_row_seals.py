"""Seals of the rows that verdicts of experiments are made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import text

revision = "tw0007"
down_revision = "tw0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("exposures", sa.Column("seal", text(64), nullable=True))
    op.add_column("exposed_calls", sa.Column("seal", text(64), nullable=True))
