"""The reward ledger, suggested labels, and what was erased."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.schema import Json, Utc

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table('rewards',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('target_id', sa.String(length=40), nullable=False),
    sa.Column('component', sa.String(length=64), nullable=False),
    sa.Column('component_version', sa.String(length=64), nullable=False),
    sa.Column('inputs', sa.String(length=64), nullable=False),
    sa.Column('value', sa.Float(), nullable=True),
    sa.Column('status', sa.String(length=16), nullable=False),
    sa.Column('evidence', Json, nullable=False),
    sa.Column('as_of', Utc(), nullable=True),
    sa.Column('current', sa.Boolean(), nullable=False),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_rewards_agent_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_rewards')),
    sa.UniqueConstraint('target_id', 'component', 'component_version', 'inputs',
                        name=op.f('uq_rewards_target_id_component_component_version_inputs'))
    )
    op.create_index('ix_rewards_agent_id_target_id', 'rewards', ['agent_id', 'target_id'])
    op.drop_index('ix_traces_agent_id_input_id', 'traces')
    op.create_index('ix_traces_agent_id_input_id_id', 'traces', ['agent_id', 'input_id', 'id'], unique=True)
    op.drop_index('ix_feedback_targets_target_id', 'feedback_targets')
    op.create_index('ix_feedback_targets_target_id_kind_feedback_id', 'feedback_targets', ['target_id', 'kind', 'feedback_id'])
    op.create_table('suggestions',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('trace_id', sa.String(length=40), nullable=False),
    sa.Column('value', sa.Boolean(), nullable=False),
    sa.Column('confidence', sa.Float(), nullable=False),
    sa.Column('classifier', sa.String(length=64), nullable=False),
    sa.Column('rank', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(length=16), nullable=False),
    sa.Column('feedback_id', sa.String(length=40), nullable=True),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.Column('reviewed_at', Utc(), nullable=True),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_suggestions_agent_id')),
    sa.ForeignKeyConstraint(['feedback_id'], ['feedback.id'], name=op.f('fk_suggestions_feedback_id')),
    sa.ForeignKeyConstraint(['trace_id'], ['traces.id'], name=op.f('fk_suggestions_trace_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_suggestions')),
    sa.UniqueConstraint('agent_id', 'classifier', 'trace_id', name=op.f('uq_suggestions_agent_id_classifier_trace_id'))
    )
    op.create_table('tombstones',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('kind', sa.String(length=16), nullable=False),
    sa.Column('key', sa.String(length=64), nullable=False),
    sa.Column('report', Json, nullable=True),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_tombstones_agent_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_tombstones')),
    sa.UniqueConstraint('agent_id', 'kind', 'key', name=op.f('uq_tombstones_agent_id_kind_key'))
    )
