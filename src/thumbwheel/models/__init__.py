"""Model versions with lineage, aliases, and the content-addressed artifacts that they are made of."""
