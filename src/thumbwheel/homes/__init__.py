"""Looks after whole homes: backup and restore, moving to another database, retention."""
