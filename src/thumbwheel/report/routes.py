"""The routes of the commands `dataset why` and `feedback used-in`."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route("dataset why", "GET", "/api/dataset-rows/{row}", "read"),
    Route("feedback used-in", "GET", f"{AGENT}/uses/{{id}}", "read"),
)
