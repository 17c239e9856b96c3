"""The quick start of an agent's pipeline as its users type it: record by a hook, then train, in one
home and without a path."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import types
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat import isaa
from thumbwheel.compat.isaa import (
    CheckpointLoader,
    HardwareConfig,
    HardwareProfile,
    RLTrainer,
    TraceCollector,
    TrainingConfig,
    TrainingPipeline,
    hook_into_agent,
)
from thumbwheel.core.errors import ConfigError, Conflict, InputError, ThumbwheelError
from thumbwheel.importers.detect import Options
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards.label import signals


@pytest.fixture(autouse=True)
def scripts_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts' own folder, with a home in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class FlowAgent:
    """An agent with the two methods; every second answer to a question breaks the form."""

    def __init__(self) -> None:
        self.runs = 0

    async def a_run(self, query: str, session_id: str = "default", **options: Any) -> str:
        self.runs += 1
        await self.arun_function("search", query)
        return f"It is {len(query)}." if self.runs % 2 else f"It is <b>{len(query)}</b>."

    async def arun_function(self, function_name: str, *args: Any) -> str:
        return "nothing" if self.runs % 2 else "found"


def record(questions: int, label: bool) -> TraceCollector:
    """Record two runs of every question by the snippet with nothing changed."""
    collector = TraceCollector()
    agent = FlowAgent()
    hook_into_agent(agent, collector)

    async def ask() -> None:
        for number in range(questions):
            for _ in range(2):
                query = f"Where is {'abcdefghijkl'[number % 12] * (number + 1)}?"
                await agent.a_run(query, session_id=f"s{number}")

    asyncio.run(ask())
    if label:
        for trace in collector.load_traces():
            collector.label_trace(trace.trace_id, "<b>" not in trace.final_response)
    return collector


def traces_of(home: Path, agent: str = "isaa") -> tuple[int, list[str]]:
    """How many traces an agent has, and the kinds of feedback."""
    from thumbwheel.capture.trace_queries import count

    with opener(home, None, "warning")() as ws, ws.db.read() as connection:
        learner = require_agent(ws, agent)
        kinds = [signal.kind for signal in signals(connection, learner)]
        return count(connection, learner.id), kinds


def test_what_the_collector_recorded_is_trained_on_without_a_path(scripts_home: Path) -> None:
    record(3, label=True)
    results = TrainingPipeline(agent_name="isaa", base_model="no-base").run_full_pipeline()
    assert "no-base" in results["error"]
    assert traces_of(scripts_home) == (6, ["thumb"])


def test_runs_of_another_agent_in_the_home_are_not_trained_on(scripts_home: Path) -> None:
    record(2, label=True)
    other = TraceCollector(agent="painter")
    other.start_trace("s", "Draw a cat.")
    other.finish_trace("No.")
    TrainingPipeline(agent_name="isaa", base_model="no-base").run_full_pipeline()
    assert traces_of(scripts_home) == (4, ["thumb"])
    assert traces_of(scripts_home, "painter")[0] == 1


def test_traces_name_their_agent_for_an_import_by_hand(scripts_home: Path) -> None:
    record(1, label=False)
    other = TraceCollector(agent="Painter")
    other.start_trace("s", "Draw a cat.")
    other.finish_trace("No.")
    with opener(scripts_home, None, "warning")() as ws:
        report = ingest(
            ws, "isaa", "flowagent", scripts_home / "rl_traces", options=Options(agent="isaa")
        )
    assert (report.stored, dict(report.left_out)) == (2, {"it is of Painter": 1})


def test_checkpoints_of_the_home_are_found_by_the_agents_name(
    scripts_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "toolboxv2.mods.isaa.base.Agent.types"
    for depth in range(1, 7):
        module = ".".join(name.split(".")[:depth])
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    fields = ("timestamp", "agent_state", "task_state", "session_data", "metadata")
    kind = make_dataclass("AgentCheckpoint", fields, namespace={"__module__": name})
    sys.modules[name].AgentCheckpoint = kind
    history = [
        {"role": "user", "content": "Opening hours?", "timestamp": "2026-01-05T08:30:00"},
        {"role": "assistant", "content": "Nine to five.", "timestamp": "2026-01-05T08:30:05"},
    ]
    sessions = {"s1": {"history": history, "session_type": "chatsession"}}
    folder = scripts_home / "Agents" / "checkpoint" / "Isaa"
    folder.mkdir(parents=True)
    with (folder / "final_checkpoint.pkl").open("wb") as stream:
        pickle.dump(kind(None, {}, {}, sessions, {"agent_name": "Isaa"}), stream)

    loader = CheckpointLoader("Isaa")
    assert [trace.final_response for trace in loader.load_all_traces()] == ["Nine to five."]
    assert loader.discover_all_agents() == ["Isaa"]
    pipeline = TrainingPipeline(agent_name="Isaa", base_model="no-base")
    pipeline.run_full_pipeline()
    assert traces_of(scripts_home) == (1, [])
    assert CheckpointLoader("Nobody At All").list_checkpoints() == []


def test_too_few_questions_are_announced_before_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(6, label=True)
    TrainingPipeline(agent_name="isaa", base_model="no-base").run_full_pipeline()
    words = capsys.readouterr().err
    assert "about 300 different questions with rated answers, or 30 gold cases" in words
    assert "run_full_pipeline(unproved=True)" in words
    # nothing but the base is missing, so all of this came before the training
    assert words.index("30 gold cases") < words.index("no-base")


@pytest.mark.slow
def test_the_two_snippets_in_this_order_with_no_label_at_all(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rewards come from the runs themselves, as theirs did, and the road ends in a model that is
    marked."""
    record(24, label=False)
    pipeline = TrainingPipeline(agent_name="isaa", base_model=str(tiny_model), method="grpo")
    results = pipeline.run_full_pipeline(unproved=True)
    assert results["success"], results.get("error")
    assert results["method"] == "grpo_offline" and results["dataset_size"] >= 15
    assert "48 of 48 get a reward from their code, tools, tasks and form" in capsys.readouterr().err
    assert results["proved"] is False and results["model_path"].endswith("-merged-not-proved")
    model = Path(results["model_path"])
    assert (model / "model.safetensors").is_file()
    assert "State when exported: candidate" in (model / "README.md").read_text()
    stored = json.loads((tmp_path / "rl_training/isaa/pipeline_results.json").read_text())
    assert stored == results


