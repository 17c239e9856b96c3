"""What the online half keeps: which home a database belongs to, what is known of a recorded call
(first token, whether the answer is whole, why it failed, why this model, its cost), spans that wait
for their run, an index for lists of traces, and up to where servers of others were read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0002"
down_revision = "tw0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "homes",
        sa.Column("id", text(40), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_homes")),
    )
    op.add_column("steps", sa.Column("cached_tokens", sa.Integer(), nullable=True))
    op.add_column("steps", sa.Column("reasoning_tokens", sa.Integer(), nullable=True))
    op.add_column("steps", sa.Column("first_token_at", Utc(), nullable=True))
    op.add_column("steps", sa.Column("complete", sa.Boolean(), nullable=True))
    op.add_column("steps", sa.Column("error", text(), nullable=True))
    op.add_column("steps", sa.Column("routing", Json(), nullable=True))
    op.add_column("steps", sa.Column("cost", sa.Float(), nullable=True))
    op.create_table(
        "waiting_spans",
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("trace_id", text(32), nullable=False),
        sa.Column("span_id", text(16), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_waiting_spans_agent_id")
        ),
        sa.PrimaryKeyConstraint("agent_id", "trace_id", "span_id", name=op.f("pk_waiting_spans")),
    )
    op.create_index(
        op.f("ix_traces_agent_id_recorded_at_id"), "traces", ["agent_id", "recorded_at", "id"]
    )
    op.create_table(
        "source_positions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("server", text(), nullable=False),
        sa.Column("position", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_source_positions_agent_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source_positions")),
    )
