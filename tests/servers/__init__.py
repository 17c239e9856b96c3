"""Model servers as tests need them: the real programs where they are built, and scripted ones with
the same wire format."""