class TestStepByStep:
    """The pipeline's own steps, as a script calls them between the first and the last."""

    def test_the_arguments_are_in_their_order(self, tmp_path: Path) -> None:
        pipeline = TrainingPipeline("isaa", "some-base", str(tmp_path / "out"), "kto")
        assert (pipeline.output_dir, pipeline.method) == (tmp_path / "out", "kto")
        config = pipeline.training_config
        assert (config.base_model, config.method) == ("some-base", "kto")
        assert config.output_dir == str(tmp_path / "out")
        assert pipeline.hw_config.cpu_cores > 0 and pipeline.trainer is None
        with pytest.raises(Conflict, match="nothing was trained"):
            pipeline.save()

    @pytest.mark.parametrize(("method", "count"), [("kto", 6), ("grpo", 3)])
    def test_prepare_data(self, method: str, count: int, tmp_path: Path) -> None:
        record(3, label=True)
        other = TraceCollector(agent="Painter")
        other.start_trace("s", "Draw a cat.")
        other.label_trace(other.finish_trace("No.").trace_id, False)
        pipeline = TrainingPipeline(agent_name="isaa", base_model="no-base", method=method)
        assert len(pipeline.prepare_data()) == count
        lines = (tmp_path / f"rl_training/isaa/{method}_dataset.jsonl").read_text().splitlines()
        assert len(lines) == count and "Draw a cat." not in "".join(lines)
        with pytest.raises(ThumbwheelError, match="no-base"):
            pipeline.train()

    def test_a_reward_function_that_says_too_little(self, tmp_path: Path) -> None:
        def brief(prompts: list[str], completions: list[str]) -> list[float]:
            return [1.0]

        trainer = RLTrainer(TrainingConfig(output_dir=str(tmp_path / "out")))
        example = isaa.GRPOExample("User: Where?", ["Here.", "There."], [1.0, -1.0])
        with pytest.raises(InputError, match="brief gives 1 rewards of 2 answers"):
            trainer.train([example], [brief])

    @pytest.mark.slow
    def test_from_data_to_a_saved_model(self, tiny_model: Path, tmp_path: Path) -> None:
        def has_no_tags(prompts: list[str], completions: list[str], **rest: Any) -> list[float]:
            return [0.0 if "<b>" in completion else 1.0 for completion in completions]

        record(24, label=False)
        pipeline = TrainingPipeline("isaa", str(tiny_model), method="grpo")
        pipeline.training_config.num_epochs = 1
        dataset = pipeline.prepare_data()
        pipeline.train(dataset, [has_no_tags])
        assert pipeline.trainer is not None and pipeline.trainer.training_stats["total_steps"] > 0
        folder = Path(pipeline.save(merge_lora=True))
        assert folder.resolve() == tmp_path / "rl_training/isaa/final"
        assert (folder / "model.safetensors").is_file()


