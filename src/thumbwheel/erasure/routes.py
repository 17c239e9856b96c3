"""The route of the command `erase`."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (Route("erase", "DELETE", f"{AGENT}/subjects/{{subject}}", "own", {"dry_run": True}),)
