"""Calls of the agent pipeline's scripts that its reports do not show: attributes, patterns, its
trainer's evaluation, reward functions of the whole pipeline, its Ollama server."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.compat import isaa
from thumbwheel.core.errors import Conflict, InputError, NotFound


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))


class Agent:
    async def a_run(self, query: str, session_id: str = "default") -> str:
        return await self.arun_function("search", query)

    async def arun_function(self, function_name: str, *args: Any) -> str:
        return f"It is {args[0]}."


def test_a_hooked_agent_names_its_collector() -> None:
    collector, agent = isaa.TraceCollector(), Agent()
    hook = isaa.hook_into_agent(agent, trace_collector=collector)
    assert agent._trace_collector is collector  # type: ignore[attr-defined]
    assert isaa.hook_into_agent(agent, collector) is hook
    asyncio.run(agent.a_run("late"))
    assert [trace.final_response for trace in collector.traces] == ["It is late."]
    hook.unhook()
    assert not hasattr(agent, "_trace_collector")
    asyncio.run(agent.a_run("early"))
    assert len(collector.traces) == 1


def test_a_collector_keeps_its_last_runs_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thumbwheel.compat.isaa.collector.FINISHED", 2)
    collector = isaa.TraceCollector()
    for number in range(3):
        collector.start_trace("s", f"Question {number}?")
        collector.finish_trace("Fine.")
    assert [trace.user_query for trace in collector.traces] == ["Question 1?", "Question 2?"]
    assert len(collector.load_traces()) == 3


def answered(text: str, **fields: Any) -> isaa.ExecutionTrace:
    return isaa.ExecutionTrace(user_query="Where?", final_response=text, **fields)


def test_patterns_that_an_answer_must_not_match() -> None:
    reward = isaa.FormatComplianceReward(forbidden_patterns=[r"\bTODO\b", r"\*\*[^*]+\*\*"])
    assert reward(answered("Here.")).score == 1.0
    broken = reward(answered("TODO **now**"))
    assert broken.score == pytest.approx(0.8)
    assert broken.details == {"violations": ["TODO", "**now**"], "violation_count": 2}
    # of one pattern five count, and all of them take a half at most
    assert reward(answered("TODO " * 9)).score == pytest.approx(0.5)
    assert reward(answered("TODO " * 9 + "**a** " * 9)).score == pytest.approx(0.5)
    # the rule for tags is not one of them
    assert reward(answered("<b>x</b>")).score == 1.0
    assert isaa.FormatComplianceReward()(answered("<b>x</b>")).score < 1


def test_an_engine_remembers_its_rewards() -> None:
    engine = isaa.RewardEngine([isaa.FormatComplianceReward()])
    engine.compute_for_group([answered("a"), answered("<b>b</b>")])
    assert list(engine.reward_history) == [1.0, pytest.approx(0.8)]


def test_patterns_without_a_file_stay_in_memory() -> None:
    reward = isaa.LearnedReward()
    reward.save_patterns()
    with pytest.raises(InputError, match="at least 10"):
        reward.learn_from_traces([answered("a", label=True)])


def test_runs_of_a_checkpoint_in_two_steps(tmp_path: Path) -> None:
    (tmp_path / "final_checkpoint.pkl").write_bytes(b"no pickle")
    loader = isaa.CheckpointLoader("isaa", tmp_path)
    checkpoint = loader.load_checkpoint(tmp_path / "final_checkpoint.pkl")
    assert loader.extract_traces_from_checkpoint(checkpoint) == []


def test_a_server_is_started_with_a_profile(tmp_path: Path) -> None:
    program = tmp_path / "ollama"
    program.write_text('#!/bin/sh\nenv > environment.txt\necho "$@" > arguments.txt\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    deployer = isaa.OllamaDeployer(str(program), host="127.0.0.1:11999")
    process = deployer.start_server_with_profile(deployer.get_ryzen_profile(16))
    assert process.wait(60) == 0
    assert (tmp_path / "arguments.txt").read_text().split() == ["serve"]
    lines = (tmp_path / "environment.txt").read_text().splitlines()
    parts = [line.partition("=") for line in lines]
    environment = {name: value for name, _, value in parts}
    assert environment["OLLAMA_NUM_PARALLEL"] == "4"
    assert environment["OLLAMA_HOST"] == "http://127.0.0.1:11999"
    with pytest.raises(NotFound, match="nowhere"):
        isaa.OllamaDeployer("nowhere").start_server_with_profile(deployer.get_auto_profile())


def test_the_programs_of_a_folder_are_used_for_one_export(tmp_path: Path) -> None:
    from thumbwheel.llm import tools

    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (folder / "llama-quantize").write_text("")
    with tools.programs_of(folder):
        quantizer = tools.find("llama-quantize")
        assert quantizer is not None and quantizer.path == folder / "llama-quantize"
    outside = tools.find("llama-quantize")
    assert outside is None or outside.path != folder / "llama-quantize"

    exporter = isaa.GGUFExporter("model", str(folder), "out")
    assert (exporter.llama_cpp_path, exporter.output_dir) == (folder, Path("out"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(NotFound, match="no-such-folder"):
        isaa.GGUFExporter("model", "no-such-folder").convert("q4_k_m")


def record(questions: int) -> None:
    """Record two runs of every question, of which nobody said anything."""
    collector = isaa.TraceCollector()
    for number in range(questions):
        for answer in ("Yes.", "No, <b>never</b>."):
            collector.start_trace("s", f"Is it {'abcdefgh'[number % 8] * (number + 1)}?")
            collector.finish_trace(answer)


def brief(prompts: list[str], completions: list[str], **rest: Any) -> list[float]:
    assert len(prompts) == len(completions) and prompts[0].startswith("Is it ")
    return [-float(len(completion)) for completion in completions]


def test_functions_judge_the_recorded_runs_of_a_pipeline(tmp_path: Path) -> None:
    from thumbwheel.app.open import opener
    from thumbwheel.models.versions import require_agent
    from thumbwheel.rewards.label import signals

    record(3)
    pipeline = isaa.TrainingPipeline("isaa", "no-base")
    assert "no-base" in pipeline.run_full_pipeline([brief])["error"]
    with opener(tmp_path / "home", None, "warning")() as ws, ws.db.read() as connection:
        stored = list(signals(connection, require_agent(ws, "isaa")))
    assert [(signal.kind, signal.count) for signal in stored] == [("score", 6)]

    # a second run says nothing twice, and one that says too little is an error in the results
    pipeline.run_full_pipeline([brief])
    results = pipeline.run_full_pipeline([lambda prompts, completions: [1.0]])
    assert "gives 1 rewards of 6 answers" in results["error"]


@pytest.mark.slow
def test_a_trained_model_is_evaluated_on_other_examples(tiny_model: Path, tmp_path: Path) -> None:
    def examples(name: str) -> list[isaa.KTOExample]:
        rows = []
        for number in range(24):
            prompt = f"User: {name} {number}?"
            rows.append(isaa.KTOExample(prompt, "Yes, yes, yes.", True))
            rows.append(isaa.KTOExample(prompt, "Nothing.", False))
        return rows

    config = isaa.TrainingConfig(
        base_model=str(tiny_model), output_dir=str(tmp_path / "out"), method="kto", num_epochs=4
    )
    config.learning_rate = 1e-2
    trainer = isaa.RLTrainer(config)
    with pytest.raises(Conflict, match="no training"):
        trainer.evaluate(examples("Other"))
    trainer.train(examples("Open"))
    measured = trainer.evaluate(examples("Other"))
    assert measured["eval_samples"] == measured["base"]["eval_samples"] == 48
    assert measured["eval_loss"] < measured["base"]["eval_loss"]
    assert measured["eval_accuracy"] == 1.0
    assert trainer.evaluate(examples("Other"), ["eval_loss"]) == {
        "eval_loss": measured["eval_loss"]
    }
    assert set(trainer.evaluate()) == {"base", "best"}
    with pytest.raises(InputError, match="example 0"):
        trainer.evaluate([{"prompt": "User: a?"}])
    assert json.loads((tmp_path / "out" / "training_config.json").read_text())["method"] == "kto"
