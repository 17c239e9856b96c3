BEGIN TRANSACTION;
CREATE TABLE agents (
	id VARCHAR(40) NOT NULL, 
	slug VARCHAR(63) NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_agents PRIMARY KEY (id), 
	CONSTRAINT uq_agents_slug UNIQUE (slug)
);
INSERT INTO "agents" VALUES('agt_1','support','2026-01-05 08:30:00');
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE aliases (
	agent_id VARCHAR(40) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version_id VARCHAR(40) NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_aliases PRIMARY KEY (agent_id, name), 
	CONSTRAINT fk_aliases_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_aliases_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id)
);
CREATE TABLE answers (
	model VARCHAR(64) NOT NULL, 
	suite VARCHAR(64) NOT NULL, 
	"row" VARCHAR(64) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	result JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_answers PRIMARY KEY (model, suite, "row"), 
	CONSTRAINT fk_answers_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id)
);
CREATE TABLE artifacts (
	sha256 VARCHAR(64) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	size BIGINT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (sha256)
);
CREATE TABLE cases (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	input_id VARCHAR(40) NOT NULL, 
	reference JSON, 
	checker VARCHAR(64), 
	checker_config JSON, 
	group_key TEXT, 
	basis VARCHAR(16) NOT NULL, 
	slices JSON, 
	reviewer_id VARCHAR(40), 
	fingerprint VARCHAR(64) NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_cases PRIMARY KEY (id), 
	CONSTRAINT fk_cases_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_cases_input_id FOREIGN KEY(input_id) REFERENCES messages (id), 
	CONSTRAINT fk_cases_reviewer_id FOREIGN KEY(reviewer_id) REFERENCES raters (id), 
	CONSTRAINT uq_cases_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE TABLE datasets (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	shape VARCHAR(16) NOT NULL, 
	manifest JSON NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_datasets PRIMARY KEY (id), 
	CONSTRAINT fk_datasets_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_datasets_agent_id_fingerprint UNIQUE (agent_id, fingerprint)
);
CREATE TABLE decisions (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	version_id VARCHAR(40) NOT NULL, 
	evaluation_id VARCHAR(40) NOT NULL, 
	decision VARCHAR(32) NOT NULL, 
	reasons JSON NOT NULL, 
	policy JSON NOT NULL, 
	inputs JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, signature VARCHAR(64), 
	CONSTRAINT pk_decisions PRIMARY KEY (id), 
	CONSTRAINT fk_decisions_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_decisions_evaluation_id FOREIGN KEY(evaluation_id) REFERENCES evaluations (id), 
	CONSTRAINT fk_decisions_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id)
);
CREATE TABLE declarations (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	policy JSON NOT NULL, 
	reason TEXT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_declarations PRIMARY KEY (id), 
	CONSTRAINT fk_declarations_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id)
);
CREATE TABLE deployments (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	version_id VARCHAR(40) NOT NULL, 
	export_id VARCHAR(40), 
	target VARCHAR(16) NOT NULL, 
	name TEXT NOT NULL, 
	settings JSON NOT NULL, 
	endpoint JSON NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	canary JSON, 
	recorded_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_deployments PRIMARY KEY (id), 
	CONSTRAINT fk_deployments_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_deployments_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_deployments_export_id FOREIGN KEY(export_id) REFERENCES exports (id)
);
CREATE TABLE evaluations (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	candidate_id VARCHAR(40) NOT NULL, 
	against_id VARCHAR(40) NOT NULL, 
	basis VARCHAR(16) NOT NULL, 
	config JSON NOT NULL, 
	results JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_evaluations PRIMARY KEY (id), 
	CONSTRAINT fk_evaluations_against_id FOREIGN KEY(against_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_evaluations_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_evaluations_candidate_id FOREIGN KEY(candidate_id) REFERENCES model_versions (id)
);
CREATE TABLE exports (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	version_id VARCHAR(40) NOT NULL, 
	format VARCHAR(16) NOT NULL, 
	path TEXT NOT NULL, 
	files JSON NOT NULL, 
	parity JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, quant VARCHAR(16), accepted TEXT, 
	CONSTRAINT pk_exports PRIMARY KEY (id), 
	CONSTRAINT fk_exports_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_exports_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id)
);
CREATE TABLE feedback (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	name TEXT, 
	value JSON NOT NULL, 
	scale JSON, 
	comment TEXT, 
	rater_id VARCHAR(40), 
	occurred_at DATETIME, 
	recorded_at DATETIME NOT NULL, 
	supersedes VARCHAR(40), 
	retracts VARCHAR(40), 
	metadata JSON, 
	fingerprint VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_feedback PRIMARY KEY (id), 
	CONSTRAINT fk_feedback_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_feedback_rater_id FOREIGN KEY(rater_id) REFERENCES raters (id), 
	CONSTRAINT uq_feedback_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE TABLE feedback_targets (
	feedback_id VARCHAR(40) NOT NULL, 
	position INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	step INTEGER, 
	target_id VARCHAR(40), 
	CONSTRAINT pk_feedback_targets PRIMARY KEY (feedback_id, position), 
	CONSTRAINT fk_feedback_targets_feedback_id FOREIGN KEY(feedback_id) REFERENCES feedback (id)
);
CREATE TABLE messages (
	id VARCHAR(40) NOT NULL, 
	parent_id VARCHAR(40), 
	role VARCHAR(32) NOT NULL, 
	content JSON NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (id), 
	CONSTRAINT fk_messages_parent_id FOREIGN KEY(parent_id) REFERENCES messages (id)
);
CREATE TABLE model_versions (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	basis VARCHAR(16), 
	tainted BOOLEAN NOT NULL, 
	base TEXT NOT NULL, 
	base_fingerprint VARCHAR(64), 
	adapter JSON, 
	parent_id VARCHAR(40), 
	run_id VARCHAR(40), 
	recorded_at DATETIME NOT NULL, endpoint JSON, 
	CONSTRAINT pk_model_versions PRIMARY KEY (id), 
	CONSTRAINT fk_model_versions_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_model_versions_parent_id FOREIGN KEY(parent_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_model_versions_run_id FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_model_versions_agent_id_number UNIQUE (agent_id, number)
);
CREATE TABLE raters (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	weight FLOAT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_raters PRIMARY KEY (id), 
	CONSTRAINT fk_raters_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_raters_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE TABLE reward_models (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	number INTEGER NOT NULL, 
	run_id VARCHAR(40) NOT NULL, 
	base TEXT NOT NULL, 
	base_fingerprint VARCHAR(64) NOT NULL, 
	files JSON NOT NULL, 
	metrics JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_reward_models PRIMARY KEY (id), 
	CONSTRAINT fk_reward_models_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_reward_models_run_id FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_reward_models_agent_id_number UNIQUE (agent_id, number)
);
CREATE TABLE rewards (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	target_id VARCHAR(40) NOT NULL, 
	component VARCHAR(64) NOT NULL, 
	component_version VARCHAR(64) NOT NULL, 
	inputs VARCHAR(64) NOT NULL, 
	value FLOAT, 
	status VARCHAR(16) NOT NULL, 
	evidence JSON NOT NULL, 
	as_of DATETIME, 
	current BOOLEAN NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_rewards PRIMARY KEY (id), 
	CONSTRAINT fk_rewards_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_rewards_target_id_component_component_version_inputs UNIQUE (target_id, component, component_version, inputs)
);
CREATE TABLE runs (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	algorithm VARCHAR(32) NOT NULL, 
	dataset_id VARCHAR(40) NOT NULL, 
	base TEXT NOT NULL, 
	base_fingerprint VARCHAR(64), 
	config JSON NOT NULL, 
	environment JSON NOT NULL, 
	seed BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT, 
	metrics JSON, 
	recorded_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_runs_dataset_id FOREIGN KEY(dataset_id) REFERENCES datasets (id)
);
CREATE TABLE sessions (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_sessions_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE TABLE steps (
	trace_id VARCHAR(40) NOT NULL, 
	position INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	name TEXT, 
	input JSON, 
	output JSON, 
	status VARCHAR(32) NOT NULL, 
	finish_reason VARCHAR(32), 
	started_at DATETIME, 
	ended_at DATETIME, 
	requested_model TEXT, 
	served_model TEXT, 
	model_version_id VARCHAR(40), 
	deployment TEXT, 
	sampling JSON, 
	prompt_tokens INTEGER, 
	completion_tokens INTEGER, 
	token_ids JSON, 
	token_logprobs JSON, 
	CONSTRAINT pk_steps PRIMARY KEY (trace_id, position), 
	CONSTRAINT fk_steps_model_version_id FOREIGN KEY(model_version_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_steps_trace_id FOREIGN KEY(trace_id) REFERENCES traces (id)
);
CREATE TABLE subjects (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_subjects PRIMARY KEY (id), 
	CONSTRAINT fk_subjects_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_subjects_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE TABLE suggestions (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	trace_id VARCHAR(40) NOT NULL, 
	value BOOLEAN NOT NULL, 
	confidence FLOAT NOT NULL, 
	classifier VARCHAR(64) NOT NULL, 
	rank INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	feedback_id VARCHAR(40), 
	recorded_at DATETIME NOT NULL, 
	reviewed_at DATETIME, 
	CONSTRAINT pk_suggestions PRIMARY KEY (id), 
	CONSTRAINT fk_suggestions_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_suggestions_feedback_id FOREIGN KEY(feedback_id) REFERENCES feedback (id), 
	CONSTRAINT fk_suggestions_trace_id FOREIGN KEY(trace_id) REFERENCES traces (id), 
	CONSTRAINT uq_suggestions_agent_id_classifier_trace_id UNIQUE (agent_id, classifier, trace_id)
);
CREATE TABLE switches (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	alias VARCHAR(63) NOT NULL, 
	from_id VARCHAR(40), 
	to_id VARCHAR(40) NOT NULL, 
	reason TEXT NOT NULL, 
	evidence JSON NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_switches PRIMARY KEY (id), 
	CONSTRAINT fk_switches_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_switches_from_id FOREIGN KEY(from_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_switches_to_id FOREIGN KEY(to_id) REFERENCES model_versions (id)
);
CREATE TABLE tombstones (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	report JSON, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_tombstones PRIMARY KEY (id), 
	CONSTRAINT fk_tombstones_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT uq_tombstones_agent_id_kind_key UNIQUE (agent_id, kind, "key")
);
CREATE TABLE traces (
	id VARCHAR(40) NOT NULL, 
	agent_id VARCHAR(40) NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	external_id TEXT NOT NULL, 
	session_id VARCHAR(40), 
	subject_id VARCHAR(40), 
	parent_id VARCHAR(40), 
	case_id VARCHAR(40), 
	input_id VARCHAR(40) NOT NULL, 
	output TEXT, 
	status VARCHAR(32) NOT NULL, 
	metadata JSON, 
	fingerprint VARCHAR(64) NOT NULL, 
	occurred_at DATETIME, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_traces PRIMARY KEY (id), 
	CONSTRAINT fk_traces_agent_id FOREIGN KEY(agent_id) REFERENCES agents (id), 
	CONSTRAINT fk_traces_input_id FOREIGN KEY(input_id) REFERENCES messages (id), 
	CONSTRAINT fk_traces_session_id FOREIGN KEY(session_id) REFERENCES sessions (id), 
	CONSTRAINT fk_traces_subject_id FOREIGN KEY(subject_id) REFERENCES subjects (id), 
	CONSTRAINT uq_traces_agent_id_source_external_id UNIQUE (agent_id, source, external_id)
);
CREATE INDEX ix_feedback_agent_id_recorded_at ON feedback (agent_id, recorded_at);
CREATE INDEX ix_feedback_targets_external_id ON feedback_targets (external_id);
CREATE INDEX ix_rewards_agent_id_target_id ON rewards (agent_id, target_id);
CREATE UNIQUE INDEX ix_traces_agent_id_input_id_id ON traces (agent_id, input_id, id);
CREATE INDEX ix_feedback_targets_target_id_kind_feedback_id ON feedback_targets (target_id, kind, feedback_id);
CREATE INDEX ix_deployments_agent_id_version_id ON deployments (agent_id, version_id);
CREATE INDEX ix_switches_agent_id_alias_recorded_at ON switches (agent_id, alias, recorded_at);
COMMIT;
