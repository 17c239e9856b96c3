"""The RLHF package of the n3 server: its classes by their names, on our own verbs.

from thumbwheel.compat.n3 import RLHFTrainer, TrainingConfig

result = RLHFTrainer(TrainingConfig(base_model="gpt2", max_steps=50)).train(feedbacks, "rlhf")
"""

from typing import TYPE_CHECKING

from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.n3.config import DatasetConfig, RewardModelConfig, TrainingConfig
    from thumbwheel.compat.n3.datasets import (
        FeedbackDataset,
        FeedbackExample,
        PPODataset,
        load_dataset,
        prepare_feedback_dataset,
        prepare_ppo_dataset,
        save_dataset,
    )
    from thumbwheel.compat.n3.policies import PolicyVersion, list_policy_versions
    from thumbwheel.compat.n3.policy_model import PolicyModel
    from thumbwheel.compat.n3.reward_model import RewardModel, RewardModelHead
    from thumbwheel.compat.n3.training import (
        RLHFTrainer,
        TrainingResult,
        train_reward_model,
    )

__all__ = [
    "DatasetConfig",
    "FeedbackDataset",
    "FeedbackExample",
    "PPODataset",
    "PolicyModel",
    "PolicyVersion",
    "RLHFTrainer",
    "RewardModel",
    "RewardModelConfig",
    "RewardModelHead",
    "TrainingConfig",
    "TrainingResult",
    "list_policy_versions",
    "load_dataset",
    "prepare_feedback_dataset",
    "prepare_ppo_dataset",
    "save_dataset",
    "train_reward_model",
]

__getattr__ = lazy(
    __name__,
    ".config",
    ".datasets",
    ".policies",
    ".training",
    ".reward_model",
    ".policy_model",
)
