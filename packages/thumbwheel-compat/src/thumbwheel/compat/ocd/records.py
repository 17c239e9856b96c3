"""`DecisionRecord`: a decision with the columns of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DecisionRecord:
    """One decision. What is unknown is None, also a reward of 0 without feedback or outcome."""

    id: str | None
    agent_type: str
    state: dict[str, Any] | None
    action: dict[str, Any]
    reward: float | None = None
    reward_components: dict[str, Any] | None = None
    confidence: float | None = None
    reasoning: str | None = None
    user_feedback: str | None = None
    user_correction: dict[str, Any] | None = None
    outcome_metrics: dict[str, Any] | None = None
    item_id: str | None = None
    opus_id: str | None = None
    model_version: str | None = None
    created_at: str | None = None
    feedback_at: str | None = None
    outcome_observed_at: str | None = None
    is_training_data: bool = True
    is_validation_data: bool = False
    prompt: str = ""
    """What the agent was asked, without its system prompt."""
    completion: str | None = None
    """The action as the text that is trained on; None for a row that has lost it."""
