"""The section `label` of the settings: how a classifier of traces is fitted."""

from __future__ import annotations

from pydantic import Field

from thumbwheel.core.config import Config


class LearnConfig(Config):
    """How a classifier of traces is fitted."""

    least_good: int = Field(default=10, ge=2)
    """Fewer traces that people called good are refused."""
    least_bad: int = Field(default=10, ge=2)
    """Fewer traces that people called bad are refused."""
    folds: int = Field(default=5, ge=2, le=20)
    """Parts of the cross-validation; there have to be at least as many prompts or sessions."""
    strength: float = Field(default=1.0, gt=0)
    """How far the weights may go: the inverse of the penalty on them."""
    embeddings: str | None = None
    """Folder or hub id of a model whose sentence embeddings of the answers are seen too; unset,
    numbers and words only."""
