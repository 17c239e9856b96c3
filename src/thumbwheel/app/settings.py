"""The class that reads each section of the configuration."""

from __future__ import annotations

from thumbwheel.core.config import Config
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.rewards.combine import RewardsConfig
from thumbwheel.rewards.label_config import LearnConfig
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.types import TrainingSwitch


def sections() -> dict[str, type[Config]]:
    """Section of the YAML file -> its class."""
    methods = {f"train.{name}": ALGORITHMS.get(name).Config for name in ALGORITHMS.names()}
    stages: dict[str, type[Config]] = {
        "dataset": DatasetConfig,
        "evaluation": EvaluationConfig,
        "gate": GatePolicy,
        "label": LearnConfig,
        "loop": CycleConfig,
        "rewards": RewardsConfig,
        "training": TrainingSwitch,
    }
    targets = {f"deploy.{name}": TARGETS.get(name).Config for name in TARGETS.names()}
    return {**stages, **methods, **targets}
