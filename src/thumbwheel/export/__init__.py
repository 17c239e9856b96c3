"""Versions as files that others load: formats, merging, parity with the trained model."""
