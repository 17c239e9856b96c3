"""The n3 server's RLHF package (system 1): its classes by their names, on our own verbs. What the
server does is not here.

from thumbwheel.compat.n3 import RLHFTrainer, TrainingConfig

result = RLHFTrainer(TrainingConfig(base_model="gpt2", max_steps=50)).train(feedbacks, "rlhf")
"""

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
from thumbwheel.compat.n3.training import (
    DatasetConfig,
    RewardModel,
    RewardModelConfig,
    RLHFTrainer,
    TrainingConfig,
    TrainingResult,
    train_reward_model,
)

__all__ = [
    "DatasetConfig",
    "FeedbackDataset",
    "FeedbackExample",
    "PPODataset",
    "PolicyVersion",
    "RLHFTrainer",
    "RewardModel",
    "RewardModelConfig",
    "TrainingConfig",
    "TrainingResult",
    "list_policy_versions",
    "load_dataset",
    "prepare_feedback_dataset",
    "prepare_ppo_dataset",
    "save_dataset",
    "train_reward_model",
]
