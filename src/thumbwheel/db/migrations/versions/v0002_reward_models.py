"""Reward models have a table of their own: they judge answers and are no versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import thumbwheel.db.schema

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table('reward_models',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.String(length=40), nullable=False),
    sa.Column('base', sa.Text(), nullable=False),
    sa.Column('base_fingerprint', sa.String(length=64), nullable=False),
    sa.Column('files', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('metrics', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('recorded_at', thumbwheel.db.schema.Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_reward_models_agent_id')),
    sa.ForeignKeyConstraint(['run_id'], ['runs.id'], name=op.f('fk_reward_models_run_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_reward_models')),
    sa.UniqueConstraint('agent_id', 'number', name=op.f('uq_reward_models_agent_id_number'))
    )
