"""Who vouches for a trace (the gateway's seal), and who sent a statement, beside who made it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import text

revision = "tw0008"
down_revision = "tw0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("traces", sa.Column("seal", text(64), nullable=True))
    op.add_column("feedback", sa.Column("sender", text(), nullable=True))
