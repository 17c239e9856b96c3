"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import thumbwheel.db.columns

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Apply."""
    ${upgrades if upgrades else "pass"}
