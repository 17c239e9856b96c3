"""Feedback in: records, the sources that read them from files, the sdk's inbox, and the verbs that
store, list and count them."""
