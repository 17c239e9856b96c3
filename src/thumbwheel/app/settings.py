"""Which class reads which section of the configuration; what nothing reads is refused."""

from __future__ import annotations

from thumbwheel.core.config import Config
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.evaluation.types import EvaluationConfig, GatePolicy
from thumbwheel.rewards.combine import RewardsConfig
from thumbwheel.rewards.label_config import LearnConfig
from thumbwheel.training.algorithms import ALGORITHMS


def sections() -> dict[str, type[Config]]:
    """Section of the YAML file -> its class."""
    methods = {f"train.{name}": ALGORITHMS.get(name).Config for name in ALGORITHMS.names()}
    stages: dict[str, type[Config]] = {
        "dataset": DatasetConfig,
        "evaluation": EvaluationConfig,
        "gate": GatePolicy,
        "label": LearnConfig,
        "rewards": RewardsConfig,
    }
    return {**stages, **methods}
