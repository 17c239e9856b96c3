"""A line of the log for each request: what was asked and how it ended, never what was said.

Nothing of it comes from a client as a text: no path, no query, no header, no body. Names of keys
are those of the settings.
"""

from __future__ import annotations

import logging
from typing import Any

from thumbwheel.gateway.application import Exchange

logger = logging.getLogger("thumbwheel.requests")


def log_request(
    method: str, route: str, status: int, seconds: float, exchange: Exchange | None
) -> None:
    """Log an answered request. `route` is a template; `exchange` is given for model calls."""
    fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
    }
    if exchange is not None:
        fields |= {
            "agent": exchange.agent,
            "version": exchange.choice.version,
            "deployment": exchange.choice.deployment,
            "key": exchange.key,
            "bytes": exchange.size,
            "cause": exchange.cause,
        }
    logger.info("%s %s %d", method, route, status, extra={"fields": fields})
