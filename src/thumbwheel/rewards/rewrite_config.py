"""The section `rewrite` of the settings: which model rewrites answers."""

from __future__ import annotations

from pydantic import Field

from thumbwheel.core.config import Config


class RewriteConfig(Config):
    """Who rewrites answers."""

    url: str
    """The endpoint of the model, for example http://127.0.0.1:11434/v1."""
    model: str
    """The model, as the endpoint calls it."""
    api_key_variable: str | None = None
    """The environment variable that holds the key; the key itself stands in no settings."""
    most: int = Field(default=50, ge=1)
    """Answers that are rewritten in one call, at most."""
    request_timeout: float = Field(default=120.0, gt=0)
    """Seconds for one reply."""
