"""The sections `log`, `mcp` and `server` of the settings."""

from __future__ import annotations

from ipaddress import ip_network

from pydantic import field_validator

from thumbwheel.access.types import Verb
from thumbwheel.core.config import Config
from thumbwheel.core.log import Form


class LogConfig(Config):
    """What goes to standard error, and in which form."""

    form: Form = "text"
    """`text` for people, `json` for a JSON object a line"""
    requests: bool = False
    """Whether the server says a line for each request: route, status, time, and of calls to models
    agent and version. It never holds what was asked or answered, nor a key"""


class ServerConfig(Config):
    """What the server answers beside its own API."""

    dialects: tuple[str, ...] = ()
    """Systems whose clients it understands, by the names of their dialects; `thumbwheel serve
    --help` lists them"""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies (`127.0.0.1`, `10.0.0.0/8`), whose X-Forwarded-For
    and X-Forwarded-Proto count. Of everybody else they do not, because limits of logins count by
    address"""

    @field_validator("proxies")
    @classmethod
    def _are_addresses(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ip_network(proxy)
        return proxies


class McpConfig(Config):
    """What agents may do by the tools of `/mcp`."""

    verbs: tuple[Verb, ...] = ("read",)
    """What tools there are: those that need one of these verbs. A key still permits no more than
    its own verbs and agents"""
