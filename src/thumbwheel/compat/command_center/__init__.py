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
    from thumbwheel.compat.command_center.exporting import (
        create_ollama_modelfile,
        export_to_ollama,
    )
    from thumbwheel.compat.command_center.formatting import (
        format_fixture_selection_prompt,
        format_fixture_selection_response,
        format_widget_selection_prompt,
        format_widget_selection_response,
        get_dataset_stats,
        load_pairs_from_jsonl,
        merge_entries_with_ratings,
        pairs_to_jsonl,
    )
    from thumbwheel.compat.command_center.learner import (
        FeedbackSample,
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
    "FeedbackSample",
    "OllamaABTest",
    "OnlineLearner",
    "TrainingResult",
    "build_fixture_dpo_pairs",
    "build_widget_dpo_pairs",
    "create_ollama_modelfile",
    "export_to_ollama",
    "format_fixture_selection_prompt",
    "format_fixture_selection_response",
    "format_widget_selection_prompt",
    "format_widget_selection_response",
    "get_dataset_stats",
    "get_online_learner",
    "init_online_learner",
    "load_pairs_from_jsonl",
    "merge_entries_with_ratings",
    "pairs_to_jsonl",
    "prepare_training_dataset",
]

__getattr__ = lazy(
    __name__,
    ".pairs",
    ".training",
    ".exporting",
    ".formatting",
    ".learner",
    ".ab_test",
)
