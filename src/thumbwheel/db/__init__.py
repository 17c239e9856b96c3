"""The store of facts: every table (`schema`), its migrations, and the one writer that acknowledges
only what is on disk."""