class TestSettingsOfTheirs:
    def test_a_saved_configuration_is_taken_with_a_word(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        values = TrainingConfig(base_model="some-base", method="kto").to_dict()
        saved = values | {"lora_dropout": 0.05, "optim": "adamw_torch"}
        (tmp_path / "training_config.json").write_text(json.dumps(saved))
        config = TrainingConfig.load(tmp_path / "training_config.json")
        options = config.options()
        assert (options["lora_r"], options["lora_dropout"]) == (16, 0.05)
        assert "the setting optim of" in capsys.readouterr().err
        assert RLTrainer(config).config.lora_dropout == 0.05

    def test_our_own_lora_settings_are_taken(self) -> None:
        lora = isaa.get_ryzen_optimized_config().to_lora_config()
        config = TrainingConfig(
            lora_r=lora["r"], lora_alpha=lora["lora_alpha"], lora_dropout=lora["lora_dropout"]
        )
        options = config.options()
        assert (options["lora_alpha"], options["lora_dropout"]) == (32, 0.05)

    def test_a_profile_by_its_value(self) -> None:
        config = HardwareConfig(profile="cpu_only", has_gpu=True, cuda_available=True)
        assert config.profile is HardwareProfile.CPU_ONLY and not config.uses_gpu
        assert config.summary().startswith("profile cpu_only")
        assert HardwareConfig(profile="RYZEN_OPTIMIZED").summary().startswith("profile ryzen")
        with pytest.raises(ConfigError, match="auto_detect"):
            HardwareConfig(profile="fast")


def test_a_trace_without_an_id_is_named_by_its_content() -> None:
    asked = {"session_id": "s1", "timestamp": "2026-01-05T08:30:00", "user_query": "Sunday?"}
    trace = isaa.ExecutionTrace(**asked, final_response="Closed.")
    assert len(trace.trace_id) == 12
    assert trace.trace_id == isaa.ExecutionTrace(**asked, final_response="Closed.").trace_id
    # what differs in the answer alone is another run
    assert trace.trace_id != isaa.ExecutionTrace(**asked, final_response="Open.").trace_id
    assert isaa.ExecutionTrace.from_dict(trace.to_dict()) == trace

    # and without a time it is one of now
    assert isaa.ExecutionTrace(user_query="Sunday?").timestamp
    assert isaa.ExecutionTrace("t1", user_query="Sunday?").timestamp == ""
    with pytest.raises(TypeError, match="trace_id"):
        isaa.ExecutionTrace.from_dict({"user_query": "Sunday?"})


def completion(**tasks: list[dict[str, Any]]) -> float | None:
    trace = isaa.ExecutionTrace("t", user_query="q", final_response="a", **tasks)
    return isaa.TaskCompletionReward().compute(trace).score


def test_tasks_without_an_id_are_counted_once() -> None:
    two = [{"description": "book"}, {"description": "write"}]
    assert completion(tasks_created=two, tasks_completed=[{"description": "book"}]) == 0.5
    assert completion(tasks_created=two, tasks_completed=two[::-1]) == 1.0
    # equal descriptions are as many tasks as were created
    same = [{"description": "book"}, {"description": "book"}]
    assert completion(tasks_created=same, tasks_completed=same[:1]) == 0.5
    # an end that was never created is a task too
    assert completion(tasks_completed=[{"description": "book"}]) == 1.0
    assert completion(
        tasks_created=two, tasks_failed=[{"description": "book", "error": "no"}]
    ) == pytest.approx(0.0)
    # nothing but the kind names them
    assert (
        completion(tasks_created=[{"type": "LLMTask"}], tasks_completed=[{"type": "LLMTask"}])
        == 1.0
    )
