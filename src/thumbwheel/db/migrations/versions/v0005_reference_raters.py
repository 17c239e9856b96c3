"""The grader of a file of graded solutions compared with the right answer that the file holds: a rater of the kind `reference`."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.execute("UPDATE raters SET kind = 'reference' WHERE source = 'graded' AND external_id = 'grader' AND kind = 'checker'")
