"""The reward functions. Adding one: a file here, and a line in this table."""

from __future__ import annotations

from typing import Any

from thumbwheel.core.plugins import Table
from thumbwheel.rewards.function import RewardFunction

FUNCTIONS: Table[type[RewardFunction[Any]]] = Table(
    "reward function",
    "thumbwheel.reward_functions",
    {
        "exact_answer": "thumbwheel.rewards.functions.exact_answer:ExactAnswer",
        "json_fields": "thumbwheel.rewards.functions.json_fields:JsonFields",
        "regex": "thumbwheel.rewards.functions.regex:Regex",
    },
)
