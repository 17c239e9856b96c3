"""The section `endpoints` of the settings: where models that somebody else serves may be."""

from __future__ import annotations

from pydantic import field_validator

from thumbwheel.core.addresses import check_listed, is_listed
from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace


class EndpointConfig(Config):
    """Models that somebody else serves (thumbwheel models endpoint)."""

    private: tuple[str, ...] = ()
    """Hosts (HOST, HOST:PORT or a network such as 10.2.0.0/16) of this machine or a private network
    at which a model may be served. Nothing else is asked there, whoever registers it"""

    @field_validator("private")
    @classmethod
    def _are_hosts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            check_listed(entry)
        return entries


def may_be_private(ws: Workspace, url: str) -> bool:
    """Return whether the settings allow `url` to lead to a loopback or private address."""
    return is_listed(url, ws.settings(EndpointConfig, "endpoints").private)
