"""Scripts of the systems that this one replaces: every class and function that they import exists
under its name and does its work."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.servers.llama_tools import needs
from tests.servers.ollama_server import OllamaEmulator
from thumbwheel import compat
from thumbwheel.compat import isaa, n3
from thumbwheel.core.errors import ConfigError, Conflict, DataError, InputError, NotFound

ISAA = [
    "HardwareConfig",
    "HardwareProfile",
    "detect_hardware",
    "get_ryzen_optimized_config",
    "ExecutionTrace",
    "ToolCallTrace",
    "ReasoningStep",
    "TraceCollector",
    "CheckpointLoader",
    "hook_into_agent",
    "BaseReward",
    "RewardResult",
    "RewardEngine",
    "CodeExecutionReward",
    "SyntaxValidationReward",
    "ToolSuccessReward",
    "TaskCompletionReward",
    "EfficiencyReward",
    "FormatComplianceReward",
    "LearnedReward",
    "KTOExample",
    "GRPOExample",
    "KTODatasetBuilder",
    "GRPODatasetBuilder",
    "DatasetPipeline",
    "TrainingConfig",
    "RLTrainer",
    "TrainingPipeline",
    "GGUFExporter",
    "GGUFQuantization",
    "OllamaDeployer",
    "OllamaHostingProfile",
    "ExportPipeline",
    "quick_export",
    "RLTrainingManager",
    "TrainingSession",
    "TrainingState",
    "start_rl_training",
    "stop_rl_training",
    "check_training_status",
    "switch_rl_model",
    "list_rl_models",
    "get_rl_training_tools",
    "register_rl_tools",
]
N3 = [
    "RLHFTrainer",
    "TrainingConfig",
    "TrainingResult",
    "DatasetConfig",
    "RewardModel",
    "RewardModelConfig",
    "RewardModelHead",
    "PolicyModel",
    "train_reward_model",
    "FeedbackDataset",
    "prepare_feedback_dataset",
    "prepare_ppo_dataset",
    "FeedbackExample",
    "PPODataset",
    "save_dataset",
    "load_dataset",
]


@pytest.mark.parametrize(
    ("system", "name"), [*(("isaa", name) for name in ISAA), *(("n3", name) for name in N3)]
)
def test_every_name_is_there(system: str, name: str) -> None:
    module = importlib.import_module(f"thumbwheel.compat.{system}")
    assert name in module.__all__ and name in compat.__all__
    if (system, name) != ("n3", "TrainingConfig"):
        assert getattr(compat, name) is getattr(module, name)


def run(
    number: int, label: bool | None = None, answer: str = "Fine.", **fields: Any
) -> isaa.ExecutionTrace:
    query = fields.pop("user_query", f"Question {number}?")
    return isaa.ExecutionTrace(
        f"t{number}", user_query=query, final_response=answer, label=label, **fields
    )


class TestHardware:
    def test_the_ryzen_preset_has_the_values_of_the_report(self) -> None:
        config = isaa.get_ryzen_optimized_config()
        assert (config.cpu_cores, config.cpu_threads, config.ram_gb, config.available_ram_gb) == (
            16,
            32,
            40.0,
            32.0,
        )
        assert (
            config.recommended_batch_size,
            config.lora_r,
            config.lora_alpha,
            config.num_generations,
        ) == (2, 16, 32, 6)
        assert (
            config.use_bf16
            and config.has_avx2
            and config.profile is isaa.HardwareProfile.RYZEN_OPTIMIZED
        )
        assert config.to_training_args()["gradient_accumulation_steps"] == 4
        assert config.to_grpo_config() == {
            "num_generations": 6,
            "max_completion_length": 256,
            "use_vllm": False,
        }

    @pytest.mark.parametrize(
        ("ram", "row"),
        [
            (64, (4, "3B", 16, 32, 8)),
            (32, (2, "1.5B", 16, 32, 6)),
            (16, (1, "0.5B", 8, 16, 4)),
            (8, (1, "0.5B", 4, 8, 2)),
        ],
    )
    def test_tiers_by_memory(self, ram: float, row: tuple[Any, ...]) -> None:
        config = isaa.HardwareConfig(ram_gb=ram)
        derived = (
            config.recommended_batch_size,
            config.recommended_model_size,
            config.lora_r,
            config.lora_alpha,
            config.num_generations,
        )
        assert derived == row
        assert config.profile is isaa.HardwareProfile.CPU_ONLY  # which the original never said

    def test_a_gpu_and_a_given_value_win(self) -> None:
        config = isaa.HardwareConfig(has_gpu=True, cuda_available=True, gpu_vram_gb=24, lora_r=64)
        assert (config.recommended_model_size, config.recommended_batch_size, config.lora_r) == (
            "7B",
            8,
            64,
        )
        assert (config.get_training_device(), config.get_torch_dtype()) == ("cuda", "float16")

    @pytest.mark.parametrize(
        "settings",
        [
            {"has_gpu": True, "cuda_available": True, "profile": isaa.HardwareProfile.CPU_ONLY},
            {"has_gpu": True, "cuda_available": False},
        ],
    )
    def test_a_gpu_that_is_not_to_be_used_decides_nothing(self, settings: dict[str, Any]) -> None:
        config = isaa.HardwareConfig(ram_gb=16, gpu_vram_gb=24, has_avx512=True, **settings)
        assert config.profile is isaa.HardwareProfile.CPU_ONLY
        assert (config.recommended_model_size, config.recommended_batch_size) == ("0.5B", 1)
        assert (config.get_training_device(), config.get_torch_dtype()) == ("cpu", "bfloat16")
        arguments = config.to_training_args()
        assert (arguments["use_cpu"], arguments["bf16"], arguments["fp16"]) == (True, True, False)
        assert isaa.TrainingConfig.from_hardware_config(config).use_cpu

    def test_this_machine(self, tmp_path: Path) -> None:
        config = isaa.detect_hardware(str(tmp_path / "not" / "there"))
        assert config.cpu_threads >= 1 and config.ram_gb > 0 and config.storage_free_gb > 0
        assert not (tmp_path / "not").exists()
        assert "LoRA r" in config.summary()


class TestRewards:
    def test_group_normalisation(self) -> None:
        class Given(isaa.BaseReward):
            def compute(self, trace: isaa.ExecutionTrace) -> isaa.RewardResult:
                return isaa.RewardResult(float(trace.final_response))

        engine = isaa.RewardEngine([Given()])
        values = engine.compute_for_group([run(number, answer=str(number)) for number in (1, 2, 3)])
        assert values == pytest.approx([-1.2247, 0.0, 1.2247], abs=1e-4)

    def test_a_faultless_plain_answer(self) -> None:
        """4.75 of 8 in the old arithmetic, which called it bad; here what does not apply is left
        out, and it is good."""
        plain = run(1, answer="Nine to five.", total_tokens_in=0, total_tokens_out=0)
        old = isaa.RewardEngine(arithmetic="isaa")
        assert old.compute_combined(plain) == pytest.approx(4.75 / 8)
        assert old.get_binary_label(plain) is False
        assert isaa.RewardEngine().get_binary_label(plain) is True

    def test_tools_tasks_and_format(self) -> None:
        call = isaa.ToolCallTrace
        trace = run(
            1,
            answer="<b>bold</b>",
            tool_calls=[
                call("search", success=True, result="found"),
                call("file", success=False, error="no such file"),
            ],
            tasks_created=[{"task_id": "a"}, {"task_id": "b"}],
            tasks_completed=[{"task_id": "a"}],
        )
        results = isaa.RewardEngine().compute_all(trace)
        assert results["tool_success"].score == 0.5
        assert results["task_completion"].score == 0.5
        assert (
            results["format_compliance"].score is not None
            and results["format_compliance"].score < 1
        )
        assert (
            results["code_execution"].score is None
            and results["code_execution"].to_binary() is None
        )
        assert "tool_success: 0.500" in isaa.RewardEngine().summary(trace)

    def test_a_reward_that_raises_does_not_end_the_others(self) -> None:
        class Broken(isaa.BaseReward):
            name = "broken"

            def compute(self, trace: isaa.ExecutionTrace) -> isaa.RewardResult:
                raise RuntimeError("no")

        engine = isaa.RewardEngine([Broken(), isaa.FormatComplianceReward()])
        assert engine.compute_all(run(1))["broken"].error == "RuntimeError: no"
        assert engine.compute_combined(run(1)) == 1.0

    def test_code_never_runs_without_the_sandbox(self) -> None:
        with pytest.raises(InputError, match="sandbox"):
            isaa.CodeExecutionReward(sandbox=False)

    def test_patterns_are_learned_kept_and_checked(self, tmp_path: Path) -> None:
        good = [
            run(n, True, tool_calls=[isaa.ToolCallTrace("search", success=True)]) for n in range(10)
        ]
        bad = [
            run(n, False, tool_calls=[isaa.ToolCallTrace("guess", success=False)])
            for n in range(10, 20)
        ]
        path = tmp_path / "patterns.json"
        reward = isaa.LearnedReward(path)
        with pytest.raises(InputError, match="at least 10"):
            reward.learn_from_traces(good)
        reward.learn_from_traces([*good, *bad])
        assert json.loads(path.read_text())["positive"][0] == {
            "type": "tool_usage",
            "tool": "search",
            "frequency": 1.0,
        }
        again = isaa.LearnedReward(path)
        assert again.compute(good[0]).score == 1.0 and again.compute(bad[0]).score == 0.0
        assert again.compute(run(1)).score is None
        path.write_text('{"positive": 3}')
        with pytest.raises(InputError, match="no learned patterns"):
            isaa.LearnedReward(path)


class TestDatasets:
    TRACES = (run(1, True), run(2, False), run(3, True), run(4, True, answer="Gut, schön."))

    def test_kto_examples_are_balanced_and_do_not_depend_on_order(self, tmp_path: Path) -> None:
        builder = isaa.KTODatasetBuilder(system_prompt="Be brief.")
        examples = builder.build_dataset(self.TRACES)
        assert sorted(example.label for example in examples) == [False, True]
        assert examples == builder.build_dataset(self.TRACES[::-1])
        assert all(
            example.prompt.startswith("Be brief.\n\nUser: Question ") for example in examples
        )
        whole = builder.build_dataset(self.TRACES, balance=False)
        for name in ("d.jsonl", "d.json"):
            builder.save_dataset(whole, tmp_path / name, name.partition(".")[2])
            assert builder.load_dataset(tmp_path / name) == whole
        assert builder.get_statistics(whole)["balance_ratio"] == 3.0
        assert builder.get_statistics([])["avg_prompt_length"] is None
        assert builder.to_hf_dataset(whole).column_names == ["prompt", "completion", "label"]

    def test_a_manual_label_wins_and_no_reward_is_no_example(self) -> None:
        engine = isaa.RewardEngine([isaa.ToolSuccessReward()])
        builder = isaa.KTODatasetBuilder(engine)
        failing = [isaa.ToolCallTrace("search", success=False)]
        assert builder.trace_to_example(run(1, True, tool_calls=failing)).label is True
        assert builder.trace_to_example(run(1, None, tool_calls=failing)).label is False
        assert builder.trace_to_example(run(1, None)) is None

    def test_grpo_groups_keep_the_question_as_it_was_asked(self) -> None:
        traces = [
            run(n, label, f"answer {n}", user_query=text)
            for n, (label, text) in enumerate([(True, "Is it  OPEN?"), (False, "is it open?")])
        ]
        builder = isaa.GRPODatasetBuilder()
        (example,) = builder.build_dataset(traces)
        assert example.prompt == "User: Is it  OPEN?" and sorted(example.rewards) == [-1.0, 1.0]
        assert builder.get_statistics([example])["avg_completions_per_prompt"] == 2
        assert builder.build_dataset([traces[0]]) == []

    def test_fresh_answers_of_an_agent(self) -> None:
        async def answer(query: str) -> str:
            answer.calls += 1
            if answer.calls == 2:
                raise RuntimeError("busy")
            return "<b>x</b>" if answer.calls == 1 else "x"

        answer.calls = 0
        builder = isaa.GRPODatasetBuilder(isaa.RewardEngine([isaa.FormatComplianceReward()]))
        (example,) = builder.build_synthetic_groups([run(1)], answer)
        assert (
            example.completions == ["<b>x</b>", "x", "x"]
            and example.rewards[0] < 0 < example.rewards[1]
        )

    def test_a_pipeline_over_trace_files(self, tmp_path: Path) -> None:
        collector = isaa.TraceCollector(tmp_path / "rl_traces")
        for number in range(3):
            collector.start_trace("s", f"Question {number}?")
            trace = collector.finish_trace("Fine.")
            collector.label_trace(trace.trace_id, number > 0)
        pipeline = isaa.DatasetPipeline(
            "isaa", tmp_path / "rl_traces", checkpoint_path=tmp_path / "checkpoints"
        )
        assert len(pipeline.collect_all_traces()) == 3
        assert len(pipeline.build_kto_dataset(tmp_path / "kto.jsonl", balance=False)) == 3
        assert pipeline.build_grpo_dataset(tmp_path / "grpo.jsonl") == []
        statistics = pipeline.get_pipeline_statistics()
        assert statistics["collector"]["positive_labels"] == 2 and statistics["checkpoints"] == {
            "count": 0,
            "total_size_mb": 0,
        }


class TestTrainingConfig:
    def test_saved_and_loaded_with_every_field(self, tmp_path: Path) -> None:
        config = isaa.TrainingConfig.from_hardware_config(
            isaa.get_ryzen_optimized_config(), method="kto", desirable_weight=2.0
        )
        config.save(tmp_path / "training_config.json")
        assert isaa.TrainingConfig.load(tmp_path / "training_config.json") == config
        assert (
            config.per_device_batch_size,
            config.gradient_accumulation_steps,
            config.lora_r,
        ) == (2, 4, 16)
        assert config.options()["desirable_weight"] == 2.0

    def test_what_cannot_be_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="lora_rank"):
            isaa.TrainingConfig.from_hardware_config(isaa.get_ryzen_optimized_config(), lora_rank=3)
        with pytest.raises(ConfigError, match="sft"):
            isaa.RLTrainer(isaa.TrainingConfig(method="sft", output_dir=str(tmp_path)))
        trainer = isaa.RLTrainer(isaa.TrainingConfig(method="kto", output_dir=str(tmp_path)))
        with pytest.raises(Conflict, match="no training has finished"):
            trainer.save_model()


class TestExport:
    def test_modelfile_and_profiles(self) -> None:
        deployer = isaa.OllamaDeployer(host="127.0.0.1:1")
        text = deployer.create_modelfile("m.gguf", 'Say "hi".', stop_tokens=["<|im_end|>"])
        assert text.startswith("FROM m.gguf\nSYSTEM ") and "PARAMETER stop <|im_end|>" in text
        profile = deployer.get_ryzen_profile(16)
        assert (profile.num_parallel, profile.num_thread, profile.flash_attn) == (4, 14, False)
        assert (
            "OLLAMA_NUM_THREAD" not in profile.to_env()
            and profile.to_parameters()["num_thread"] == 14
        )

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        exporter = isaa.GGUFExporter(tmp_path / "model")
        with pytest.raises(NotFound, match="no model"):
            exporter.convert("f16")
        with pytest.raises(InputError, match="Q9"):
            exporter.convert("Q9")
        results = isaa.ExportPipeline(tmp_path / "model", host="127.0.0.1:1").run("f16")
        assert (
            not results["success"]
            and json.loads((tmp_path / "export/export_results.json").read_text())["error"]
            == results["error"]
        )
        assert (
            exporter.get_recommended_quantization(8.0) == "Q4_K_M"
            and isaa.GGUFQuantization.available()["Q8_0"].bits == 8.0
        )


class TestScores:
    ROWS = tuple(
        {"prompt": f"Question {n}?", "response": "Yes.", "score": score, "runId": f"r{n}"}
        for n, score in enumerate((0.5, 0.6, 0.7, 0.8, 0.9))
    )

    def test_normalisation(self) -> None:
        dataset = n3.FeedbackDataset(self.ROWS)
        assert [dataset.score(index) for index in range(5)] == pytest.approx([-1, -0.5, 0, 0.5, 1])
        assert self.ROWS[0]["score"] == 0.5
        raw = n3.FeedbackDataset(self.ROWS, normalize_scores=False)
        assert [raw.score(index) for index in range(5)] == [0.5, 0.6, 0.7, 0.8, 0.9]
        same = n3.FeedbackDataset([{"prompt": "a", "response": "b", "score": 0.7}] * 2)
        assert same.score(0) == 0.7

    def test_split_by_prompt_with_the_scale_of_training(self) -> None:
        rows = [
            {"prompt": f"Question {n // 2}?", "response": f"Answer {n}.", "score": n / 200}
            for n in range(200)
        ]
        train, validation = n3.prepare_feedback_dataset(rows)
        assert (len(train), len(validation)) == (160, 40)
        assert not {example.prompt for example in train.examples} & {
            example.prompt for example in validation.examples
        }
        assert validation.scale == train.scale
        assert [e.prompt for e in n3.prepare_feedback_dataset(rows[::-1])[1].examples] == [
            e.prompt for e in validation.examples
        ][::-1]

    def test_files(self, tmp_path: Path) -> None:
        dataset = n3.FeedbackDataset(self.ROWS)
        n3.save_dataset(dataset, tmp_path / "d.json")
        loaded = n3.load_dataset(tmp_path / "d.json")
        assert [loaded.score(index) for index in range(5)] == pytest.approx([-1, -0.5, 0, 0.5, 1])
        assert loaded.examples[0].run_id == "r0"

    def test_token_ids_and_prompts(self) -> None:
        from torch.utils.data import DataLoader

        from tests.models.tiny_models import tiny_tokenizer

        dataset = n3.FeedbackDataset(
            [*self.ROWS[:2], {"prompt": "A longer one?", "response": "It is.", "score": 0.1}],
            tiny_tokenizer(),
        )
        batch = next(iter(DataLoader(dataset, batch_size=3)))
        assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 512)
        assert batch["attention_mask"][0, -1] == 0
        assert batch["score"].tolist() == pytest.approx([0.6, 1.0, -1.0])
        assert batch["prompt"][2] == "A longer one?"
        prompts = n3.prepare_ppo_dataset([*self.ROWS, *self.ROWS], tiny_tokenizer(), 3)
        assert len(prompts) == 5 and len(prompts[0]["input_ids"]) == 3

    @pytest.mark.parametrize("score", [math.nan, math.inf, "good", None])
    def test_a_score_that_is_none(self, score: Any) -> None:
        with pytest.raises(InputError, match=r"score|feedback row"):
            n3.FeedbackDataset([{"prompt": "a", "response": "b", "score": score}])

    def test_the_estimate_of_fifteen_posts(self) -> None:
        rows = [
            {"prompt": f"p{n}", "response": "r", "score": (0.5, 0.6, 0.7, 0.8, 0.9)[n % 5]}
            for n in range(15)
        ]
        estimate = n3.RLHFTrainer().estimate_training(rows)
        assert (
            estimate["feedback_count"],
            round(estimate["score_mean"], 4),
            round(estimate["score_std"], 4),
        ) == (15, 0.7, 0.1414)

    @pytest.mark.parametrize("field", ["prompt", "response"])
    def test_what_is_no_text_is_refused(self, field: str) -> None:
        row = {"prompt": "Open?", "response": "", "score": 0.5}
        assert n3.FeedbackDataset([row]).examples[0].response == ""
        with pytest.raises(InputError, match=f"{field} None is no text"):
            n3.FeedbackDataset([row | {field: None}])

    def test_no_rows_are_no_training(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="nothing to train on"):
            n3.train_reward_model(n3.FeedbackDataset([]), output_dir=tmp_path)

    def test_settings_of_theirs_are_settings_of_ours(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = n3.TrainingConfig().options(tmp_path)
        assert options["max_length"] == 256 + 128
        assert (options["top_k"], options["top_p"], options["lora_dropout"]) == (50, 0.95, 0.1)
        warmup = n3.RewardModelConfig(lora_dropout=0.1, warmup_steps=2, num_epochs=1)
        assert warmup.options(rows=80)["warmup_ratio"] == 0.2
        assert warmup.options(rows=80)["lora_dropout"] == 0.1
        late = n3.RewardModelConfig(warmup_steps=100, num_epochs=1)
        assert late.options(rows=80)["warmup_ratio"] == 0.5
        assert "warmup_steps 100 of 10 steps" in capsys.readouterr().err


def test_checkpoints_become_traces(tmp_path: Path, checkpoints: Path) -> None:
    loader = isaa.CheckpointLoader("isaa", checkpoints)
    traces = loader.load_all_traces()
    assert [(trace.user_query, trace.final_response) for trace in traces] == [
        ("Opening hours?", "Nine to five."),
        ("Sunday?", "Closed."),
    ]
    assert traces[0].tool_calls[0].tool_name == "look_up"
    assert len(loader.load_all_traces(deduplicate=False)) == 3
    assert (
        loader.get_statistics()["unique_sessions"] == 1
        and loader.get_statistics()["total_tokens_in"] is None
    )
    assert loader.discover_all_agents() == ["isaa"]
    of_all = isaa.CheckpointLoader(checkpoint_path=checkpoints.parent)
    assert of_all.discover_all_agents() == ["isaa"]
    assert [trace.trace_id for trace in of_all.load_all_traces()] == [
        trace.trace_id for trace in traces
    ]
    assert len(of_all.list_checkpoints()) == 2
    assert of_all.get_statistics()["agents_discovered"] == ["isaa"]
    assert loader.generate_synthetic_tasks(1) == [
        {"prompt": "Opening hours?", "category": "general_tasks", "source": "checkpoint_derived"}
    ]


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints of one session, the second one further; their class is gone when they are
    read."""
    name = "toolboxv2.mods.isaa.base.Agent.types"
    folder = tmp_path / "checkpoint" / "isaa"
    folder.mkdir(parents=True)
    history = [
        {"role": "user", "content": "Opening hours?", "timestamp": "2026-01-05T08:30:00"},
        {"role": "tool", "name": "look_up", "content": "9-17", "timestamp": "2026-01-05T08:30:01"},
        {"role": "assistant", "content": "Nine to five.", "timestamp": "2026-01-05T08:30:02"},
        {"role": "user", "content": "Sunday?", "timestamp": "2026-01-05T08:31:00"},
        {"role": "assistant", "content": "Closed.", "timestamp": "2026-01-05T08:31:02"},
    ]
    kind = dataclasses.make_dataclass("AgentCheckpoint", ["session_data"])
    kind.__module__, kind.__qualname__ = name, "AgentCheckpoint"
    with monkeypatch.context() as patch:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ".".join(parts[:count])
            patch.setitem(sys.modules, module, types.ModuleType(module))
        sys.modules[name].AgentCheckpoint = kind  # type: ignore[attr-defined]
        for number, length in enumerate((3, 5)):
            checkpoint = kind({"s1": {"history": history[:length], "session_type": "chatsession"}})
            (folder / f"agent_checkpoint_2026010{number}_083000.pkl").write_bytes(
                pickle.dumps(checkpoint)
            )
    return folder


