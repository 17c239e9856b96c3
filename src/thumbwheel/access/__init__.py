"""Who may do what: keys, users, sessions, tokens, what each of them may, and the record of it."""
