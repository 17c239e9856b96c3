"""The recording gateway: an app's calls to its model pass through unchanged, and become traces.

Lives here: where a call goes (`routing`), the call itself, what is written about it. Not here:
which version an agent serves (app/routing_table.py), how a recorded line becomes rows
(capture/inbox.py).
"""
