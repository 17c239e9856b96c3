"""Composition root: settings, and the open home that every command is given."""
