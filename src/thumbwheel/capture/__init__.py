"""Feedback in: the sdk's inbox, and the verbs that store, list and count records."""
