"""Tells people what waits for them: by webhook, Slack, e-mail, and an Atom feed."""
