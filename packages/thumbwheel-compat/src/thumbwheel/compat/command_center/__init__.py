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
    from thumbwheel.compat.command_center.config import (
        DPO_CONFIG,
        GGUF_CONFIG,
        MODEL_CONFIG,
        ONLINE_LEARNING_CONFIG,
        QLORA_CONFIG,
        TRAINING_DATA_CONFIG,
        get_config,
    )
    from thumbwheel.compat.command_center.exporting import (
        convert_to_gguf,
        create_ollama_modelfile,
        delete_ollama_model,
        export_to_ollama,
        find_llama_cpp,
        get_export_status,
        list_ollama_models,
        merge_lora_weights,
        register_with_ollama,
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
        shutdown_online_learner,
    )
    from thumbwheel.compat.command_center.pairs import (
        DPOPair,
        build_combined_dpo_pairs,
        build_dataset_from_db,
        build_dataset_from_files,
        build_fixture_dpo_pairs,
        build_widget_dpo_pairs,
        load_entries_from_file,
        load_ratings_from_file,
        pairs_to_hf_dataset,
        prepare_training_dataset,
    )
    from thumbwheel.compat.command_center.training import (
        CommandCenterDPOTrainer,
        TrainingResult,
        train_from_config,
    )
    from thumbwheel.compat.exporting import ExportResult

__all__ = [
    "DPO_CONFIG",
    "GGUF_CONFIG",
    "MODEL_CONFIG",
    "ONLINE_LEARNING_CONFIG",
    "QLORA_CONFIG",
    "TRAINING_DATA_CONFIG",
    "CommandCenterDPOTrainer",
    "DPOPair",
    "ExportResult",
    "FeedbackSample",
    "OllamaABTest",
    "OnlineLearner",
    "TrainingResult",
    "build_combined_dpo_pairs",
    "build_dataset_from_db",
    "build_dataset_from_files",
    "build_fixture_dpo_pairs",
    "build_widget_dpo_pairs",
    "convert_to_gguf",
    "create_ollama_modelfile",
    "delete_ollama_model",
    "export_to_ollama",
    "find_llama_cpp",
    "format_fixture_selection_prompt",
    "format_fixture_selection_response",
    "format_widget_selection_prompt",
    "format_widget_selection_response",
    "get_config",
    "get_dataset_stats",
    "get_export_status",
    "get_online_learner",
    "init_online_learner",
    "list_ollama_models",
    "load_entries_from_file",
    "load_pairs_from_jsonl",
    "load_ratings_from_file",
    "merge_entries_with_ratings",
    "merge_lora_weights",
    "pairs_to_hf_dataset",
    "pairs_to_jsonl",
    "prepare_training_dataset",
    "register_with_ollama",
    "shutdown_online_learner",
    "train_from_config",
]

__getattr__ = lazy(
    __name__,
    ".config",
    ".pairs",
    ".training",
    ".exporting",
    ".formatting",
    ".learner",
    ".ab_test",
)
