"""Intervals, comparisons and power on plain numbers; no model, no database, no torch."""
