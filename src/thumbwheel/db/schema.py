"""Every table. Only a stage's own store reads and writes its tables.

Ids are text (see core.ids), times are UTC. A new table or column needs a migration; a test compares
both.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
)
from sqlalchemy import text as sql

from thumbwheel.db.columns import NAMING, Id, Json, Utc, by_agent, from_source, refers, text

metadata = MetaData(naming_convention=NAMING)

# one row: the home whose rows these are, so that no other home uses them by mistake
homes = Table(
    "homes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("recorded_at", Utc, nullable=False),
    Column("blobs", text(), nullable=True),  # s3://bucket/prefix; NULL: the folder of the home
)

agents = Table(
    "agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("slug", text(63), nullable=False, unique=True),
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
    Index("ix_sessions_external_id", "external_id"),
)

subjects = Table(
    "subjects",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
    Index("ix_subjects_external_id", "external_id"),
)

raters = Table(
    "raters",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("kind", text(32), nullable=False),
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
    Column("role", text(32), nullable=False),
    Column("content", Json, nullable=False),
    # from an answer to what its user wrote next
    Index("ix_messages_parent_id", "parent_id"),
)

cases = Table(
    "cases",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    refers("input_id", "messages.id", nullable=False),
    Column("reference", Json),
    Column("checker", text(64)),
    Column("checker_config", Json),
    Column("group_key", text()),
    Column("basis", text(16), nullable=False),
    Column("slices", Json),
    refers("reviewer_id", "raters.id"),
    Column("fingerprint", text(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "source", "external_id"),
)

# up to where an import source has read a server of somebody else's
source_positions = Table(
    "source_positions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("source", text(64), nullable=False),
    Column("server", text(), nullable=False),
    Column("position", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
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
    Column("output", text()),
    Column("status", text(32), nullable=False),
    Column("metadata", Json),
    # of the content, so that the same id with other content is noticed
    Column("fingerprint", text(64), nullable=False),
    Column("occurred_at", Utc),
    Column("recorded_at", Utc, nullable=False),
    # with which the gateway vouches for what it says of the call; null for everybody else's
    Column("seal", text(64)),
    UniqueConstraint("agent_id", "source", "external_id"),
    # the order in which builds read
    Index("ix_traces_agent_id_input_id_id", "agent_id", "input_id", "id", unique=True),
    # the order in which they are listed
    Index("ix_traces_agent_id_recorded_at_id", "agent_id", "recorded_at", "id"),
    Index("ix_traces_agent_id_status_recorded_at_id", "agent_id", "status", "recorded_at", "id"),
    Index("ix_traces_session_id", "session_id"),
    Index("ix_traces_subject_id_recorded_at_id", "subject_id", "recorded_at", "id"),
    Index(
        "ix_traces_parent_id",
        "parent_id",
        sqlite_where=sql("parent_id IS NOT NULL"),
        postgresql_where=sql("parent_id IS NOT NULL"),
    ),
)

steps = Table(
    "steps",
    metadata,
    refers("trace_id", "traces.id", primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("kind", text(16), nullable=False),
    Column("name", text()),
    Column("input", Json),
    Column("output", Json),
    Column("status", text(32), nullable=False),
    Column("finish_reason", text(32)),
    Column("started_at", Utc),
    Column("ended_at", Utc),
    Column("requested_model", text()),
    Column("served_model", text()),
    refers("model_version_id", "model_versions.id"),
    Column("deployment", text()),
    Column("sampling", Json),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("token_ids", Json),
    Column("token_logprobs", Json),
    Column("cached_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("first_token_at", Utc),
    # false where the answer is not whole, null where nobody knows
    Column("complete", Boolean),
    Column("error", text()),
    Column("routing", Json),
    Column("cost", Float),
    # those of the trace: the calls of a model or a version are found in the order of its list
    Column("agent_id", Id),
    Column("recorded_at", Utc),
    *(
        Index(
            f"ix_steps_{'_'.join(columns)}_recorded_at_trace_id",
            *columns,
            "recorded_at",
            "trace_id",
            sqlite_where=sql(f"{columns[-1]} IS NOT NULL"),
            postgresql_where=sql(f"{columns[-1]} IS NOT NULL"),
        )
        for columns in (
            ("agent_id", "requested_model"),
            ("agent_id", "served_model"),
            ("model_version_id",),
        )
    ),
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    *from_source(),
    Column("kind", text(16), nullable=False),
    Column("name", text()),
    Column("value", Json, nullable=False),
    Column("scale", Json),
    Column("comment", text()),
    refers("rater_id", "raters.id"),
    Column("occurred_at", Utc),
    Column("recorded_at", Utc, nullable=False),
    Column("supersedes", Id),
    Column("retracts", Id),
    Column("metadata", Json),
    Column("fingerprint", text(64), nullable=False),
    # who sent it, which is known, where the rater is a claim: a user, a key, a token; null for
    # what was stored before, and for files that the owner imported
    Column("sender", text()),
    UniqueConstraint("agent_id", "source", "external_id"),
    Index("ix_feedback_agent_id_recorded_at", "agent_id", "recorded_at"),
    # few statements take another one back
    Index(
        "ix_feedback_supersedes",
        "supersedes",
        sqlite_where=sql("supersedes IS NOT NULL"),
        postgresql_where=sql("supersedes IS NOT NULL"),
    ),
    Index(
        "ix_feedback_retracts",
        "retracts",
        sqlite_where=sql("retracts IS NOT NULL"),
        postgresql_where=sql("retracts IS NOT NULL"),
    ),
)

# `target_id` is null until the target that (source, external_id) names has arrived
feedback_targets = Table(
    "feedback_targets",
    metadata,
    refers("feedback_id", "feedback.id", primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("kind", text(16), nullable=False),
    *from_source(),
    Column("step", Integer),
    Column("target_id", Id),
    Index("ix_feedback_targets_target_id_kind_feedback_id", "target_id", "kind", "feedback_id"),
    Index("ix_feedback_targets_external_id", "external_id"),
)

# spans of OpenTelemetry that wait for the rest of their run
waiting_spans = Table(
    "waiting_spans",
    metadata,
    refers("agent_id", "agents.id", primary_key=True),
    Column("trace_id", text(32), primary_key=True),
    Column("span_id", text(16), primary_key=True),
    Column("content", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("sha256", text(64), primary_key=True),
    Column("kind", text(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("shape", text(16), nullable=False),
    Column("manifest", Json, nullable=False),
    Column("fingerprint", text(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "fingerprint"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("algorithm", text(32), nullable=False),
    refers("dataset_id", "datasets.id", nullable=False),
    Column("base", text(), nullable=False),
    Column("base_fingerprint", text(64)),
    Column("config", Json, nullable=False),
    Column("environment", Json, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("state", text(16), nullable=False),
    Column("reason", text()),
    Column("metrics", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("folder", text()),  # of the home, on the host that trains it
    # goes up while somebody trains it, in a home with many hosts
    Column("beat", Integer),
    # beside its dataset: ids of a dataset of judged answers and of a reward model
    Column("learned_from", Json),
    Column("fence", Integer, nullable=False, server_default=sql("0")),
)

# what people wrote about a run; a run without a row has no note
run_notes = Table(
    "run_notes",
    metadata,
    refers("run_id", "runs.id", primary_key=True),
    Column("note", text(), nullable=False),
    Column("tags", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# system prompts that people named, by the id of the message that begins conversations with them
prompt_names = Table(
    "prompt_names",
    metadata,
    refers("agent_id", "agents.id", primary_key=True),
    Column("hash", Id, primary_key=True),
    Column("name", text(), nullable=False),
    Column("text", text(), nullable=False),
    Column("note", text(), nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# a row is a checkpoint that is whole in the bucket: hashes by the names of its files
run_checkpoints = Table(
    "run_checkpoints",
    metadata,
    refers("run_id", "runs.id", nullable=False, primary_key=True),
    Column("fence", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("files", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# bases whose files are blobs, by the name that runs and versions have for them
stored_bases = Table(
    "stored_bases",
    metadata,
    Column("fingerprint", text(64), primary_key=True),
    Column("name", text(), nullable=False),
    Column("files", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("number", Integer, nullable=False),
    Column("state", text(16), nullable=False),
    Column("basis", text(16)),
    Column("tainted", Boolean, nullable=False),
    Column("base", text(), nullable=False),
    Column("base_fingerprint", text(64)),
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
    Column("base", text(), nullable=False),
    Column("base_fingerprint", text(64), nullable=False),
    Column("files", Json, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "number"),
)

aliases = Table(
    "aliases",
    metadata,
    refers("agent_id", "agents.id", primary_key=True),
    Column("name", text(63), primary_key=True),
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
    Column("basis", text(16), nullable=False),
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
    Column("decision", text(32), nullable=False),
    Column("reasons", Json, nullable=False),
    Column("policy", Json, nullable=False),
    Column("inputs", Json, nullable=False),
    Column("signature", text(64)),  # HMAC with the home's key over everything above
    Column("recorded_at", Utc, nullable=False),
)

# what the gate requires of an agent's candidates: append-only, the last row counts
declarations = Table(
    "declarations",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("policy", Json, nullable=False),
    Column("reason", text(), nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# the answer of one model to one row of one suite, so that nothing is computed twice and a stopped
# evaluation can resume
answers = Table(
    "answers",
    metadata,
    # fingerprint of the model: weights, precision, sampling
    Column("model", text(64), primary_key=True),
    Column("suite", text(64), primary_key=True),
    Column("row", text(64), primary_key=True),
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
    Column("format", text(16), nullable=False),
    Column("quant", text(16)),
    Column("path", text(), nullable=False),  # below $THUMBWHEEL_HOME, or as a person named it
    Column("files", Json, nullable=False),
    Column("parity", Json, nullable=False),
    Column("accepted", text()),  # who accepted it in spite of a failed parity, and why
    Column("recorded_at", Utc, nullable=False),
    Column("folder", text()),  # of the home, on the host that has the files
)

# a version on a target; what is live follows from aliases
deployments = Table(
    "deployments",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("version_id", "model_versions.id", nullable=False),
    refers("export_id", "exports.id"),
    Column("target", text(16), nullable=False),
    Column("name", text(), nullable=False),  # what the target calls it
    Column("settings", Json, nullable=False),
    # url, model, and what the target needs to find the deployment again
    Column("endpoint", Json, nullable=False),
    Column("state", text(16), nullable=False),
    Column("canary", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("folder", text()),  # of the home, on the host that applied it
    Index("ix_deployments_agent_id_version_id", "agent_id", "version_id"),
)

# every move of an alias, so that a rollback knows where to
switches = Table(
    "switches",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("alias", text(63), nullable=False),
    refers("from_id", "model_versions.id"),
    refers("to_id", "model_versions.id", nullable=False),
    Column("reason", text(), nullable=False),
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
    Column("component", text(64), nullable=False),
    Column("component_version", text(64), nullable=False),
    Column("inputs", text(64), nullable=False),  # fingerprint of what the component read
    Column("value", Float),
    Column("status", text(16), nullable=False),
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
    Column("classifier", text(64), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("state", text(16), nullable=False),
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
    Column("kind", text(16), nullable=False),
    Column("key", text(64), nullable=False),
    Column("report", Json),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("agent_id", "kind", "key"),
)

# what a worker does, one row a job; its states and legal moves are in jobs/types.py
jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    # a slug and no foreign key: an import may create the agent that it is for
    Column("agent", text(63)),
    Column("kind", text(64), nullable=False),
    Column("spec", Json, nullable=False),
    Column("key", text(), unique=True),  # idempotency key
    Column("priority", Integer, nullable=False),
    refers("parent_id", "jobs.id"),
    Column("schedule_id", Id),
    Column("asked_by", text()),
    Column("state", text(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    # how often its worker died under it; too often fails it
    Column("crashes", Integer, nullable=False),
    # goes up with every claim; who writes with an older one is a zombie
    Column("fence", Integer, nullable=False),
    Column("worker_id", Id),
    # what its handler noted for a next attempt, such as the run that it began
    Column("notes", Json, nullable=False),
    Column("progress", Json),
    Column("result", Json),
    Column("error", Json),  # kind, what, why, fix
    Column("last_event", Integer, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Column("started_at", Utc),
    Column("progressed_at", Utc),
    Column("ended_at", Utc),
    Column("folder", text()),  # of the home, on a host that has a file for it
    Index("ix_jobs_state_priority", "state", "priority"),
    Index("ix_jobs_recorded_at_id", "recorded_at", "id"),
)

# what happened to a job, numbered from 1: states, progress, lines of its log
job_events = Table(
    "job_events",
    metadata,
    refers("job_id", "jobs.id", primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", text(16), nullable=False),
    Column("content", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# what workers of several hosts do together of a job (jobs/parts.py); its end removes them
job_parts = Table(
    "job_parts",
    metadata,
    refers("job_id", "jobs.id", primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("key", text(64), nullable=False),  # fingerprint of kind and spec
    Column("kind", text(64), nullable=False),
    Column("spec", Json, nullable=False),
    Column("state", text(16), nullable=False),
    Column("worker_id", Id),
    Column("fence", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("unfit", Json, nullable=False),  # folders of hosts on which parts of the job failed
    Column("result", Json),
    Column("recorded_at", Utc, nullable=False),
    Index("ix_job_parts_state", "state"),
)

# processes that claim jobs; one whose `beat` stands still for a lease is dead
workers = Table(
    "workers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("host", text(), nullable=False),
    Column("pid", Integer, nullable=False),
    # when the kernel started the process, so that another one with its number is not taken for it
    Column("process_started", BigInteger, nullable=False),
    # fingerprint of the settings that it works with
    Column("settings", text(64), nullable=False),
    Column("lacks", Json),  # kind of jobs that it leaves to others -> what its host lacks for it
    Column("beat", Integer, nullable=False),
    Column("beaten_at", Utc, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# jobs that are enqueued by the clock
schedules = Table(
    "schedules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", text(63), nullable=False, unique=True),
    Column("agent", text(63)),
    Column("kind", text(64), nullable=False),
    Column("spec", Json, nullable=False),
    Column("cron", text(), nullable=False),
    Column("timezone", text(64), nullable=False),
    Column("missed", text(16), nullable=False),  # rule for runs that nobody was there to start
    Column("paused", Boolean, nullable=False),
    Column("asked_by", text()),
    Column("next_at", Utc),  # null where the expression names no later time
    Column("recorded_at", Utc, nullable=False),
)


# people who log in, by a password or by an OIDC provider; the name goes with the row
users = Table(
    "users",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", text(120), nullable=False, unique=True),
    Column("password", text()),  # hash by Argon2id; none for users of a provider
    Column("issuer", text()),
    Column("external_id", text()),
    Column("recorded_at", Utc, nullable=False),
    UniqueConstraint("issuer", "external_id"),
)

# what a user is for an agent (by its slug: it may come later), or for all of them (*)
user_roles = Table(
    "user_roles",
    metadata,
    refers("user_id", "users.id", primary_key=True),
    Column("agent", text(63), primary_key=True),
    Column("role", text(16), nullable=False),
)

# keys of apps and of users; a revoked key has no row
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", text(63), nullable=False, unique=True),
    refers("user_id", "users.id"),
    Column("prefix", text(16), nullable=False),
    Column("mac", text(64), nullable=False, unique=True),
    Column("grants", Json, nullable=False),  # agent or * -> its verbs
    Column("expires_at", Utc),
    Column("used_at", Utc),
    Column("recorded_at", Utc, nullable=False),
)

# browsers that are logged in; without a user: by the token of the home
login_sessions = Table(
    "login_sessions",
    metadata,
    Column("id", Id, primary_key=True),
    refers("user_id", "users.id"),
    Column("mac", text(64), nullable=False, unique=True),
    Column("expires_at", Utc, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# who did what: a chain, in which each row's `mac` covers the one before
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("actor", Id, nullable=False),
    Column("action", text(120), nullable=False),
    Column("agent", text(63)),
    Column("content", Json, nullable=False),
    Column("mac", text(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# an agent's loop: whether it turns by itself, and by which settings
loops = Table(
    "loops",
    metadata,
    refers("agent_id", "agents.id", primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("settings", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# one row for each turn of the wheel; its states and legal moves are in loop/turn_types.py
cycles = Table(
    "cycles",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("trigger", text(16), nullable=False),
    Column("state", text(16), nullable=False),
    Column("reason", text()),
    # feedback that was recorded by then is what the turn learns from
    Column("heard_until", Utc, nullable=False),
    Column("informative", Integer),
    refers("version_id", "model_versions.id"),
    Column("report", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Index("ix_cycles_agent_id_recorded_at", "agent_id", "recorded_at"),
)

# every look at whether a turn is due: which rule said so, and on which number
loop_checks = Table(
    "loop_checks",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("rule", text(32), nullable=False),
    Column("fired", Boolean, nullable=False),
    Column("value", Json, nullable=False),
    Column("reason", text(), nullable=False),
    Column("next_at", Utc),  # null where nobody looks again by himself
    refers("cycle_id", "cycles.id"),
    Column("recorded_at", Utc, nullable=False),
    Index("ix_loop_checks_agent_id_recorded_at", "agent_id", "recorded_at"),
)

# what waits for a person before a turn may go on with it, and how it was answered
loop_decisions = Table(
    "loop_decisions",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("cycle_id", "cycles.id"),
    Column("kind", text(16), nullable=False),
    refers("version_id", "model_versions.id", nullable=False),
    Column("question", text(), nullable=False),
    Column("evidence", Json, nullable=False),
    Column("state", text(16), nullable=False),
    Column("answered_by", text()),
    Column("reason", text()),
    Column("recorded_at", Utc, nullable=False),
    Column("answered_at", Utc),
    Index("ix_loop_decisions_agent_id_state", "agent_id", "state"),
)

# bursts of feedback that nobody learns from before a person has looked
quarantines = Table(
    "quarantines",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("rater_id", "raters.id"),
    Column("source", text(64), nullable=False),
    Column("rule", text(32), nullable=False),
    Column("evidence", Json, nullable=False),
    Column("state", text(16), nullable=False),
    Column("decided_by", text()),
    Column("recorded_at", Utc, nullable=False),
    Column("decided_at", Utc),
    Index("ix_quarantines_agent_id_state", "agent_id", "state"),
)

quarantined_feedback = Table(
    "quarantined_feedback",
    metadata,
    refers("feedback_id", "feedback.id", primary_key=True),
    refers("quarantine_id", "quarantines.id", nullable=False),
)

# arms of one agent's alias that traffic is shared among; `plan` is what was declared at the start
experiments = Table(
    "experiments",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("alias", text(63), nullable=False),
    Column("plan", Json, nullable=False),
    Column("salt", text(64), nullable=False),
    Column("state", text(16), nullable=False),
    Column("reason", text(), nullable=False),
    # up to where recorded calls were read
    Column("collected", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Column("ended_at", Utc),
)

# the shares of the arms: never edited, a change is the next row
strata = Table(
    "strata",
    metadata,
    refers("experiment_id", "experiments.id", primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("shares", Json, nullable=False),
    Column("reason", text(), nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# the first counted call of each unit, with the probability of every arm; `unit` is a salted hash
exposures = Table(
    "exposures",
    metadata,
    refers("experiment_id", "experiments.id", primary_key=True),
    Column("unit", text(64), primary_key=True),
    Column("arm", text(63), nullable=False),
    Column("stratum", Integer, nullable=False),
    Column("shares", Json, nullable=False),
    refers("trace_id", "traces.id", nullable=False),
    Column("exposed_at", Utc, nullable=False),
    Column("seal", text(64)),
    Index("ix_exposures_trace_id", "trace_id"),
)

# every call while an experiment ran; `arm` is null where another arm or none answered
exposed_calls = Table(
    "exposed_calls",
    metadata,
    refers("trace_id", "traces.id", primary_key=True),
    refers("experiment_id", "experiments.id", nullable=False),
    Column("unit", text(64)),
    Column("arm", text(63)),
    Column("assigned", text(63)),
    Column("stratum", Integer, nullable=False),
    Column("failed", Boolean, nullable=False),
    Column("seconds", Float),
    Column("cost", Float),
    Column("occurred_at", Utc, nullable=False),
    Column("seal", text(64)),
    Index("ix_exposed_calls_experiment_id_unit", "experiment_id", "unit"),
)

# what happened to an experiment, and why
experiment_events = Table(
    "experiment_events",
    metadata,
    refers("experiment_id", "experiments.id", primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", text(32), nullable=False),
    Column("content", Json, nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# what experiments decided about versions; signed as the gate's decisions are
traffic_verdicts = Table(
    "traffic_verdicts",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    refers("version_id", "model_versions.id", nullable=False),
    refers("experiment_id", "experiments.id", nullable=False),
    Column("verdict", text(16), nullable=False),
    Column("content", Json, nullable=False),
    Column("signature", text(64)),
    Column("recorded_at", Utc, nullable=False),
)

# what people are asked to rate, and how; `items` and `done` count its items
review_queues = Table(
    "review_queues",
    metadata,
    Column("id", Id, primary_key=True),
    by_agent(),
    Column("name", text(63), nullable=False),
    Column("config", Json, nullable=False),
    Column("state", text(16), nullable=False),
    Column("items", Integer, nullable=False),
    Column("done", Integer, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Column("closed_at", Utc),
    UniqueConstraint("agent_id", "name"),
)

# `free`: how many raters may still take it; below 0 where a rating came after its lease had ended
review_items = Table(
    "review_items",
    metadata,
    Column("id", Id, primary_key=True),
    refers("queue_id", "review_queues.id", nullable=False),
    Column("rank", Integer, nullable=False),
    Column("free", Integer, nullable=False),
    Column("done", Integer, nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Index(
        "ix_review_items_queue_id_rank",
        "queue_id",
        "rank",
        sqlite_where=sql("free > 0"),
        postgresql_where=sql("free > 0"),
    ),
    Index("ix_review_items_queue_id_id", "queue_id", "id"),
)

# what an item is about: traces, or a case
review_targets = Table(
    "review_targets",
    metadata,
    refers("item_id", "review_items.id", primary_key=True),
    Column("position", Integer, primary_key=True),
    refers("trace_id", "traces.id"),
    refers("case_id", "cases.id"),
    Index("ix_review_targets_trace_id", "trace_id"),
    Index("ix_review_targets_case_id", "case_id"),
)

# who may rate in a queue; behind `frontier` there is no item that they could take
review_raters = Table(
    "review_raters",
    metadata,
    refers("queue_id", "review_queues.id", primary_key=True),
    Column("rater", text(512), primary_key=True),
    Column("assigned", Boolean, nullable=False),
    Column("frontier", Integer, nullable=False),
    Column("rated", Integer, nullable=False),
    Index("ix_review_raters_rater", "rater"),
)

# an item in the hands of a rater; `shown` is the order in which its answers are shown to them
review_assignments = Table(
    "review_assignments",
    metadata,
    refers("item_id", "review_items.id", primary_key=True),
    Column("rater", text(512), primary_key=True),
    refers("queue_id", "review_queues.id", nullable=False),
    Column("state", text(16), nullable=False),
    Column("shown", Json, nullable=False),
    Column("action", Id),  # by which it is in this state
    Column("leased_until", Utc, nullable=False),
    Index("ix_review_assignments_queue_id_rater_state", "queue_id", "rater", "state"),
    Index("ix_review_assignments_queue_id_state_leased_until", "queue_id", "state", "leased_until"),
)

# what raters did: append-only; the id is that of the client's key, so that nothing happens twice
review_actions = Table(
    "review_actions",
    metadata,
    Column("id", Id, primary_key=True),
    refers("queue_id", "review_queues.id", nullable=False),
    refers("item_id", "review_items.id", nullable=False),
    Column("rater", text(512), nullable=False),
    Column("kind", text(16), nullable=False),
    Column("content", Json, nullable=False),
    Column("feedback", Json, nullable=False),  # ids
    Column("fingerprint", text(64), nullable=False),
    Column("recorded_at", Utc, nullable=False),
    Index("ix_review_actions_queue_id_rater_recorded_at", "queue_id", "rater", "recorded_at"),
    Index("ix_review_actions_item_id", "item_id"),
)

# idempotency keys of requests, hashed with who asked; the answer comes after the effect
request_keys = Table(
    "request_keys",
    metadata,
    Column("key", text(64), primary_key=True),
    Column("fingerprint", text(64), nullable=False),
    Column("answer", Json),
    Column("recorded_at", Utc, nullable=False),
    Column("agent", text(63)),  # that the path names
    Index("ix_request_keys_recorded_at", "recorded_at"),
)

# keys and secrets of a home with many hosts, sealed with the key of its cluster (cluster.py)
cluster_keys = Table(
    "cluster_keys",
    metadata,
    Column("name", text(), primary_key=True),
    Column("sealed", text(), nullable=False),
    Column("recorded_at", Utc, nullable=False),
)

# the folders of such a home, one on each host (hosts.py)
hosts = Table(
    "hosts",
    metadata,
    Column("folder", text(), primary_key=True),
    Column("name", text(), nullable=False),
    Column("address", text()),
    Column("recorded_at", Utc, nullable=False),
    Column("software", Json),  # that runs there (host_software.py)
)

# what the servers of such a home count together in a day (UTC)
day_counts = Table(
    "day_counts",
    metadata,
    Column("day", text(10), primary_key=True),
    Column("name", text(), primary_key=True),
    Column("amount", Double, nullable=False),
)

# the calls of an agent or a key in a minute (since 1970) and in the one before
call_windows = Table(
    "call_windows",
    metadata,
    Column("name", text(), primary_key=True),
    Column("minute", BigInteger, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("previous", Integer, nullable=False),
)
