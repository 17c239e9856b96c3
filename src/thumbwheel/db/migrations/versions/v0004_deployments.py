"""Cached answers, quantised exports, deployments and switches, versions served elsewhere, signed decisions and declared gates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.schema import Json, Utc

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column('model_versions', sa.Column('endpoint', Json, nullable=True))
    op.add_column('decisions', sa.Column('signature', sa.String(length=64), nullable=True))
    op.add_column('exports', sa.Column('quant', sa.String(length=16), nullable=True))
    op.add_column('exports', sa.Column('accepted', sa.Text(), nullable=True))
    op.create_table('declarations',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('policy', Json, nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_declarations_agent_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_declarations'))
    )
    op.create_table('answers',
    sa.Column('model', sa.String(length=64), nullable=False),
    sa.Column('suite', sa.String(length=64), nullable=False),
    sa.Column('row', sa.String(length=64), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('result', Json, nullable=False),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_answers_agent_id')),
    sa.PrimaryKeyConstraint('model', 'suite', 'row', name=op.f('pk_answers'))
    )
    op.create_table('deployments',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('version_id', sa.String(length=40), nullable=False),
    sa.Column('export_id', sa.String(length=40), nullable=True),
    sa.Column('target', sa.String(length=16), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('settings', Json, nullable=False),
    sa.Column('endpoint', Json, nullable=False),
    sa.Column('state', sa.String(length=16), nullable=False),
    sa.Column('canary', Json, nullable=True),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.Column('ended_at', Utc(), nullable=True),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_deployments_agent_id')),
    sa.ForeignKeyConstraint(['version_id'], ['model_versions.id'], name=op.f('fk_deployments_version_id')),
    sa.ForeignKeyConstraint(['export_id'], ['exports.id'], name=op.f('fk_deployments_export_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_deployments'))
    )
    op.create_index('ix_deployments_agent_id_version_id', 'deployments', ['agent_id', 'version_id'])
    op.create_table('switches',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('agent_id', sa.String(length=40), nullable=False),
    sa.Column('alias', sa.String(length=63), nullable=False),
    sa.Column('from_id', sa.String(length=40), nullable=True),
    sa.Column('to_id', sa.String(length=40), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('evidence', Json, nullable=False),
    sa.Column('recorded_at', Utc(), nullable=False),
    sa.ForeignKeyConstraint(['agent_id'], ['agents.id'], name=op.f('fk_switches_agent_id')),
    sa.ForeignKeyConstraint(['from_id'], ['model_versions.id'], name=op.f('fk_switches_from_id')),
    sa.ForeignKeyConstraint(['to_id'], ['model_versions.id'], name=op.f('fk_switches_to_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_switches'))
    )
    op.create_index('ix_switches_agent_id_alias_recorded_at', 'switches', ['agent_id', 'alias', 'recorded_at'])
