"""A candidate against what runs today, on held-out rows, with an interval; and the gate that
decides from it."""
