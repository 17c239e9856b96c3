"""The schema of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "agents",
        sa.Column("id", text(40), nullable=False),
        sa.Column("slug", text(63), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("slug", name=op.f("uq_agents_slug")),
    )
    op.create_table(
        "artifacts",
        sa.Column("sha256", text(64), nullable=False),
        sa.Column("kind", text(32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "messages",
        sa.Column("id", text(40), nullable=False),
        sa.Column("parent_id", text(40), nullable=True),
        sa.Column("role", text(32), nullable=False),
        sa.Column("content", Json(), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["messages.id"], name=op.f("fk_messages_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    op.create_table(
        "answers",
        sa.Column("model", text(64), nullable=False),
        sa.Column("suite", text(64), nullable=False),
        sa.Column("row", text(64), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("result", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_answers_agent_id")),
        sa.PrimaryKeyConstraint("model", "suite", "row", name=op.f("pk_answers")),
    )
    op.create_table(
        "datasets",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("shape", text(16), nullable=False),
        sa.Column("manifest", Json(), nullable=False),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_datasets_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint(
            "agent_id", "fingerprint", name=op.f("uq_datasets_agent_id_fingerprint")
        ),
    )
    op.create_table(
        "declarations",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("policy", Json(), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_declarations_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_declarations")),
    )
    op.create_table(
        "raters",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("kind", text(32), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_raters_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_raters")),
        sa.UniqueConstraint(
            "agent_id", "source", "external_id", name=op.f("uq_raters_agent_id_source_external_id")
        ),
    )
    op.create_table(
        "rewards",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("target_id", text(40), nullable=False),
        sa.Column("component", text(64), nullable=False),
        sa.Column("component_version", text(64), nullable=False),
        sa.Column("inputs", text(64), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("status", text(16), nullable=False),
        sa.Column("evidence", Json(), nullable=False),
        sa.Column("as_of", Utc(), nullable=True),
        sa.Column("current", sa.Boolean(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_rewards_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rewards")),
        sa.UniqueConstraint(
            "target_id",
            "component",
            "component_version",
            "inputs",
            name=op.f("uq_rewards_target_id_component_component_version_inputs"),
        ),
    )
    op.create_index(
        "ix_rewards_agent_id_target_id", "rewards", ["agent_id", "target_id"], unique=False
    )
    op.create_table(
        "sessions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_sessions_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint(
            "agent_id",
            "source",
            "external_id",
            name=op.f("uq_sessions_agent_id_source_external_id"),
        ),
    )
    op.create_table(
        "subjects",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_subjects_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subjects")),
        sa.UniqueConstraint(
            "agent_id",
            "source",
            "external_id",
            name=op.f("uq_subjects_agent_id_source_external_id"),
        ),
    )
    op.create_table(
        "tombstones",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("key", text(64), nullable=False),
        sa.Column("report", Json(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_tombstones_agent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tombstones")),
        sa.UniqueConstraint(
            "agent_id", "kind", "key", name=op.f("uq_tombstones_agent_id_kind_key")
        ),
    )
    op.create_table(
        "cases",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("input_id", text(40), nullable=False),
        sa.Column("reference", Json(), nullable=True),
        sa.Column("checker", text(64), nullable=True),
        sa.Column("checker_config", Json(), nullable=True),
        sa.Column("group_key", text(), nullable=True),
        sa.Column("basis", text(16), nullable=False),
        sa.Column("slices", Json(), nullable=True),
        sa.Column("reviewer_id", text(40), nullable=True),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_cases_agent_id")),
        sa.ForeignKeyConstraint(["input_id"], ["messages.id"], name=op.f("fk_cases_input_id")),
        sa.ForeignKeyConstraint(["reviewer_id"], ["raters.id"], name=op.f("fk_cases_reviewer_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cases")),
        sa.UniqueConstraint(
            "agent_id", "source", "external_id", name=op.f("uq_cases_agent_id_source_external_id")
        ),
    )
    op.create_table(
        "feedback",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("name", text(), nullable=True),
        sa.Column("value", Json(), nullable=False),
        sa.Column("scale", Json(), nullable=True),
        sa.Column("comment", text(), nullable=True),
        sa.Column("rater_id", text(40), nullable=True),
        sa.Column("occurred_at", Utc(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("supersedes", text(40), nullable=True),
        sa.Column("retracts", text(40), nullable=True),
        sa.Column("metadata", Json(), nullable=True),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_feedback_agent_id")),
        sa.ForeignKeyConstraint(["rater_id"], ["raters.id"], name=op.f("fk_feedback_rater_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
        sa.UniqueConstraint(
            "agent_id",
            "source",
            "external_id",
            name=op.f("uq_feedback_agent_id_source_external_id"),
        ),
    )
    op.create_index(
        "ix_feedback_agent_id_recorded_at", "feedback", ["agent_id", "recorded_at"], unique=False
    )
    op.create_table(
        "runs",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("algorithm", text(32), nullable=False),
        sa.Column("dataset_id", text(40), nullable=False),
        sa.Column("base", text(), nullable=False),
        sa.Column("base_fingerprint", text(64), nullable=True),
        sa.Column("config", Json(), nullable=False),
        sa.Column("environment", Json(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("reason", text(), nullable=True),
        sa.Column("metrics", Json(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_runs_agent_id")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_runs_dataset_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_table(
        "traces",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("session_id", text(40), nullable=True),
        sa.Column("subject_id", text(40), nullable=True),
        sa.Column("parent_id", text(40), nullable=True),
        sa.Column("case_id", text(40), nullable=True),
        sa.Column("input_id", text(40), nullable=False),
        sa.Column("output", text(), nullable=True),
        sa.Column("status", text(32), nullable=False),
        sa.Column("metadata", Json(), nullable=True),
        sa.Column("fingerprint", text(64), nullable=False),
        sa.Column("occurred_at", Utc(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_traces_agent_id")),
        sa.ForeignKeyConstraint(["input_id"], ["messages.id"], name=op.f("fk_traces_input_id")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_traces_session_id")),
        sa.ForeignKeyConstraint(["subject_id"], ["subjects.id"], name=op.f("fk_traces_subject_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traces")),
        sa.UniqueConstraint(
            "agent_id", "source", "external_id", name=op.f("uq_traces_agent_id_source_external_id")
        ),
    )
    op.create_index(
        "ix_traces_agent_id_input_id_id", "traces", ["agent_id", "input_id", "id"], unique=True
    )
    op.create_table(
        "feedback_targets",
        sa.Column("feedback_id", text(40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("source", text(64), nullable=False),
        sa.Column("external_id", text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("target_id", text(40), nullable=True),
        sa.ForeignKeyConstraint(
            ["feedback_id"], ["feedback.id"], name=op.f("fk_feedback_targets_feedback_id")
        ),
        sa.PrimaryKeyConstraint("feedback_id", "position", name=op.f("pk_feedback_targets")),
    )
    op.create_index(
        "ix_feedback_targets_external_id", "feedback_targets", ["external_id"], unique=False
    )
    op.create_index(
        "ix_feedback_targets_target_id_kind_feedback_id",
        "feedback_targets",
        ["target_id", "kind", "feedback_id"],
        unique=False,
    )
    op.create_table(
        "model_versions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("basis", text(16), nullable=True),
        sa.Column("tainted", sa.Boolean(), nullable=False),
        sa.Column("base", text(), nullable=False),
        sa.Column("base_fingerprint", text(64), nullable=True),
        sa.Column("adapter", Json(), nullable=True),
        sa.Column("endpoint", Json(), nullable=True),
        sa.Column("parent_id", text(40), nullable=True),
        sa.Column("run_id", text(40), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_model_versions_agent_id")
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["model_versions.id"], name=op.f("fk_model_versions_parent_id")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_model_versions_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("agent_id", "number", name=op.f("uq_model_versions_agent_id_number")),
    )
    op.create_table(
        "reward_models",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run_id", text(40), nullable=False),
        sa.Column("base", text(), nullable=False),
        sa.Column("base_fingerprint", text(64), nullable=False),
        sa.Column("files", Json(), nullable=False),
        sa.Column("metrics", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("fk_reward_models_agent_id")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_reward_models_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reward_models")),
        sa.UniqueConstraint("agent_id", "number", name=op.f("uq_reward_models_agent_id_number")),
    )
    op.create_table(
        "suggestions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("trace_id", text(40), nullable=False),
        sa.Column("value", sa.Boolean(), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("classifier", text(64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("feedback_id", text(40), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("reviewed_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_suggestions_agent_id")),
        sa.ForeignKeyConstraint(
            ["feedback_id"], ["feedback.id"], name=op.f("fk_suggestions_feedback_id")
        ),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_suggestions_trace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suggestions")),
        sa.UniqueConstraint(
            "agent_id",
            "classifier",
            "trace_id",
            name=op.f("uq_suggestions_agent_id_classifier_trace_id"),
        ),
    )
    op.create_table(
        "aliases",
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("name", text(63), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_aliases_agent_id")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_aliases_version_id")
        ),
        sa.PrimaryKeyConstraint("agent_id", "name", name=op.f("pk_aliases")),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("candidate_id", text(40), nullable=False),
        sa.Column("against_id", text(40), nullable=False),
        sa.Column("basis", text(16), nullable=False),
        sa.Column("config", Json(), nullable=False),
        sa.Column("results", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(
            ["against_id"], ["model_versions.id"], name=op.f("fk_evaluations_against_id")
        ),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_evaluations_agent_id")),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["model_versions.id"], name=op.f("fk_evaluations_candidate_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "exports",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("format", text(16), nullable=False),
        sa.Column("quant", text(16), nullable=True),
        sa.Column("path", text(), nullable=False),
        sa.Column("files", Json(), nullable=False),
        sa.Column("parity", Json(), nullable=False),
        sa.Column("accepted", text(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_exports_agent_id")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_exports_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exports")),
    )
    op.create_table(
        "steps",
        sa.Column("trace_id", text(40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("name", text(), nullable=True),
        sa.Column("input", Json(), nullable=True),
        sa.Column("output", Json(), nullable=True),
        sa.Column("status", text(32), nullable=False),
        sa.Column("finish_reason", text(32), nullable=True),
        sa.Column("started_at", Utc(), nullable=True),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.Column("requested_model", text(), nullable=True),
        sa.Column("served_model", text(), nullable=True),
        sa.Column("model_version_id", text(40), nullable=True),
        sa.Column("deployment", text(), nullable=True),
        sa.Column("sampling", Json(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("token_ids", Json(), nullable=True),
        sa.Column("token_logprobs", Json(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model_version_id"], ["model_versions.id"], name=op.f("fk_steps_model_version_id")
        ),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_steps_trace_id")),
        sa.PrimaryKeyConstraint("trace_id", "position", name=op.f("pk_steps")),
    )
    op.create_table(
        "switches",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("alias", text(63), nullable=False),
        sa.Column("from_id", text(40), nullable=True),
        sa.Column("to_id", text(40), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("evidence", Json(), nullable=False),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_switches_agent_id")),
        sa.ForeignKeyConstraint(
            ["from_id"], ["model_versions.id"], name=op.f("fk_switches_from_id")
        ),
        sa.ForeignKeyConstraint(["to_id"], ["model_versions.id"], name=op.f("fk_switches_to_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_switches")),
    )
    op.create_index(
        "ix_switches_agent_id_alias_recorded_at",
        "switches",
        ["agent_id", "alias", "recorded_at"],
        unique=False,
    )
    op.create_table(
        "decisions",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("evaluation_id", text(40), nullable=False),
        sa.Column("decision", text(32), nullable=False),
        sa.Column("reasons", Json(), nullable=False),
        sa.Column("policy", Json(), nullable=False),
        sa.Column("inputs", Json(), nullable=False),
        sa.Column("signature", text(64), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_decisions_agent_id")),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_decisions_evaluation_id")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_decisions_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_table(
        "deployments",
        sa.Column("id", text(40), nullable=False),
        sa.Column("agent_id", text(40), nullable=False),
        sa.Column("version_id", text(40), nullable=False),
        sa.Column("export_id", text(40), nullable=True),
        sa.Column("target", text(16), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("settings", Json(), nullable=False),
        sa.Column("endpoint", Json(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("canary", Json(), nullable=True),
        sa.Column("recorded_at", Utc(), nullable=False),
        sa.Column("ended_at", Utc(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_deployments_agent_id")),
        sa.ForeignKeyConstraint(
            ["export_id"], ["exports.id"], name=op.f("fk_deployments_export_id")
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_deployments_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
    )
    op.create_index(
        "ix_deployments_agent_id_version_id",
        "deployments",
        ["agent_id", "version_id"],
        unique=False,
    )
