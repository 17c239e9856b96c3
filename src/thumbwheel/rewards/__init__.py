"""Judging answers: resolution of raw feedback (`aggregate`, `label`), reward functions
(`functions/`), and the ledger of their scores."""
