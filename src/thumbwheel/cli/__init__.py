"""The command line: translates arguments, calls one verb, presents the answer."""
