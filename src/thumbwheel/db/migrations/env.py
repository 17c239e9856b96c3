"""Alembic's entry point: runs the revisions on the connection that `migrate.upgrade` passes in."""

from alembic import context

from thumbwheel.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
