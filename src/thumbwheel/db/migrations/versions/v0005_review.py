"""What rating queues keep: what is asked of whom, who has what, and what they did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0005"
down_revision = "tw0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "review_queues",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("name", text(63), nullable=False),
        sa.Column("config", Json(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("closed_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_review_queues_agent_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_queues")),
        sa.UniqueConstraint("agent_id", "name", name=op.f("uq_review_queues_agent_id_name")),
    )
    op.create_table(
        "review_items",
        sa.Column("id", text(40), nullable=False),
        sa.Column("queue_id", text(40), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("free", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["queue_id"], ["review_queues.id"], name=op.f("fk_review_items_queue_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_items")),
    )
    op.create_index(
        op.f("ix_review_items_queue_id_rank"),
        "review_items",
        ["queue_id", "rank"],
        sqlite_where=sa.text("free > 0"),
        postgresql_where=sa.text("free > 0"),
    )
    op.create_index(op.f("ix_review_items_queue_id_id"), "review_items", ["queue_id", "id"])
    op.create_table(
        "review_targets",
        sa.Column("item_id", text(40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("trace_id", text(40), nullable=True),
        sa.Column("case_id", text(40), nullable=True),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_targets_item_id")
        ),
        sa.ForeignKeyConstraint(
            ["trace_id"], ["traces.id"], name=op.f("fk_review_targets_trace_id")
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_review_targets_case_id")),
        sa.PrimaryKeyConstraint("item_id", "position", name=op.f("pk_review_targets")),
    )
    op.create_index(op.f("ix_review_targets_trace_id"), "review_targets", ["trace_id"])
    op.create_index(op.f("ix_review_targets_case_id"), "review_targets", ["case_id"])
    op.create_table(
        "review_raters",
        sa.Column("queue_id", text(40), nullable=False),
        sa.Column("rater", text(512), nullable=False),
        sa.Column("assigned", sa.Boolean(), nullable=False),
        sa.Column("frontier", sa.Integer(), nullable=False),
        sa.Column("rated", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["queue_id"], ["review_queues.id"], name=op.f("fk_review_raters_queue_id")
        ),
        sa.PrimaryKeyConstraint("queue_id", "rater", name=op.f("pk_review_raters")),
    )
    op.create_index(op.f("ix_review_raters_rater"), "review_raters", ["rater"])
    op.create_table(
        "review_assignments",
        sa.Column("item_id", text(40), nullable=False),
        sa.Column("rater", text(512), nullable=False),
        sa.Column("queue_id", text(40), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("shown", Json(), nullable=False),
        sa.Column("action", text(40), nullable=True),
        sa.Column("leased_until", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_assignments_item_id")
        ),
        sa.ForeignKeyConstraint(
            ["queue_id"], ["review_queues.id"], name=op.f("fk_review_assignments_queue_id")
        ),
        sa.PrimaryKeyConstraint("item_id", "rater", name=op.f("pk_review_assignments")),
    )
    op.create_index(
        op.f("ix_review_assignments_queue_id_rater_state"),
        "review_assignments",
        ["queue_id", "rater", "state"],
    )
    op.create_index(
        op.f("ix_review_assignments_queue_id_state_leased_until"),
        "review_assignments",
        ["queue_id", "state", "leased_until"],
    )
    op.create_table(
        "review_actions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("queue_id", text(40), nullable=False),
        sa.Column("item_id", text(40), nullable=False),
        sa.Column("rater", text(512), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.Column("feedback", Json(), nullable=False),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["queue_id"], ["review_queues.id"], name=op.f("fk_review_actions_queue_id")
        ),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name=op.f("fk_review_actions_item_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_actions")),
    )
    op.create_index(
        op.f("ix_review_actions_queue_id_rater_recorded_at"),
        "review_actions",
        ["queue_id", "rater", "recorded_at"],
    )
    op.create_index(op.f("ix_review_actions_item_id"), "review_actions", ["item_id"])
