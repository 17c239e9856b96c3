"""Every table. Only a stage's own store reads and writes its tables.

Ids are text (see core.ids), times are UTC. A new table or column needs a migration; a test compares
both.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from thumbwheel.db.columns import NAMING, Id, Json, Utc, by_agent, from_source, refers

metadata = MetaData(naming_convention=NAMING)

agents = Table(
    "agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("slug", String(63), nullable=False, unique=True),
    Column("recorded_at", Utc, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
)

subjects = Table(
    "subjects",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
)

raters = Table(
    "raters",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("kind", String(32), nullable=False),
    Column("weight", Float, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
)

# A history is a chain that ends at its last message; equal beginnings are stored once.
messages = Table(
    "messages",
    metadata,
    Column("id", Id, primary_key=True),
    refers("parent_id", "messages.id"),
    Column("role", String(32), nullable=False),
    Column("content", Json, nullable=False),
)

cases = Table(
    "cases",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    refers("input_id", "messages.id", nullable=False),
    Column("reference", Json),
    Column("checker", String(64)),
    Column("checker_config", Json),
    Column("group_key", Text),
    Column("basis", String(16), nullable=False),
    Column("slices", Json),
    refers("reviewer_id", "raters.id"),
    Column("fingerprint", String(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
)

traces = Table(
    "traces",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    refers("session_id", "sessions.id"),
    refers("subject_id", "subjects.id"),
    # parent_id and case_id may name what has not arrived yet, so they are no foreign keys
    Column("parent_id", Id),
    Column("case_id", Id),
    refers("input_id", "messages.id", nullable=False),
    Column("output", Text),
    Column("status", String(32), nullable=False),
    Column("metadata", Json),
    # of the content, so that the same id with other content is noticed
    Column("fingerprint", String(64), nullable=False),
    Column("occurred_at", Utc),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
    # the order in which builds read
    Index("ix_traces_agent_id_input_id_id", "agent_id", "input_id", "id", unique=True),
)

steps = Table(
    "steps",
    metadata,
    refers("trace_id", "traces.id", primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text),
    Column("input", Json),
    Column("output", Json),
    Column("status", String(32), nullable=False),
    Column("finish_reason", String(32)),
    Column("started_at", Utc),
    Column("ended_at", Utc),
    Column("requested_model", Text),
    Column("served_model", Text),
    refers("model_version_id", "model_versions.id"),
    Column("deployment", Text),
    Column("sampling", Json),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("token_ids", Json),
    Column("token_logprobs", Json),
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("kind", String(16), nullable=False),
    Column("name", Text),
    Column("value", Json, nullable=False),
    Column("scale", Json),
    Column("comment", Text),
    refers("rater_id", "raters.id"),
    Column("occurred_at", Utc),
    Column("recorded_at", Utc, nullable=False),
    Column("supersedes", Id),
    Column("retracts", Id),
    Column("metadata", Json),
    Column("fingerprint", String(64), nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
    Index("ix_feedback_agent_id_recorded_at", "agent_id", "recorded_at"),
)

# `target_id` is null until the target that (source, external_id) names has arrived
feedback_targets = Table(
    "feedback_targets",
    metadata,
    refers("feedback_id", "feedback.id", primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("kind", String(16), nullable=False),
    *from_source(),
    Column("step", Integer),
    Column("target_id", Id),
    Index("ix_feedback_targets_target_id_kind_feedback_id", "target_id", "kind", "feedback_id"),
    Index("ix_feedback_targets_external_id", "external_id"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("shape", String(16), nullable=False),
    Column("manifest", Json, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "fingerprint"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("algorithm", String(32), nullable=False),
    refers("dataset_id", "datasets.id", nullable=False),
    Column("base", Text, nullable=False),
    Column("base_fingerprint", String(64)),
    Column("config", Json, nullable=False),
    Column("environment", Json, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("metrics", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("number", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("basis", String(16)),
    Column("tainted", Boolean, nullable=False),
    Column("base", Text, nullable=False),
    Column("base_fingerprint", String(64)),
    Column("adapter", Json),
    # of a version that somebody else serves: url, model, price; then it has no weights here
    Column("endpoint", Json),
    refers("parent_id", "model_versions.id"),
    refers("run_id", "runs.id"),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "number"),
)

reward_models = Table(
    "reward_models",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("number", Integer, nullable=False),
    refers("run_id", "runs.id", nullable=False),
    Column("base", Text, nullable=False),
    Column("base_fingerprint", String(64), nullable=False),
    Column("files", Json, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "number"),
)

aliases = Table(
    "aliases",
    metadata,
    refers("agent_id", "agents.id", primary_key=True),
    Column("name", String(63), primary_key=True),
    refers("version_id", "model_versions.id", nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("candidate_id", "model_versions.id", nullable=False),
    refers("against_id", "model_versions.id", nullable=False),
    Column("basis", String(16), nullable=False),
    Column("config", Json, nullable=False),
    Column("results", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("version_id", "model_versions.id", nullable=False),
    refers("evaluation_id", "evaluations.id", nullable=False),
    Column("decision", String(32), nullable=False),
    Column("reasons", Json, nullable=False),
    Column("policy", Json, nullable=False),
    Column("inputs", Json, nullable=False),
    Column("signature", String(64)),  # HMAC with the home's key over everything above
    Column("recorded_at", Utc, nullable=False),
)

# what the gate requires of an agent's candidates: append-only, the last row counts
declarations = Table(
    "declarations",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("policy", Json, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# the answer of one model to one row of one suite, so that nothing is computed twice and a stopped
# evaluation can resume
answers = Table(
    "answers",
    metadata,
    # fingerprint of the model: weights, precision, sampling
    Column("model", String(64), primary_key=True),
    Column("suite", String(64), primary_key=True),
    Column("row", String(64), primary_key=True),
    by_agent(),
    Column("result", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

exports = Table(
    "exports",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("version_id", "model_versions.id", nullable=False),
    Column("format", String(16), nullable=False),
    Column("quant", String(16)),
    Column("path", Text, nullable=False),
    Column("files", Json, nullable=False),
    Column("parity", Json, nullable=False),
    Column("accepted", Text),  # who accepted it in spite of a failed parity, and why
    Column("recorded_at", Utc, nullable=False),
)

# a version on a target; what is live follows from aliases
deployments = Table(
    "deployments",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("version_id", "model_versions.id", nullable=False),
    refers("export_id", "exports.id"),
    Column("target", String(16), nullable=False),
    Column("name", Text, nullable=False),  # what the target calls it
    Column("settings", Json, nullable=False),
    # url, model, and what the target needs to find the deployment again
    Column("endpoint", Json, nullable=False),
    Column("state", String(16), nullable=False),
    Column("canary", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Index("ix_deployments_agent_id_version_id", "agent_id", "version_id"),
)

# every move of an alias, so that a rollback knows where to
switches = Table(
    "switches",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("alias", String(63), nullable=False),
    refers("from_id", "model_versions.id"),
    refers("to_id", "model_versions.id", nullable=False),
    Column("reason", Text, nullable=False),
    Column("evidence", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Index("ix_switches_agent_id_alias_recorded_at", "agent_id", "alias", "recorded_at"),
)

# the ledger: the score of one component, in one version, for one target by the inputs of that time
rewards = Table(
    "rewards",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("target_id", Id, nullable=False),
    Column("component", String(64), nullable=False),
    Column("component_version", String(64), nullable=False),
    Column("inputs", String(64), nullable=False),  # fingerprint of what the component read
    Column("value", Float),
    Column("status", String(16), nullable=False),
    Column("evidence", Json, nullable=False),
    Column("as_of", Utc),
    # whether its inputs are those that the last run of this version of the component read
    Column("current", Boolean, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("target_id", "component", "component_version", "inputs"),
    Index("ix_rewards_agent_id_target_id", "agent_id", "target_id"),
)

# labels that a classifier proposes; a person's verdict makes feedback of them
suggestions = Table(
    "suggestions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("trace_id", "traces.id", nullable=False),
    Column("value", Boolean, nullable=False),
    Column("confidence", Float, nullable=False),
    # fingerprint of the labels and settings that it was fitted on
    Column("classifier", String(64), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    refers("feedback_id", "feedback.id"),
    Column("recorded_at", Utc, nullable=False),
    Column("reviewed_at", Utc),
    UniqueConstraint("agent_id", "classifier", "trace_id"),
)

# what was erased, by keyed hashes only, so that an import cannot bring it back
tombstones = Table(
    "tombstones",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("kind", String(16), nullable=False),
    Column("key", String(64), nullable=False),
    Column("report", Json),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "kind", "key"),
)
