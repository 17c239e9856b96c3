"""The routes of the commands of notices. Channels are those of thumbwheel.yaml: no request says
where something is sent."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route("notify list", "GET", f"{AGENT}/notices", "read"),
    Route("notify channels", "GET", "/api/notify/channels", "own"),
    Route("notify test", "POST", "/api/notify/channels/{channel}/tests", "own"),
    Route("notify send", "POST", "/api/notify/deliveries", "own"),
)
