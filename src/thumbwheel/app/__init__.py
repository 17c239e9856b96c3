"""Composition root: all settings, and the home that commands open."""
