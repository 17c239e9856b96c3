"""What every stage stands on: configuration, errors, identifiers, tables of variants, the log."""
