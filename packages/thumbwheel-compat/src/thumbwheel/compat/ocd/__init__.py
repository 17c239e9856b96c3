"""The training package of the five agents (system 2): what its scripts import, on our own
decisions, prompts and rewards.

    from thumbwheel.compat.ocd import export_training_data, get_training_stats

    print(get_training_stats("FILER"))
    export_training_data("FILER", "training/data/filer.jsonl")

Decisions come from the table at DATABASE_URL, which is only read, or from a file (`source`). Its
commands for training, evaluation and export are commands here (docs/40-migrating.md).
"""

from typing import TYPE_CHECKING

from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.ocd.ab_test import get_ab_test
    from thumbwheel.compat.ocd.decisions import (
        export_training_data,
        get_training_stats,
        load_training_decisions,
    )
    from thumbwheel.compat.ocd.prompts import format_prompt_for_agent, get_system_prompt
    from thumbwheel.compat.ocd.records import DecisionRecord
    from thumbwheel.compat.ocd.rewards import (
        calculate_reward_from_components,
        calculate_reward_from_record,
        normalize_reward,
    )

__all__ = [
    "DecisionRecord",
    "calculate_reward_from_components",
    "calculate_reward_from_record",
    "export_training_data",
    "format_prompt_for_agent",
    "get_ab_test",
    "get_system_prompt",
    "get_training_stats",
    "load_training_decisions",
    "normalize_reward",
]

__getattr__ = lazy(
    __name__,
    ".records",
    ".prompts",
    ".rewards",
    ".decisions",
    ".ab_test",
)
