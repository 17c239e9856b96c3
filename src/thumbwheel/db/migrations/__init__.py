"""Alembic's revisions, one file each in `versions/`."""