@pytest.mark.slow
def test_a_trainer_trains_and_writes_a_model(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    base = tiny_base(tmp_path / "base")
    examples = [
        isaa.KTOExample(
            f"Be brief.\n\nUser: Question {n}?", "Yes." if n % 2 else "No.", bool(n % 2)
        )
        for n in range(30)
    ]
    config = isaa.TrainingConfig(
        str(base),
        str(tmp_path / "kto"),
        "kto",
        num_epochs=1,
        max_seq_length=128,
        lora_target_modules=[],
    )
    trainer = isaa.RLTrainer(config).setup()
    trainer.train_kto(examples)
    folder = Path(trainer.save_model())
    assert (folder / "model.safetensors").is_file()
    assert json.loads((folder / "training_stats.json").read_text())["total_steps"] > 0
    assert "kto over" in trainer.get_training_summary()
    measured = trainer.evaluate()
    assert measured["base"]["eval_loss"] > 0 and measured["best"]["eval_loss"] > 0
    again = isaa.RLTrainer(config)
    others = [
        isaa.KTOExample(f"User: Other {n}?", "Yes." if n % 2 else "No.", bool(n % 2))
        for n in range(24)
    ]
    metrics = again.train(others).metrics
    assert metrics["train_rows"] + metrics["dev_rows"] <= 24, (
        "a second training in a folder has rows of its own"
    )
    assert again.save_model(tmp_path / "again") == str(tmp_path / "again")


@pytest.mark.slow
def test_a_group_trainer_trains_on_recorded_answers(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    base = tiny_base(tmp_path / "base")
    examples = [
        isaa.GRPOExample(f"User: Question {n}?", ["Yes.", "No."], [1.0, -1.0]) for n in range(24)
    ]
    config = isaa.TrainingConfig(
        str(base), str(tmp_path / "grpo"), num_epochs=1, max_seq_length=128, lora_target_modules=[]
    )
    trainer = isaa.RLTrainer(config)
    trainer.train(trainer_rows := isaa.GRPODatasetBuilder().to_hf_dataset(examples))
    assert len(trainer_rows) == 24 and trainer.training_stats["total_steps"] > 0


@pytest.mark.slow
def test_scores_become_a_reward_model_and_a_policy(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    base = str(tiny_base(tmp_path / "base"))
    rows = [
        {
            "prompt": f"Question {n // 2}?",
            "response": ("Yes.", "No.")[n % 2],
            "score": (0.9, 0.2)[n % 2],
        }
        for n in range(60)
    ]
    config = n3.TrainingConfig(base, max_steps=1, batch_size=4, mini_batch_size=2, max_new_tokens=8)
    config.reward_model_config = n3.RewardModelConfig(base, num_epochs=2)
    result = n3.RLHFTrainer(config).train(rows, tmp_path / "out")
    assert Path(result.model_path, "model.safetensors").is_file() and result.training_steps == 1
    assert n3.TrainingResult.load(tmp_path / "out" / "training_results.json") == result
    judge = n3.RewardModel.load_pretrained(str(result.reward_model_path))
    assert judge.score("Question 1?", "Yes.") > judge.score("Question 1?", "No.")
    reused = n3.RLHFTrainer(config).train(rows, tmp_path / "again", result.reward_model_path)
    assert reused.training_steps == 1

    # more feedback in another order, and people now say the opposite
    rows = [row | {"score": 1 - row["score"]} for row in reversed(rows)]
    rows += [row | {"prompt": f"{row['prompt']} Please."} for row in rows]
    retrained = n3.RLHFTrainer(config).train(rows, tmp_path / "out")
    judge = n3.RewardModel.load_pretrained(str(retrained.reward_model_path))
    assert judge.score("Question 1?", "Yes.") < judge.score("Question 1?", "No.")
    assert (result.feedback_count, retrained.feedback_count) == (60, 120)
    assert Path(retrained.model_path) == tmp_path / "out" / "policy"


@pytest.mark.slow
def test_scores_that_are_not_normalised_are_learned_as_they_are(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    base = str(tiny_base(tmp_path / "base"))
    rows = []
    for number in range(60):
        score = (0.9, 0.7)[number % 2]
        response = ("Yes.", "No.")[number % 2]
        rows.append({"prompt": f"Question {number // 2}?", "response": response, "score": score})
    train, validation = n3.prepare_feedback_dataset(rows, normalize_scores=False)
    config = n3.RewardModelConfig(base, num_epochs=2)
    model = n3.train_reward_model(train, validation, config, output_dir=tmp_path / "out")
    scale = model._scorer().card.scale
    assert scale is not None and (scale.low, scale.high) == (-1.0, 1.0)


@pytest.mark.slow
def test_a_folder_goes_to_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.llama_tools import wide_base

    needs("converter", "library", "bindings", "llama-server")
    model = wide_base(tmp_path / "model")
    with OllamaEmulator(tmp_path / "ollama") as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert isaa.quick_export(model, "toolbox-isaa", "F16") == "toolbox-isaa"
        deployer = isaa.OllamaDeployer()
        assert "toolbox-isaa:latest" in [entry["name"] for entry in deployer.list_models()]
        assert isinstance(deployer.run_model("toolbox-isaa", "hello"), str)
        assert deployer.delete_model("toolbox-isaa") and not deployer.delete_model("toolbox-isaa")
    results = json.loads((tmp_path / "export/export_results.json").read_text())
    assert results["success"] and results["gguf_size_mb"] > 0
