"""What experiments on live traffic keep: arms and settings, the shares over time, who was exposed
to what, the calls that followed, what happened, and signed verdicts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0004"
down_revision = "tw0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "experiments",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("alias", text(63), nullable=False),
        sa.Column("plan", Json(), nullable=False),
        sa.Column("salt", text(64), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("collected", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_experiments_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
    )
    op.create_table(
        "strata",
        sa.Column("experiment_id", text(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("shares", Json(), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_strata_experiment_id")
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", name=op.f("pk_strata")),
    )
    op.create_table(
        "exposures",
        sa.Column("experiment_id", text(40), nullable=False),
        sa.Column("unit", text(64), nullable=False),
        sa.Column("arm", text(63), nullable=False),
        sa.Column("stratum", sa.Integer(), nullable=False),
        sa.Column("shares", Json(), nullable=False),
        sa.Column("trace_id", text(40), nullable=False),
        sa.Column("exposed_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_exposures_experiment_id")
        ),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_exposures_trace_id")),
        sa.PrimaryKeyConstraint("experiment_id", "unit", name=op.f("pk_exposures")),
    )
    op.create_index(op.f("ix_exposures_trace_id"), "exposures", ["trace_id"])
    op.create_table(
        "exposed_calls",
        sa.Column("trace_id", text(40), nullable=False),
        sa.Column("experiment_id", text(40), nullable=False),
        sa.Column("unit", text(64), nullable=True),
        sa.Column("arm", text(63), nullable=True),
        sa.Column("assigned", text(63), nullable=True),
        sa.Column("stratum", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("cost", sa.Float(), nullable=True),
        sa.Column("occurred_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_exposed_calls_experiment_id")
        ),
        sa.ForeignKeyConstraint(
            ["trace_id"], ["traces.id"], name=op.f("fk_exposed_calls_trace_id")
        ),
        sa.PrimaryKeyConstraint("trace_id", name=op.f("pk_exposed_calls")),
    )
    op.create_index(
        op.f("ix_exposed_calls_experiment_id_unit"), "exposed_calls", ["experiment_id", "unit"]
    )
    op.create_table(
        "experiment_events",
        sa.Column("experiment_id", text(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", text(32), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_experiment_events_experiment_id")
        ),
        sa.PrimaryKeyConstraint("experiment_id", "number", name=op.f("pk_experiment_events")),
    )
    op.create_table(
        "traffic_verdicts",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("experiment_id", text(40), nullable=False),
        sa.Column("verdict", text(16), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.Column("signature", text(64), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_traffic_verdicts_agent_id")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_traffic_verdicts_version_id")
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_traffic_verdicts_experiment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traffic_verdicts")),
    )
