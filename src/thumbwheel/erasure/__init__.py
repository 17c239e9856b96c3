"""Erases a subject from the home, and marks what learned from the data as tainted."""
