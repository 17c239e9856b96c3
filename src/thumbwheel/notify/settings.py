"""The section `notify` of the settings: where notices go. Without channels nothing is sent.

Channels stand in thumbwheel.yaml alone: no request names an address that the server sends to.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from thumbwheel.core.address_secrets import addresses_with_secrets
from thumbwheel.core.addresses import check_listed
from thumbwheel.core.config import Config

NoticeKind = Literal["decision", "failed_job", "stop_loss", "regression", "dead_deployment"]
"""What people are told of."""
KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)
CHANNEL_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
MAIL_ADDRESS = re.compile(r"[^@\s<>,;\"]+@[^@\s<>,;\"]+")


class ChannelConfig(Config):
    """One place that notices go to. Secrets are named, and stored by `thumbwheel secrets set`."""

    kind: Literal["webhook", "slack", "email"]
    """webhook: signed JSON; slack: the payload of an incoming webhook; email: by SMTP"""
    url: str | None = None
    """Where a webhook is posted to"""
    url_secret: str | None = None
    """The secret that holds the URL, in place of `url`: that of Slack is one"""
    secret: str | None = None
    """The secret that a webhook is signed with, or the password of the mail server"""
    host: str | None = None
    """The mail server"""
    port: int = Field(default=587, ge=1, le=65535)
    """Of the mail server"""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection to the mail server is secured"""
    user: str | None = None
    """Who logs in to the mail server; unset, nobody does"""
    sender: str | None = None
    """The address that mail comes from"""
    to: tuple[str, ...] = ()
    """The addresses that mail goes to"""
    kinds: tuple[NoticeKind, ...] = KINDS
    """Which notices go there"""
    agents: tuple[str, ...] = ()
    """Of which agents; none named: of all"""

    @model_validator(mode="after")
    def _whole(self) -> ChannelConfig:
        if self.kind == "email":
            if not (self.host and self.sender and self.to):
                raise ValueError("email needs host, sender and to")
            if self.user and not self.secret:
                raise ValueError("user needs secret, the name of the password's secret")
            for address in (self.sender, *self.to):
                if not MAIL_ADDRESS.fullmatch(address):
                    raise ValueError(f"{address!r} is no mail address")
            return self
        if (self.url is None) == (self.url_secret is None):
            raise ValueError(f"{self.kind} needs either url or url_secret")
        if self.kind == "webhook" and not self.secret:
            raise ValueError("webhook needs secret: the name of the secret that it is signed with")
        if self.url is not None:
            check_url(self.url)
        return self


def check_url(url: str) -> None:
    """Raise ValueError for an invalid web address, or one that contains a secret. The message does
    not repeat it: the address of a webhook may be a secret as a whole."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("url is no http or https address")
    if [*addresses_with_secrets(url)]:
        raise ValueError("url holds a secret: store the whole address, and name it by url_secret")


class NotifyConfig(Config):
    """Whom the server tells what waits for a person."""

    channels: dict[str, ChannelConfig] = Field(default_factory=dict)
    """Name -> where notices go"""
    private: tuple[str, ...] = ()
    """Hosts (HOST, HOST:PORT or a network such as 10.2.0.0/16) of this machine or a private network
    that notices may be sent to"""
    url: str | None = None
    """The address of this server as people open it, for the links in notices"""

    @field_validator("channels")
    @classmethod
    def _are_named(cls, channels: dict[str, ChannelConfig]) -> dict[str, ChannelConfig]:
        for name in channels:
            if not CHANNEL_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a channel: use a-z, 0-9 and -")
        return channels

    @field_validator("private")
    @classmethod
    def _are_hosts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            check_listed(entry)
        return entries
