"""The reward functions. Adding one: a file here, and a line in this table."""

from __future__ import annotations

from typing import Any

from thumbwheel.core.plugins import VariantTable
from thumbwheel.rewards.function import RewardFunction

FUNCTIONS: VariantTable[type[RewardFunction[Any]]] = VariantTable(
    "reward function",
    "thumbwheel.reward_functions",
    {
        "code_execution": "thumbwheel.rewards.functions.code_execution:CodeExecution",
        "edit_distance": "thumbwheel.rewards.functions.edit_distance:EditDistance",
        "efficiency": "thumbwheel.rewards.functions.efficiency:Efficiency",
        "exact_answer": "thumbwheel.rewards.functions.exact_answer:ExactAnswer",
        "format_compliance": "thumbwheel.rewards.functions.format_compliance:FormatCompliance",
        "json_fields": "thumbwheel.rewards.functions.json_fields:JsonFields",
        "judge": "thumbwheel.rewards.functions.judge:Judge",
        "learned": "thumbwheel.rewards.functions.learned:Learned",
        "length": "thumbwheel.rewards.functions.length:Length",
        "next_turn": "thumbwheel.rewards.functions.next_turn:NextTurnReward",
        "outcome": "thumbwheel.rewards.functions.outcome:Outcome",
        "rating": "thumbwheel.rewards.functions.rating:Rating",
        "regex": "thumbwheel.rewards.functions.regex:Regex",
        "reward_model": "thumbwheel.rewards.functions.reward_model:RewardModelFunction",
        "score": "thumbwheel.rewards.functions.rating:GivenScore",
        "syntax": "thumbwheel.rewards.functions.syntax:Syntax",
        "task_completion": "thumbwheel.rewards.functions.task_completion:TaskCompletion",
        "thumb": "thumbwheel.rewards.functions.thumb:Thumb",
        "tool_match": "thumbwheel.rewards.functions.tool_match:ToolMatch",
        "tool_success": "thumbwheel.rewards.functions.tool_success:ToolSuccess",
    },
)
