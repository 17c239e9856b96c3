"""The Command Center's DPO package: pairs of rated widgets, trainer, export and learner by their
names, on our own verbs.

    from thumbwheel.compat.command_center import CommandCenterDPOTrainer, prepare_training_dataset

    dataset = prepare_training_dataset("file", "exhaustive_data.json", "ratings.json")
    trainer = CommandCenterDPOTrainer(config_name="small_gpu")
    result = trainer.train(dataset["train"], dataset.get("validation"))
"""

from typing import TYPE_CHECKING

from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.command_center.ab_test import OllamaABTest
    from thumbwheel.compat.command_center.exporting import export_to_ollama
    from thumbwheel.compat.command_center.learner import (
        OnlineLearner,
        get_online_learner,
        init_online_learner,
    )
    from thumbwheel.compat.command_center.pairs import (
        DPOPair,
        build_fixture_dpo_pairs,
        build_widget_dpo_pairs,
        prepare_training_dataset,
    )
    from thumbwheel.compat.command_center.training import CommandCenterDPOTrainer, TrainingResult
    from thumbwheel.compat.exporting import ExportResult

__all__ = [
    "CommandCenterDPOTrainer",
    "DPOPair",
    "ExportResult",
    "OllamaABTest",
    "OnlineLearner",
    "TrainingResult",
    "build_fixture_dpo_pairs",
    "build_widget_dpo_pairs",
    "export_to_ollama",
    "get_online_learner",
    "init_online_learner",
    "prepare_training_dataset",
]

__getattr__ = lazy(
    __name__,
    ".pairs",
    ".training",
    ".exporting",
    ".learner",
    ".ab_test",
)
