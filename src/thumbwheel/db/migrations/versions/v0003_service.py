"""What the service keeps: jobs with their events, the workers that do them, and schedules; keys,
users, their roles and sessions, and the audit log. What the loop keeps: turns, checks, decisions
that wait, quarantines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0003"
down_revision = "tw0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    _jobs()
    _access()
    _conversations()
    _loops()
    _quarantines()
    _requests()
    _lists()


def _requests() -> None:
    op.create_table(
        "request_keys",
        sa.Column("key", text(64), nullable=False),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.Column("answer", Json(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_request_keys")),
    )
    op.create_index(op.f("ix_request_keys_recorded_at"), "request_keys", ["recorded_at"])


def _lists() -> None:
    """Create indexes for lists of traces by any filter, in homes with millions of traces."""
    op.create_index(
        op.f("ix_traces_agent_id_status_recorded_at_id"),
        "traces",
        ["agent_id", "status", "recorded_at", "id"],
    )
    op.create_index(
        op.f("ix_traces_subject_id_recorded_at_id"), "traces", ["subject_id", "recorded_at", "id"]
    )
    op.create_index(op.f("ix_sessions_external_id"), "sessions", ["external_id"])
    op.create_index(op.f("ix_subjects_external_id"), "subjects", ["external_id"])
    op.create_index(op.f("ix_steps_requested_model"), "steps", ["requested_model"])
    op.create_index(op.f("ix_steps_served_model"), "steps", ["served_model"])
    op.create_index(op.f("ix_steps_model_version_id"), "steps", ["model_version_id"])
    for table, column in (
        ("feedback", "supersedes"),
        ("feedback", "retracts"),
        ("traces", "parent_id"),
    ):
        condition = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            op.f(f"ix_{table}_{column}"),
            table,
            [column],
            sqlite_where=condition,
            postgresql_where=condition,
        )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent", text(63), nullable=True),
        sa.Column("kind", text(64), nullable=False),
        sa.Column("spec", Json(), nullable=False),
        sa.Column("key", text(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("parent_id", text(40), nullable=True),
        sa.Column("schedule_id", text(40), nullable=True),
        sa.Column("asked_by", text(), nullable=True),
        sa.Column("state", text(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("worker_id", text(40), nullable=True),
        sa.Column("notes", Json(), nullable=False),
        sa.Column("progress", Json(), nullable=True),
        sa.Column("result", Json(), nullable=True),
        sa.Column("error", Json(), nullable=True),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("started_at", Utc(), nullable=True),
        sa.Column("progressed_at", Utc(), nullable=True),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["parent_id"], ["jobs.id"], name=op.f("fk_jobs_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("key", name=op.f("uq_jobs_key")),
    )
    op.create_index(op.f("ix_jobs_state_priority"), "jobs", ["state", "priority"])
    op.create_index(op.f("ix_jobs_recorded_at_id"), "jobs", ["recorded_at", "id"])
    op.create_table(
        "job_events",
        sa.Column("job_id", text(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_events")),
    )
    op.create_table(
        "workers",
        sa.Column("id", text(40), nullable=False),
        sa.Column("host", text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.BigInteger(), nullable=False),
        sa.Column("settings", text(64), nullable=False),
        sa.Column("beat", sa.Integer(), nullable=False),
        sa.Column("beaten_at", Utc(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "schedules",
        sa.Column("id", text(40), nullable=False),
        sa.Column("name", text(63), nullable=False),
        sa.Column("agent", text(63), nullable=True),
        sa.Column("kind", text(64), nullable=False),
        sa.Column("spec", Json(), nullable=False),
        sa.Column("cron", text(), nullable=False),
        sa.Column("timezone", text(64), nullable=False),
        sa.Column("missed", text(16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("asked_by", text(), nullable=True),
        sa.Column("next_at", Utc(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )


def _access() -> None:
    op.create_table(
        "users",
        sa.Column("id", text(40), nullable=False),
        sa.Column("name", text(120), nullable=False),
        sa.Column("password", text(), nullable=True),
        sa.Column("issuer", text(), nullable=True),
        sa.Column("external_id", text(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("issuer", "external_id", name=op.f("uq_users_issuer_external_id")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "user_roles",
        sa.Column("user_id", text(40), nullable=False),
        sa.Column("agent", text(63), nullable=False),
        sa.Column("role", text(16), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_user_roles_user_id")),
        sa.PrimaryKeyConstraint("user_id", "agent", name=op.f("pk_user_roles")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", text(40), nullable=False),
        sa.Column("name", text(63), nullable=False),
        sa.Column("user_id", text(40), nullable=True),
        sa.Column("prefix", text(16), nullable=False),
        sa.Column("mac", text(64), nullable=False),
        sa.Column("grants", Json(), nullable=False),
        sa.Column("expires_at", Utc(), nullable=True),
        sa.Column("used_at", Utc(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("mac", name=op.f("uq_api_keys_mac")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
    )
    op.create_table(
        "login_sessions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("user_id", text(40), nullable=True),
        sa.Column("mac", text(64), nullable=False),
        sa.Column("expires_at", Utc(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_login_sessions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_sessions")),
        sa.UniqueConstraint("mac", name=op.f("uq_login_sessions_mac")),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("actor", text(40), nullable=False),
        sa.Column("action", text(120), nullable=False),
        sa.Column("agent", text(63), nullable=True),
        sa.Column("content", Json(), nullable=False),
        sa.Column("mac", text(64), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )


def _conversations() -> None:
    op.create_index(op.f("ix_messages_parent_id"), "messages", ["parent_id"])
    op.create_index(op.f("ix_traces_session_id"), "traces", ["session_id"])


def _agent(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("agent_id", text(40), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f(f"fk_{table}_agent_id")),
    ]


def _loops() -> None:
    op.create_table(
        "loops",
        *_agent("loops"),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("settings", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_loops")),
    )
    op.create_table(
        "cycles",
        sa.Column("id", text(40), nullable=False),
        *_agent("cycles"),
        sa.Column("trigger", text(16), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("reason", text(), nullable=True),
        sa.Column("heard_until", Utc(), nullable=False),
        sa.Column("informative", sa.Integer(), nullable=True),
        sa.Column("version_id", text(40), nullable=True),
        sa.Column("report", Json(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_cycles_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cycles")),
    )
    op.create_index(op.f("ix_cycles_agent_id_recorded_at"), "cycles", ["agent_id", "recorded_at"])
    op.create_table(
        "loop_checks",
        sa.Column("id", text(40), nullable=False),
        *_agent("loop_checks"),
        sa.Column("rule", text(32), nullable=False),
        sa.Column("fired", sa.Boolean(), nullable=False),
        sa.Column("value", Json(), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("next_at", Utc(), nullable=True),
        sa.Column("cycle_id", text(40), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["cycle_id"], ["cycles.id"], name=op.f("fk_loop_checks_cycle_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_loop_checks")),
    )
    op.create_index(
        op.f("ix_loop_checks_agent_id_recorded_at"), "loop_checks", ["agent_id", "recorded_at"]
    )
    op.create_table(
        "loop_decisions",
        sa.Column("id", text(40), nullable=False),
        *_agent("loop_decisions"),
        sa.Column("cycle_id", text(40), nullable=True),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("question", text(), nullable=False),
        sa.Column("evidence", Json(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("answered_by", text(), nullable=True),
        sa.Column("reason", text(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("answered_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(
            ["cycle_id"], ["cycles.id"], name=op.f("fk_loop_decisions_cycle_id")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_loop_decisions_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_loop_decisions")),
    )
    op.create_index(
        op.f("ix_loop_decisions_agent_id_state"), "loop_decisions", ["agent_id", "state"]
    )


def _quarantines() -> None:
    op.create_table(
        "quarantines",
        sa.Column("id", text(40), nullable=False),
        *_agent("quarantines"),
        sa.Column("rater_id", text(40), nullable=True),
        sa.Column("source", text(64), nullable=False),
        sa.Column("rule", text(32), nullable=False),
        sa.Column("evidence", Json(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("decided_by", text(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("decided_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["rater_id"], ["raters.id"], name=op.f("fk_quarantines_rater_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quarantines")),
    )
    op.create_index(op.f("ix_quarantines_agent_id_state"), "quarantines", ["agent_id", "state"])
    op.create_table(
        "quarantined_feedback",
        sa.Column("feedback_id", text(40), nullable=False),
        sa.Column("quarantine_id", text(40), nullable=False),
        sa.ForeignKeyConstraint(
            ["feedback_id"], ["feedback.id"], name=op.f("fk_quarantined_feedback_feedback_id")
        ),
        sa.ForeignKeyConstraint(
            ["quarantine_id"],
            ["quarantines.id"],
            name=op.f("fk_quarantined_feedback_quarantine_id"),
        ),
        sa.PrimaryKeyConstraint("feedback_id", name=op.f("pk_quarantined_feedback")),
    )
