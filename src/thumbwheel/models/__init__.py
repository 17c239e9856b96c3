"""Model versions with their lineage, aliases, and content-addressed artifacts."""
