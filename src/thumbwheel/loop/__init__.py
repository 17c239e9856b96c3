"""What spans the whole turn: lineage, the model change report, aliases at the command line."""
