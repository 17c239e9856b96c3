"""The plan for feedback, PPO and A/B tests: its classes by their names, and its `rlhf:` file of
settings as ours.

    from thumbwheel.compat.rlhf_plan import FeedbackCollector, RewardModelTrainer

    collector = FeedbackCollector("data/feedback.jsonl")
    collector.collect("Opening hours?", "Nine to five.", "thumbs_up", user_id="ann")
    RewardModelTrainer(feedback_collector=collector).train("models/reward_model")
"""

from typing import TYPE_CHECKING

from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.rlhf_plan.ab_testing import ABTestingFramework
    from thumbwheel.compat.rlhf_plan.feedback import FeedbackCollector, FeedbackEntry
    from thumbwheel.compat.rlhf_plan.learner import ContinuousLearner
    from thumbwheel.compat.rlhf_plan.settings import Converted, convert_settings
    from thumbwheel.compat.rlhf_plan.training import (
        PPOAssistantTrainer,
        RewardModel,
        RewardModelTrainer,
    )

__all__ = [
    "ABTestingFramework",
    "ContinuousLearner",
    "Converted",
    "FeedbackCollector",
    "FeedbackEntry",
    "PPOAssistantTrainer",
    "RewardModel",
    "RewardModelTrainer",
    "convert_settings",
]

__getattr__ = lazy(
    __name__,
    ".feedback",
    ".settings",
    ".ab_testing",
    ".training",
    ".learner",
)
