"""Rows name the files and servers of a host so that another host is not misled: the hosts of a
home, the folder of an export, the sign of life of a run, and addresses without the path and the
loopback address of the host that wrote them."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import sqlalchemy as sa
from alembic import op

from thumbwheel.db.columns import Json, Utc, text

revision = "tw0012"
down_revision = "tw0011"
branch_labels = None
depends_on = None

deployments = sa.table("deployments", sa.column("id", text()), sa.column("endpoint", Json))


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "hosts",
        sa.Column("folder", text(), primary_key=True),
        sa.Column("name", text(), nullable=False),
        sa.Column("address", text(), nullable=True),
        sa.Column("recorded_at", Utc, nullable=False),
    )
    op.add_column("exports", sa.Column("folder", text(), nullable=True))
    op.add_column("runs", sa.Column("beat", sa.Integer, nullable=True))
    op.add_column("runs", sa.Column("learned_from", Json, nullable=True))
    # a server that somebody else runs is asked under the same address from every host
    op.execute("UPDATE deployments SET folder = NULL WHERE target = 'remote'")
    connection = op.get_bind()
    rows = connection.execute(sa.select(deployments.c.id, deployments.c.endpoint)).all()
    for row in rows:
        endpoint = _portable(row.endpoint)
        if endpoint != row.endpoint:
            update = deployments.update().where(deployments.c.id == row.id)
            connection.execute(update.values(endpoint=endpoint))


def _portable(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return an endpoint without the path of its home, and with a name for the own host."""
    if "url" not in endpoint:
        return endpoint
    details = dict(endpoint["details"])
    parts = PurePath(str(details.get("place", ""))).parts
    if "deployments" in parts:
        last = len(parts) - 1 - parts[::-1].index("deployments")
        details["place"] = "/".join(("$THUMBWHEEL_HOME", *parts[last:]))
    for name in ("url", "host"):
        if isinstance(details.get(name), str):
            details[name] = _of_own_host(details[name])
    return {**endpoint, "url": _of_own_host(endpoint["url"]), "details": details}


def _of_own_host(url: str) -> str:
    return url.replace("//127.0.0.1:", "//$HOST:", 1)
