"""The section `access` of the settings: how long logins hold, how often who may ask, and an OIDC
provider."""

from __future__ import annotations

from pydantic import Field

from thumbwheel.core.config import Config


class ProviderConfig(Config):
    """An OIDC provider, such as Keycloak, Google or Entra, by which people log in."""

    issuer: str = Field(pattern=r"^https?://[^\s?#]+$")
    """Its address, below which it has /.well-known/openid-configuration"""
    client_id: str
    """What the provider calls this server"""
    secret: str | None = None
    """The name of the secret that has the client's secret (thumbwheel secrets set NAME); none for a
    public client"""
    claim: str = "email"
    """The claim that has the name under which a user was added; `email` counts only where the
    provider says that it is verified"""


class AccessConfig(Config):
    """Who may ask, and how often."""

    session_hours: float = Field(default=12.0, gt=0, le=720)
    """How long a browser stays logged in"""
    token_minutes: float = Field(default=10.0, gt=0, le=60)
    """How long a token lives that a key or session was changed into"""
    requests_per_minute: int = Field(default=6000, ge=1)
    """Requests to the API of one key or user; beyond them they are answered with 429"""
    provider: ProviderConfig | None = None
    """Where people log in"""
