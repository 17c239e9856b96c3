"""Addresses of schedules and jobs that were stored with a password lose it, since specs are listed
and logged. A schedule that had one is paused: it needs a stored secret now (key=NAME)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from thumbwheel.core.address_secrets import SCHEME, SETTING, without_secrets
from thumbwheel.db.columns import Json

revision = "tw0010"
down_revision = "tw0009"
branch_labels = None
depends_on = None

SCHEDULES = sa.table(
    "schedules", sa.column("id"), sa.column("spec", Json), sa.column("paused", sa.Boolean)
)
JOBS = sa.table("jobs", sa.column("id"), sa.column("spec", Json))


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    for table, further in ((SCHEDULES, {"paused": True}), (JOBS, {})):
        rows = connection.execute(sa.select(table.c.id, table.c.spec)).all()
        for row_id, spec in rows:
            shown = _shown(spec)
            if json.dumps(shown) != json.dumps(spec):
                change = table.update().where(table.c.id == row_id)
                connection.execute(change.values(spec=shown, **further))


def _shown(value: Any) -> Any:
    """Return a JSON value whose addresses have no passwords."""
    match value:
        case str() if SCHEME.match(value) or SETTING.search(value):
            return without_secrets(value)
        case Mapping():
            return {key: _shown(part) for key, part in value.items()}
        case list():
            return [_shown(part) for part in value]
    return value
