"""The prompts of the five agents, the same for training and serving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.compat.ocd.decision_prompts import prompt_of, system_of


def format_prompt_for_agent(agent_type: str, state: Mapping[str, Any]) -> str:
    """Return the labelled lines of a state; indented JSON for an agent that has none."""
    return str(prompt_of(agent_type, state, {})[-1]["content"])


def get_system_prompt(agent_type: str) -> str:
    """Return the agent's system prompt, which asks for the declared keys; empty for an agent that
    has none."""
    messages = system_of(agent_type, {})
    return str(messages[0]["content"]) if messages else ""
