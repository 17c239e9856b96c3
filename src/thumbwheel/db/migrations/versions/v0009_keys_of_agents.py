"""The agent that a request with an idempotency key is about, so that an erasure ends its keys and
no others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import text

revision = "tw0009"
down_revision = "tw0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("request_keys", sa.Column("agent", text(63), nullable=True))
