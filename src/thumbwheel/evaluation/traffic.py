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
    """Id of the verdict."""
    agent: str
    """Agent of the version."""
    alias: str = "live"
    """Whose traffic it was; only that of `live` opens `live`."""
    version_id: str
    """Version that it is about."""
    experiment_id: str
    """Experiment that decided."""
    verdict: str
    """won or lost."""
    weights: str
    """Fingerprint of the version's base and adapter files."""
    reasons: tuple[str, ...]
    """Why, one sentence each."""
    plan: dict[str, Any]
    """The plan of the experiment, as it was declared."""
    inputs: dict[str, Any]
    """Figures that the verdict was computed from."""
    signature: str | None = None
    """Keyed hash over all else, with the home's key; null for an unsigned one."""
