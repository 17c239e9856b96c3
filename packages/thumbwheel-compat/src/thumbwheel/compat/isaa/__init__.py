"""The RL pipeline of the isaa agent: its classes by their names, on our own verbs.

from thumbwheel.compat.isaa import CheckpointLoader, KTODatasetBuilder, RLTrainer, TrainingConfig

examples = KTODatasetBuilder().build_from_checkpoints(CheckpointLoader("isaa"))
trainer = RLTrainer(TrainingConfig(base_model="Qwen/Qwen2.5-0.5B-Instruct", method="kto"))
trainer.train(examples)
trainer.save_model()

`TraceCollector`, `hook_into_agent` and the classes of a trace run in the agent's own process. They
import nothing but `thumbwheel.sdk`.
"""

from typing import TYPE_CHECKING

from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.isaa.agent_tools import (
        RLTrainingManager,
        TrainingSession,
        TrainingState,
        check_training_status,
        get_rl_training_tools,
        list_rl_models,
        register_rl_tools,
        start_rl_training,
        stop_rl_training,
        switch_rl_model,
    )
    from thumbwheel.compat.isaa.checkpoints import CheckpointLoader
    from thumbwheel.compat.isaa.collector import TraceCollector
    from thumbwheel.compat.isaa.datasets import (
        DatasetPipeline,
        GRPODatasetBuilder,
        GRPOExample,
        KTODatasetBuilder,
        KTOExample,
    )
    from thumbwheel.compat.isaa.exporting import (
        ExportPipeline,
        GGUFExporter,
        GGUFQuantization,
        OllamaDeployer,
        OllamaHostingProfile,
        quick_export,
    )
    from thumbwheel.compat.isaa.hardware import (
        HardwareConfig,
        HardwareProfile,
        detect_hardware,
        get_ryzen_optimized_config,
    )
    from thumbwheel.compat.isaa.hook import hook_into_agent
    from thumbwheel.compat.isaa.pipeline import TrainingPipeline
    from thumbwheel.compat.isaa.rewards import (
        BaseReward,
        CodeExecutionReward,
        EfficiencyReward,
        FormatComplianceReward,
        LearnedReward,
        RewardEngine,
        RewardResult,
        SyntaxValidationReward,
        TaskCompletionReward,
        ToolSuccessReward,
    )
    from thumbwheel.compat.isaa.tracefile import ExecutionTrace, ReasoningStep, ToolCallTrace
    from thumbwheel.compat.isaa.training import RLTrainer, TrainingConfig

__all__ = [
    "BaseReward",
    "CheckpointLoader",
    "CodeExecutionReward",
    "DatasetPipeline",
    "EfficiencyReward",
    "ExecutionTrace",
    "ExportPipeline",
    "FormatComplianceReward",
    "GGUFExporter",
    "GGUFQuantization",
    "GRPODatasetBuilder",
    "GRPOExample",
    "HardwareConfig",
    "HardwareProfile",
    "KTODatasetBuilder",
    "KTOExample",
    "LearnedReward",
    "OllamaDeployer",
    "OllamaHostingProfile",
    "RLTrainer",
    "RLTrainingManager",
    "ReasoningStep",
    "RewardEngine",
    "RewardResult",
    "SyntaxValidationReward",
    "TaskCompletionReward",
    "ToolCallTrace",
    "ToolSuccessReward",
    "TraceCollector",
    "TrainingConfig",
    "TrainingPipeline",
    "TrainingSession",
    "TrainingState",
    "check_training_status",
    "detect_hardware",
    "get_rl_training_tools",
    "get_ryzen_optimized_config",
    "hook_into_agent",
    "list_rl_models",
    "quick_export",
    "register_rl_tools",
    "start_rl_training",
    "stop_rl_training",
    "switch_rl_model",
]

__getattr__ = lazy(
    __name__,
    ".tracefile",
    ".collector",
    ".hook",
    ".checkpoints",
    ".hardware",
    ".rewards",
    ".datasets",
    ".training",
    ".exporting",
    ".pipeline",
    ".agent_tools",
)
