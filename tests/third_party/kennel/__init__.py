"""A package as a third party writes it: one variant of each kind, known by its entry points."""
