"""The database of a home: every table (`schema`), its migrations, and the writer, which
acknowledges a write only once it is on disk."""
