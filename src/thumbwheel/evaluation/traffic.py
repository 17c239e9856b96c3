"""Verdicts of experiments on live traffic, as the approval of a version reads them.

Only a verdict that this home signed, about the weights that the version has now, makes the basis of
an approval `traffic`. How a verdict comes about is the experiments' own.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.core.config import Config

WON = "won"


class TrafficVerdict(Config):
    """What an experiment decided about a version, with everything that it was made from.
    `signature`: keyed hash over all else, with the home's key."""

    id: str
    agent: str
    alias: str = "live"
    """Whose traffic it was; only that of `live` opens `live`."""
    version_id: str
    experiment_id: str
    verdict: str
    weights: str
    """Fingerprint of the version's base and adapter files."""
    reasons: tuple[str, ...]
    plan: dict[str, Any]
    inputs: dict[str, Any]
    signature: str | None = None
