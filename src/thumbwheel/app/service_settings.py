"""The sections `log`, `mcp` and `server` of the settings."""

from __future__ import annotations

from ipaddress import ip_network
from urllib.parse import urlsplit

from pydantic import field_validator

from thumbwheel.access.types import Verb
from thumbwheel.core.config import Config
from thumbwheel.core.log import Form


class LogConfig(Config):
    """What goes to standard error, and in which form."""

    form: Form = "text"
    """`text` for people, `json` for a JSON object a line"""
    requests: bool = False
    """Whether the server writes a line for each request: route, status and time, and for calls to
    models agent and version; never what was asked or answered, nor a key"""


class ServerConfig(Config):
    """What the server answers beside its own API."""

    dialects: tuple[str, ...] = ()
    """Systems whose clients it understands, by the names of their dialects; `thumbwheel serve
    --help` lists them"""
    dialect_origins: tuple[str, ...] = ()
    """Origins of pages at other addresses whose scripts may ask the routes of dialects, each exact:
    http://localhost:3000"""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies (`127.0.0.1`, `10.0.0.0/8`), whose X-Forwarded-For
    and X-Forwarded-Proto count. The headers of all others are ignored, because login limits are
    counted by address"""

    @field_validator("dialect_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            exact = f"{parts.scheme}://{parts.netloc}"
            is_web = parts.scheme in ("http", "https") and parts.hostname and "@" not in origin
            if not is_web or origin != exact.lower() or "*" in origin:
                raise ValueError(
                    f"{origin!r} is no origin: write it as the browser does, http://localhost:3000"
                )
        return origins

    @field_validator("proxies")
    @classmethod
    def _are_addresses(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ip_network(proxy)
        return proxies


class McpConfig(Config):
    """What agents may do by the tools of `/mcp`."""

    verbs: tuple[Verb, ...] = ("read",)
    """Verbs whose tools are offered. A key still permits no more than its own verbs and agents"""
